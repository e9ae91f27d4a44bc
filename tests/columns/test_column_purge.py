"""What was computed from purged records goes with them, wherever it is kept; all other values stay."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.checkpoint_worlds import range_batch
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
from floodmark.columns import row_errors
from floodmark.columns.checkpoints import encode_data_checkpoint
from floodmark.columns.purge import drop_purged
from floodmark.columns.verify import find_column_problems
from floodmark.derive.checkpoint_key import CheckpointPrefix, data_key, hash_text, range_key
from floodmark.errors import StorageError, SwapUnknown
from floodmark.storage.memory import MemoryStore
from profiles import examples
from rows.harm import replace as put

PREFIX = CheckpointPrefix("f", "v1", "a", hash_text(None), hash_text(DATASET), hash_text("inputs")).text


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    made = objects_at(request.param, tmp_path)
    add(made, "a")
    return made


def all_bytes(objects):
    return b"".join(objects.store.get(info.key) for info in objects.store.list(""))


@settings(max_examples=examples(13))
@given(st.lists(st.tuples(st.integers(0, 3 * ROWS - 1), st.integers(1, 5)), max_size=6), st.integers(0, 3 * ROWS))
def test_values_from_the_purged_offset_on_stay(parts, before):
    objects = objects_in(MemoryStore())
    add(objects, "a")
    oracle = {}
    for start, length in parts:
        offsets = range(start, min(start + length, (start // ROWS + 1) * ROWS))
        if not set(offsets) & set(oracle):
            fill(objects, "a", start, [float(o) for o in offsets])
            oracle |= {o: float(o) for o in offsets}
    drop_purged(objects, before)
    assert values_of(objects, "a") == {o: v for o, v in oracle.items() if o >= before}
    done = {f.number * ROWS + r for f in manifest(objects, "a").fragments for r in f.done}
    assert done == {o for o in oracle if o >= before}
    assert find_column_problems(objects) == []
    assert keys(objects, "files") == {k for k in manifest(objects, "a").keys(objects) if "/files/" in k}


def test_no_byte_of_a_purged_value_stays(objects):
    define.drop(objects, "a")
    secret = define.add(objects, definition("t", data_type=pa.string()), ["pixels"])
    for values in (["SECRET-1", "SECRET-2", "open"], ["SECRET-1", "SECRET-2", "changed"]):
        fill(objects, "t", 0, values, changed=[2])  # the second one leaves the first one's file to the collector
    segment(objects, secret, 1, ["SECRET-2", "open"])  # a file that nobody names yet
    assert b"SECRET" in all_bytes(objects)
    drop_purged(objects, 2)
    assert b"SECRET" not in all_bytes(objects)
    assert values_of(objects, "t") == {2: "changed"}


def test_older_and_hidden_values_are_cut_too(objects):
    add(objects, "b", ["a"])
    for name in "ab":
        fill(objects, name, 0, [1.0] * 6)
    define.alter(objects, definition("b", ["a"], "v2"), RECORDS)
    fill(objects, "a", 0, [2.0] * 6, changed=[1, 3])
    fill(objects, "b", ROWS, [1.0])
    assert manifest(objects, "b").fragment(0).kept == BitMap([0, 2, 4, 5])
    drop_purged(objects, 3)
    fragment = manifest(objects, "b").fragment(0)
    assert (fragment.done, fragment.kept, fragment.hidden) == (BitMap(), BitMap([4, 5]), BitMap([3]))


def test_sets_of_rows_and_errors_are_cut_too(objects):
    fill(objects, "a", 0, [0.0, None, 2.0, None, 4.0])
    with_errors(objects, "a", [1, 3])
    drop_purged(objects, 2)
    fragment = manifest(objects, "a").fragment(0)
    assert fragment.done == BitMap([2, 3, 4])
    assert row_errors.load(objects, fragment.errors).column("offset").to_pylist() == [3]
    assert keys(objects, "errors") == {objects.errors_key(fragment.errors)}


def test_checkpoints_that_overlap_go(objects):
    store = objects.checkpoints
    at = {
        "before": range_key(PREFIX, 0, 0, 4),
        "across": range_key(PREFIX, 0, 4, 8),
        "after": range_key(PREFIX, 1, 0, 4),
    }
    for key, rows in zip(at.values(), (range(4), range(4, 8), range(4)), strict=True):
        store.put(key, range_batch(rows))
    staged = segment(objects, column(objects, "a"), 4, [1.0] * 4)
    files = {"file": staged.key(objects), "sources": "[]", "field_ids": [1], "segment": staged.to_json()}
    store.put(data_key(PREFIX, 0, 4, 8), encode_data_checkpoint(**files, done=BitMap([4]), errors=None))
    store.put("f" * 64, range_batch(range(2)))  # an older format: nobody knows of which rows
    drop_purged(objects, 6)
    assert store.list_keys() == [at["after"]]
    assert keys(objects, "files") == set()


def test_dropped_columns_are_purged_as_well(objects):
    fill(objects, "a", 0, [1.0, 2.0])
    define.drop(objects, "a")
    drop_purged(objects, 1)
    assert keys(objects, "files") == set()


def test_a_purge_neither_recomputes_nor_makes_anything_stale(objects):
    add(objects, "b", ["a"])
    fill(objects, "a", 0, [1.0, 2.0])
    fill(objects, "b", 0, [1.0, 2.0])
    before = [(c.name, c.generation, manifest(objects, c.name).identity) for c in catalogs.load(objects).columns]
    drop_purged(objects, 1)
    after = [(c.name, c.generation, manifest(objects, c.name).identity) for c in catalogs.load(objects).columns]
    assert after == before
    assert manifest(objects, "b").fragment(0).hidden == BitMap()


def test_purging_again_changes_nothing(objects):
    fill(objects, "a", 0, [1.0, 2.0, 3.0])
    drop_purged(objects, 1)
    before = objects.store.get(objects.catalog_key)
    drop_purged(objects, 1)
    drop_purged(objects, 0)
    assert objects.store.get(objects.catalog_key) == before
    assert values_of(objects, "a") == {1: 2.0, 2: 3.0}


def test_a_dataset_that_never_had_columns_is_not_written_to(tmp_path):
    objects = objects_at("folder", tmp_path)
    drop_purged(objects, 5)
    assert list(objects.store.list("")) == []


def test_a_boundary_file_that_cannot_be_read_is_dropped_with_a_warning(objects, caplog):
    fill(objects, "a", 0, [1.0, 2.0])
    (key,) = keys(objects, "files")
    put(objects.store, key, b"nonsense")
    drop_purged(objects, 1)
    assert values_of(objects, "a") == {}
    assert keys(objects, "files") == set()
    assert "it is dropped" in caplog.text


def test_a_manifest_that_cannot_be_read_is_dropped_with_a_warning(objects, caplog):
    fill(objects, "a", 0, [1.0, 2.0])
    put(objects.store, objects.manifest_key(column(objects, "a").manifest), b"nonsense")
    drop_purged(objects, 1)
    assert values_of(objects, "a") == {}
    assert keys(objects, "files") == set()
    assert "the purge drops" in caplog.text


@pytest.mark.parametrize("older", [False, True])
def test_values_that_are_lost_to_damage_hide_what_was_computed_from_them(objects, older):
    """Nobody can compare what is computed in their place: it may be another function's."""
    add(objects, "b", ["a"])
    add(objects, "c", ["b"])
    for name in "abc":
        fill(objects, name, 0, [1.0] * 4)
        fill(objects, name, 4, [1.0] * 2)
        fill(objects, name, ROWS, [1.0])
    if older:
        define.alter(objects, definition("a", version="v2"), RECORDS)
        fill(objects, "a", ROWS, [1.0])
        assert manifest(objects, "a").fragment(0).kept == BitMap(range(6))
    first = manifest(objects, "a").fragment(0).segments[0]
    put(objects.store, first.key(objects), b"nonsense")
    drop_purged(objects, 2, DATASET)
    assert values_of(objects, "a") == {4: 1.0, 5: 1.0, ROWS: 1.0}
    for name in "bc":
        fragment = manifest(objects, name).fragment(0)
        assert (fragment.done, fragment.hidden) == (BitMap([4, 5]), BitMap([2, 3]))
        assert manifest(objects, name).fragment(1).done == BitMap([0])
        assert manifest(objects, name).identity == identity(objects, name)
    assert [c.generation for c in catalogs.load(objects).columns] == [1, 1, 1]
    assert find_column_problems(objects, 2) == []


