"""A column that is dropped and added again finds its checkpoints; one whose inputs may differ does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns.column_worlds import DATASET, RECORDS, add, column, definition, fill, objects_at, objects_in
from floodmark.columns import catalog as catalogs
from floodmark.columns import definition as define
from floodmark.storage.memory import MemoryStore
from profiles import examples


@pytest.fixture
def objects(tmp_path):
    made = objects_at("bucket", tmp_path)
    add(made, "a")
    add(made, "b", ["a"])
    return made


def identity(objects, name="b"):
    return catalogs.identity(catalogs.load(objects), DATASET, column(objects, name))


def again(objects):
    """Drop both columns and add them as they were at first."""
    for name in "ba":
        define.drop(objects, name)
    add(objects, "a")
    add(objects, "b", ["a"])


def test_columns_that_are_added_again_are_the_same_computations(objects):
    fill(objects, "a", 0, [1.0])
    before = identity(objects, "a"), identity(objects)
    again(objects)
    again(objects)
    assert (identity(objects, "a"), identity(objects)) == before


def test_not_when_values_of_the_input_had_changed(objects):
    fill(objects, "a", 0, [1.0])
    first = identity(objects)
    fill(objects, "a", 0, [2.0], changed=[0])
    second = identity(objects)
    again(objects)
    third = identity(objects)
    fill(objects, "a", 0, [1.0])
    fill(objects, "a", 0, [3.0], changed=[0])
    assert len({first, second, third, identity(objects)}) == 4


def test_not_when_the_input_had_another_function_for_a_while(objects):
    define.alter(objects, definition("a", version="v2"), RECORDS)
    fill(objects, "a", 0, [5.0])  # the first values: none has changed
    from_v2 = identity(objects)
    define.alter(objects, definition("a", version="v1"), RECORDS)
    again(objects)
    assert identity(objects) != from_v2


def test_not_when_the_input_had_other_inputs_for_a_while(objects):
    define.alter(objects, definition("a", ["Title"]), RECORDS)
    fill(objects, "a", 0, [5.0])
    from_title = identity(objects)
    define.alter(objects, definition("a"), RECORDS)
    define.alter(objects, definition("a"), RECORDS)  # no change, which does not make it the first one again
    again(objects)
    assert identity(objects) != from_title


def test_not_when_the_input_of_the_input_had_changed_before_there_were_values(objects):
    add(objects, "c", ["b"])
    fill(objects, "a", 0, [1.0])
    fill(objects, "a", 0, [2.0], changed=[0])
    fill(objects, "b", 0, [2.0])  # of the second generation of a
    from_second = identity(objects, "c")
    define.drop(objects, "c")
    again(objects)
    add(objects, "c", ["b"])
    assert identity(objects, "c") != from_second


VERSIONS = ("v1", "v2")
moves = st.lists(
    st.one_of(
        st.tuples(st.just("alter"), st.sampled_from("ab"), st.sampled_from(VERSIONS)),
        st.tuples(st.just("again"), st.sampled_from(VERSIONS), st.sampled_from(VERSIONS)),
        st.tuples(st.just("fill"), st.sampled_from("ab"), st.integers(0, 3)),
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(moves)
def test_one_identity_never_stands_for_two_inputs(moves):
    """Whatever happens to a chain of columns: in one row, an identity of `c` is seen with one value of `b` only."""
    objects = objects_in(MemoryStore())
    values = {"a": {}, "b": {}}  # what readers see: which versions a row's value came from
    seen: dict[tuple[str, int], object] = {}
    add(objects, "a")
    add(objects, "b", ["a"])
    add(objects, "c", ["b"])
    for move, one, two in moves:
        if move == "alter":
            define.alter(objects, definition(one, column(objects, one).inputs, two), RECORDS)
        elif move == "again":
            for name in "cba":
                define.drop(objects, name)
            add(objects, "a", version=one)
            add(objects, "b", ["a"], two)
            add(objects, "c", ["b"])
            values = {"a": {}, "b": {}}
        elif one == "a" or two in values["a"]:
            compute(objects, values, one, two)
        for row, value in values["b"].items():
            assert seen.setdefault((identity(objects, "c"), row), value) == value


def compute(objects, values, name, row):
    version = column(objects, name).function.version
    new = version if name == "a" else (version, values["a"][row])
    differs = row in values[name] and values[name][row] != new
    values[name][row] = new
    fill(objects, name, row, [1.0], changed=[row] if differs else [])
    if differs and name == "a":
        values["b"].pop(row, None)  # hidden until it is computed again
