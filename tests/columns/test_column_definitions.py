"""Adding, altering and dropping columns: what would do harm is refused, and nothing is changed then."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from columns.column_worlds import RECORDS, ROWS, add, column, definition, fill, manifest, objects_at, values_of
from floodmark.columns import catalog as catalogs
from floodmark.columns import definition as define
from floodmark.errors import (
    BadName,
    BadOption,
    ColumnExists,
    DerivationError,
    TypeMismatch,
    UnknownColumn,
)


@pytest.fixture
def objects(tmp_path):
    return objects_at("bucket", tmp_path)


@pytest.fixture
def unchanged(objects):
    """Sees to it that the catalog is the same after a test as when the test asked for it."""
    seen = []
    yield lambda: seen.append(catalogs.load(objects))
    assert seen == [catalogs.load(objects)]


def test_each_added_column_has_a_field_id_of_its_own(objects):
    assert [add(objects, name).field_id for name in "abc"] == [1, 2, 3]
    define.drop(objects, "c")
    assert add(objects, "c").field_id == 4


@pytest.mark.parametrize("name", ["a", "A", "pixels", "title", "offset"])
def test_a_name_that_is_taken_is_refused(objects, unchanged, name):
    add(objects, "a")
    unchanged()
    with pytest.raises(ColumnExists) as caught:
        add(objects, name)
    assert caught.value.column == name


@pytest.mark.parametrize(
    "name", ["", 5, None, b"a", "_rowaddr", "_RowAddr", "_error", "_ERROR", "a\ud800", "event_Time"]
)
def test_a_name_that_no_column_can_have_is_refused(objects, unchanged, name):
    unchanged()
    with pytest.raises(BadName, match="cannot have this name") as caught:
        define.add(objects, replace(definition("a"), name=name), ["pixels"], ROWS, reserved=["event_time"])
    assert caught.value.column == str(name)


@pytest.mark.parametrize("name", [5, None])
def test_a_column_that_is_asked_for_by_no_name_is_unknown(objects, name):
    add(objects, "a")
    with pytest.raises(UnknownColumn):
        define.drop(objects, name)


def test_an_unknown_input_is_refused(objects, unchanged):
    unchanged()
    with pytest.raises(UnknownColumn, match="did you mean 'pixels'") as caught:
        add(objects, "a", ["pixel"])
    assert (caught.value.column, caught.value.input) == ("a", "pixel")


def test_a_column_cannot_be_computed_from_itself(objects, unchanged):
    unchanged()
    with pytest.raises(DerivationError):
        add(objects, "a", ["a"])


def test_altering_cannot_close_a_circle(objects, unchanged):
    add(objects, "a")
    add(objects, "b", ["a"])
    add(objects, "c", ["b"])
    unchanged()
    with pytest.raises(DerivationError) as caught:
        define.alter(objects, definition("a", ["c"], "v2"), RECORDS)
    assert (caught.value.column, caught.value.input) == ("a", "c")


def test_a_column_that_others_need_cannot_be_dropped(objects, unchanged):
    add(objects, "a")
    add(objects, "b", ["a"])
    add(objects, "c", ["b"])
    unchanged()
    with pytest.raises(DerivationError, match="drop 'c' first") as caught:
        define.drop(objects, "a")
    assert caught.value.dependents == ["b", "c"]


def test_a_dropped_column_is_gone(objects):
    add(objects, "a")
    assert define.drop(objects, "a").name == "a"
    with pytest.raises(UnknownColumn):
        define.drop(objects, "a")


def test_another_type_is_refused(objects, unchanged):
    add(objects, "a")
    unchanged()
    with pytest.raises(TypeMismatch, match="double, and the function returns string"):
        define.alter(objects, definition("a", version="v2", data_type=pa.string()), RECORDS)


def test_an_altered_column_keeps_its_field_and_its_values(objects):
    before = add(objects, "a")
    fill(objects, "a", 0, [1.0, 2.0])
    after = define.alter(objects, definition("a", ["Title"], "v2"), RECORDS)
    assert (after.field_id, after.generation) == (before.field_id, before.generation)
    assert (after.function.version, after.inputs) == ("v2", ("Title",))
    assert values_of(objects, "a") == {0: 1.0, 1: 2.0}
    assert len(manifest(objects, "a").fragment(0).done) == 2


def test_altering_to_the_same_version_changes_nothing(objects, unchanged):
    add(objects, "a")
    unchanged()
    same = definition("a")
    commented = type(same.function)(**{**vars(same.function), "source": "def … # comment"})
    define.alter(objects, type(same)(**{**vars(same), "function": commented}), RECORDS)


def test_altering_an_unknown_column_is_refused(objects):
    with pytest.raises(UnknownColumn):
        define.alter(objects, definition("a"), RECORDS)


def test_the_first_column_chooses_the_fragments(objects):
    add(objects, "a")
    assert catalogs.load(objects).fragment_rows == ROWS
    define.add(objects, definition("b"), RECORDS)
    define.drop(objects, "a")
    define.drop(objects, "b")
    define.add(objects, definition("c"), RECORDS, ROWS)
    with pytest.raises(BadOption, match=f"to {ROWS} rows"):
        define.add(objects, definition("d"), RECORDS, ROWS + 1)
    assert column(objects, "c").field_id == 3


@pytest.mark.parametrize("rows", [0, -1, 2**40])
def test_fragments_of_impossible_sizes_are_refused(objects, rows):
    with pytest.raises(BadOption):
        define.add(objects, definition("a"), RECORDS, rows)
    assert catalogs.load(objects).columns == ()