def identity(objects, name):
    return catalogs.identity(catalogs.load(objects), DATASET, column(objects, name))


def test_a_lost_manifest_hides_everything_that_was_computed_from_it(objects):
    add(objects, "b", ["a"])
    add(objects, "c")
    for name in "abc":
        fill(objects, name, 0, [1.0] * 4)
        fill(objects, name, ROWS, [1.0])
    put(objects.store, objects.manifest_key(column(objects, "a").manifest), b"nonsense")
    drop_purged(objects, 2, DATASET)
    assert {name: values_of(objects, name) for name in "ab"} == {"a": {}, "b": {}}
    assert [f.hidden for f in manifest(objects, "b").fragments] == [BitMap([2, 3]), BitMap([0])]
    assert manifest(objects, "b").identity == identity(objects, "b")
    assert [c.generation for c in catalogs.load(objects).columns] == [1, 1, 0]
    assert values_of(objects, "c") == {2: 1.0, 3: 1.0, ROWS: 1.0}


def test_lost_manifests_of_a_column_and_of_one_computed_from_it_stop_nothing(objects):
    add(objects, "b", ["a"])
    for name in "ab":
        fill(objects, name, 0, [1.0] * 4)
        put(objects.store, objects.manifest_key(column(objects, name).manifest), b"nonsense")
    drop_purged(objects, 2, DATASET)
    assert [c.manifest for c in catalogs.load(objects).columns] == [None, None]


