"""Installed values become visible together with what they make stale, and only while their plan still holds."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.column_worlds import (
    DATASET,
    RECORDS,
    ROWS,
    add,
    column,
    definition,
    fill,
    keys,
    manifest,
    objects_at,
    objects_in,
    segment,
    values_of,
    with_errors,
)
from floodmark.columns import catalog as catalogs
from floodmark.columns import definition as define
from floodmark.columns import manifest as manifests
from floodmark.columns import purge, row_errors
from floodmark.columns.commit import commit_fragments
from floodmark.columns.manifest import Fragment
from floodmark.errors import DerivationError, LostRace
from floodmark.storage.memory import MemoryStore
from profiles import examples


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    return objects_at(request.param, tmp_path)


def planned(objects, name, start, values):
    """A plan for some values, to be carried out later."""
    owner, catalog = column(objects, name), catalogs.load(objects)
    base, identity = manifests.load(objects, owner), catalogs.identity(catalog, DATASET, owner)
    made = segment(objects, owner, start, values)
    rows = BitMap(range(start % ROWS, start % ROWS + len(values)))
    fragment = Fragment(start // ROWS, (made,), rows)
    return lambda: commit_fragments(objects, DATASET, owner, base, [fragment], {}, identity)


def test_installed_values_are_there(objects):
    add(objects, "a")
    fill(objects, "a", 0, [1.0, None, 3.0])
    fill(objects, "a", ROWS, [9.0])
    fill(objects, "a", 3, [4.0])
    assert values_of(objects, "a") == {0: 1.0, 1: None, 2: 3.0, 3: 4.0, ROWS: 9.0}
    assert column(objects, "a").generation == 0
    assert manifest(objects, "a").identity == catalogs.identity(catalogs.load(objects), DATASET, column(objects, "a"))


def test_under_a_new_version_fragments_that_were_not_replaced_are_kept_ones(objects):
    add(objects, "a")
    fill(objects, "a", 0, [1.0, 2.0])
    fill(objects, "a", ROWS, [3.0])
    define.alter(objects, definition("a", version="v2"), RECORDS)
    fill(objects, "a", ROWS, [4.0], changed=[0])
    first, second = manifest(objects, "a").fragments
    assert (first.done, first.kept) == (BitMap(), BitMap([0, 1]))
    assert (second.done, second.kept) == (BitMap([0]), BitMap())
    assert values_of(objects, "a") == {0: 1.0, 1: 2.0, ROWS: 4.0}


def test_a_plan_that_others_overtook_is_refused(objects):
    add(objects, "a")
    late = planned(objects, "a", 0, [1.0])
    fill(objects, "a", 1, [2.0])
    with pytest.raises(LostRace) as caught:
        late()
    assert caught.value.column == "a"
    assert values_of(objects, "a") == {1: 2.0}


def test_a_plan_whose_input_changed_is_refused_even_before_the_first_values(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0])
    late = planned(objects, "b", 0, [10.0])
    fill(objects, "a", 0, [2.0], changed=[0])
    with pytest.raises(LostRace):
        late()
    assert column(objects, "b").manifest is None


def test_an_input_that_only_grows_stops_no_plan(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0])
    late = planned(objects, "b", 0, [10.0])
    fill(objects, "a", 1, [2.0])
    late()
    assert values_of(objects, "b") == {0: 10.0}


def test_values_for_a_dropped_or_altered_column_are_refused(objects):
    add(objects, "a")
    late = planned(objects, "a", 0, [1.0])
    define.alter(objects, definition("a", version="v2"), RECORDS)
    with pytest.raises(DerivationError, match="got another function"):
        late()
    late = planned(objects, "a", 0, [1.0])
    define.drop(objects, "a")
    with pytest.raises(DerivationError, match="was dropped"):
        late()
    add(objects, "a", version="v2")
    with pytest.raises(DerivationError, match="was dropped"):
        late()
    assert values_of(objects, "a") == {}


def test_values_of_purged_records_are_refused(objects):
    add(objects, "a")
    late = planned(objects, "a", 0, [1.0, 2.0, 3.0])
    purge.drop_purged(objects, 2)
    with pytest.raises(LostRace, match="purged"):
        late()


def test_two_at_once_both_get_in_when_the_loser_plans_again():
    class Racing(MemoryStore):
        rival = None

        def compare_and_swap(self, key, expected, new):
            rival, self.rival = self.rival, None
            if rival is not None:
                rival()
            return super().compare_and_swap(key, expected, new)

        def turn(self, key):
            return nullcontext()

    objects = objects_in(Racing())
    add(objects, "a")
    objects.store.rival = lambda: fill(objects, "a", 0, [1.0])
    with pytest.raises(LostRace):
        fill(objects, "a", 1, [2.0])
    fill(objects, "a", 1, [2.0])
    assert values_of(objects, "a") == {0: 1.0, 1: 2.0}


# What depends on the column


def test_changed_values_hide_what_was_computed_from_them(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    add(objects, "c", ["b", "pixels"])
    add(objects, "other")
    for name in ("a", "b", "c", "other"):
        fill(objects, name, 0, [1.0, 2.0, 3.0])
    other = column(objects, "other")
    fill(objects, "a", 0, [1.0, 5.0, 6.0, 7.0], changed=[1, 2])
    assert column(objects, "a").generation == 1
    for name in ("b", "c"):
        fragment = manifest(objects, name).fragment(0)
        assert (fragment.done, fragment.hidden) == (BitMap([0]), BitMap([1, 2]))
        assert column(objects, name).generation == 1
        owner = column(objects, name)
        assert manifest(objects, name).identity == catalogs.identity(catalogs.load(objects), DATASET, owner)
        assert values_of(objects, name) == {0: 1.0}
    assert column(objects, "other") == other


def test_dependents_without_such_rows_keep_their_generation_and_their_rows(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    add(objects, "c", ["b"])
    fill(objects, "a", 0, [1.0, 2.0])
    fill(objects, "b", 0, [1.0])
    fill(objects, "c", 0, [1.0])
    before = column(objects, "c")
    fill(objects, "a", 0, [1.0, 5.0], changed=[1])
    assert column(objects, "b").generation == 0
    owner = column(objects, "b")
    assert manifest(objects, "b").identity == catalogs.identity(catalogs.load(objects), DATASET, owner)
    assert manifest(objects, "b").fragment(0).done == BitMap([0])
    assert column(objects, "c") == before


def test_the_identity_of_values_of_an_older_function_is_left_alone(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0, 2.0])
    fill(objects, "b", 0, [1.0, 2.0])
    old = manifest(objects, "b").identity
    define.alter(objects, definition("b", ["a"], "v2"), RECORDS)
    fill(objects, "a", 0, [1.0, 5.0], changed=[1])
    assert manifest(objects, "b").identity == old
    assert manifest(objects, "b").fragment(0).hidden == BitMap([1])


def test_nothing_is_swapped_when_a_dependent_cannot_be_read(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0])
    fill(objects, "b", 0, [1.0])
    objects.store.delete(objects.manifest_key(column(objects, "b").manifest))
    before = catalogs.load(objects)
    with pytest.raises(Exception, match="'b' is missing"):
        fill(objects, "a", 0, [2.0], changed=[0])
    assert catalogs.load(objects) == before


def test_files_of_older_manifests_stay_for_those_who_read_them(objects):
    add(objects, "a")
    fill(objects, "a", 0, [1.0])
    before = keys(objects, "files") | keys(objects, "manifests")
    fill(objects, "a", 0, [2.0], changed=[0])
    assert before < keys(objects, "files") | keys(objects, "manifests")


def test_errors_of_hidden_rows_go_with_them(objects):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0, 2.0, 3.0])
    fill(objects, "b", 0, [1.0, None, None])
    with_errors(objects, "b", [1, 2])
    fill(objects, "a", 0, [1.0, 5.0, 3.0], changed=[0, 1])
    assert row_errors.load(objects, manifest(objects, "b").fragment(0).errors).column("offset").to_pylist() == [2]
    fill(objects, "a", 0, [1.0, 5.0, 6.0], changed=[2])
    assert manifest(objects, "b").fragment(0).errors is None


def test_damaged_errors_of_a_dependent_stop_no_values(objects, caplog):
    add(objects, "a")
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0])
    fill(objects, "b", 0, [None])
    with_errors(objects, "b", [0])
    (key,) = keys(objects, "errors")
    objects.store.delete(key)
    fill(objects, "a", 0, [2.0], changed=[0])
    assert manifest(objects, "b").fragment(0).hidden == BitMap([0])
    assert key in caplog.text


NAMES = ("a", "b", "c", "d")
INPUTS = {"a": ("pixels",), "b": ("a",), "c": ("pixels", "a"), "d": ("b", "c")}
steps = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2 * ROWS - 1), st.integers(1, 4), st.integers(0, 9)), max_size=12
)


@settings(max_examples=examples(13))
@given(steps)
def test_what_is_visible_is_what_a_naive_oracle_says(steps):
    """Values are installed here and there; an oracle of plain dicts says which are seen, and which are still good."""
    objects = objects_in(MemoryStore())
    for name in NAMES:
        add(objects, name, INPUTS[name])
    oracle = {name: {} for name in NAMES}
    for name, start, length, value in steps:
        offsets = range(start, min(start + length, (start // ROWS + 1) * ROWS))
        rewrite(objects, name, offsets, float(value))
        stale = {o for o in offsets if oracle[name].get(o, value) != value}
        oracle[name] |= dict.fromkeys(offsets, value)
        for dependent in reached(name):
            for offset in stale:
                oracle[dependent].pop(offset, None)
    for name in NAMES:
        seen = {o: v for o, v in values_of(objects, name).items() if v is not None}
        assert seen == oracle[name]
        done = {f.number * ROWS + r for f in manifest(objects, name).fragments for r in f.done}
        assert done == set(oracle[name])
        assert manifest(objects, name).identity in ("", wanted(objects, name))


def wanted(objects, name):
    return catalogs.identity(catalogs.load(objects), DATASET, column(objects, name))


def reached(name):
    direct = [n for n in NAMES if name in INPUTS[n]]
    return {*direct, *(r for n in direct for r in reached(n))}


def rewrite(objects, name, offsets, value):
    """Give some offsets a value, in a file for their whole fragment that keeps all others."""
    owner = column(objects, name)
    base = manifests.load(objects, owner)
    number, first = offsets[0] // ROWS, offsets[0] // ROWS * ROWS
    seen = values_of(objects, name)
    values = [value if o in offsets else seen.get(o) for o in range(first, first + ROWS)]
    rows = BitMap(o - first for o in offsets)
    before = base.fragment(number)
    after = replace(
        before,
        segments=(segment(objects, owner, first, values),),
        done=before.done | rows,
        hidden=before.hidden - rows,
    )
    changed = BitMap(o - first for o in offsets if seen.get(o) not in (None, value))
    commit_fragments(objects, DATASET, owner, base, [after], {number: changed}, wanted(objects, name))