def test_without_the_id_of_the_dataset_nothing_stale_counts_as_done(objects):
    add(objects, "b", ["a"])
    for name in "ab":
        fill(objects, name, 0, [1.0] * 4)
    (key,) = {k for k in manifest(objects, "a").keys(objects) if "/files/" in k}
    put(objects.store, key, b"nonsense")
    drop_purged(objects, 2)
    assert manifest(objects, "b").with_identity(identity(objects, "b")).fragment(0).done == BitMap()


class Failing(MemoryStore):
    """Fails in what it is told to."""

    fails = ""

    def delete(self, key):
        if self.fails == "delete" and "/files/" in key:
            raise StorageError("no deletes today", hint="wait")
        super().delete(key)

    def compare_and_swap(self, key, expected, new):
        if self.fails == "swap":
            raise SwapUnknown("no swaps today", hint="wait")
        return super().compare_and_swap(key, expected, new)

    def get(self, key):
        if self.fails == "get":
            raise StorageError("no reads today", hint="wait")
        return super().get(key)


@pytest.mark.parametrize("fails", ["delete", "swap", "get"])
def test_a_store_that_fails_does_not_fail_a_purge_and_the_next_one_ends_it(fails, caplog):
    objects = objects_in(Failing())
    add(objects, "a")
    fill(objects, "a", 0, [1.0, 2.0])
    objects.checkpoints.put(range_key(PREFIX, 0, 0, 1), range_batch([0]))
    objects.store.fails = fails
    drop_purged(objects, 2)
    assert f"no {fails}s today".replace("get", "read") in caplog.text
    objects.store.fails = ""
    assert find_column_problems(objects, 2) != []
    assert (objects.checkpoints.list_keys() == []) == (fails == "delete")  # one failure stops no other deletion
    drop_purged(objects, 2)
    assert find_column_problems(objects, 2) == []
    assert keys(objects, "files") == set()


def test_files_from_the_purged_offset_on_stay_even_when_nobody_names_them(objects):
    fresh = segment(objects, column(objects, "a"), 5, np.arange(2.0))
    drop_purged(objects, 5)
    assert keys(objects, "files") == {fresh.key(objects)}
