"""What serves a fragment is found, whatever filter it was made under; what is damaged goes, what is other's stays."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from columns.checkpoint_worlds import COLUMN, DATASET, PREFIX, object_of, put_range, range_batch, raw, values_of
from floodmark.columns import row_errors
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoints import CheckpointFinder, encode_data_checkpoint, find_data, find_ranges
from floodmark.columns.manifest import ColumnSegment
from floodmark.derive.checkpoint_key import data_key, hash_text, range_key
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import CountingStore, MemoryStore


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return CheckpointStore(LocalStore(tmp_path) if request.param == "local" else MemoryStore(), "c")


def test_a_checkpoint_that_goes_while_it_is_looked_for_is_not_there(store, monkeypatch, caplog):
    gone, stays = put_range(store, 0, 5), put_range(store, 5, 9)
    listed = store.list_any_where(PREFIX.text, 0)
    store.delete(gone)
    monkeypatch.setattr(store, "list_any_where", lambda prefix, fragment: listed if prefix == PREFIX.text else [])
    assert [c.key for c in find_ranges(store, PREFIX, 0, COLUMN)] == [stays]
    assert caplog.records == []


def test_nothing_is_found_where_nothing_is(store):
    assert find_ranges(store, PREFIX, 0, COLUMN) == []
    assert find_data(store, PREFIX, 0) == []


def test_ranges_of_every_where_are_found_in_order(store):
    filtered = replace(PREFIX, where=hash_text("a > 1"))
    keys = [put_range(store, 20, 30), put_range(store, 0, 10, filtered), put_range(store, 5, 20)]
    found = find_ranges(store, PREFIX, 0, COLUMN)
    assert [checkpoint.key for checkpoint in found] == [keys[1], keys[2], keys[0]]
    assert values_of(store, found) == {n: float(n) for n in range(30)}
    assert find_ranges(store, filtered, 0, COLUMN) == found


@pytest.mark.parametrize(
    "other",
    [
        replace(PREFIX, udf="dark"),
        replace(PREFIX, version="v2"),
        replace(PREFIX, column="darkness"),
        replace(PREFIX, uri=hash_text("another dataset")),
        replace(PREFIX, srcfiles=hash_text("other inputs")),
    ],
    ids=["function", "version", "column", "dataset", "inputs"],
)
def test_other_computations_are_not_found_and_not_touched(store, other):
    key = put_range(store, 0, 10, other)
    assert find_ranges(store, PREFIX, 0, COLUMN) == []
    assert store.list_keys() == [key]


def test_other_fragments_are_not_found(store):
    put_range(store, 0, 10, fragment=1)
    put_range(store, 0, 10, fragment=10)
    assert [c.key for c in find_ranges(store, PREFIX, 1, COLUMN)] == [range_key(PREFIX.text, 1, 0, 10)]


def test_a_range_counts_for_the_rows_it_holds_and_not_for_those_it_spans(store):
    store.put(range_key(PREFIX.text, 0, 0, 100), range_batch([3, 50, 51]))
    (found,) = find_ranges(store, PREFIX, 0, COLUMN)
    assert (found.start, found.end, found.rows) == (0, 100, BitMap([3, 50, 51]))


def test_an_empty_work_unit_is_found_as_complete(store):
    store.put(range_key(PREFIX.text, 0, 0, 100), range_batch([]))
    (found,) = find_ranges(store, PREFIX, 0, COLUMN)
    assert (found.start, found.end, found.rows) == (0, 100, BitMap())


def test_only_the_ranges_within_are_read():
    counted = CountingStore(MemoryStore())
    store = CheckpointStore(counted, "c")
    keys = [put_range(store, start, start + 10) for start in range(0, 100, 10)]
    before = counted.counts
    found = find_ranges(store, PREFIX, 0, COLUMN, (20, 31))
    assert [c.key for c in found] == keys[2:4]
    assert (counted.counts - before).reads == 2


ADDRESSES = pa.array([0, 1], pa.int64())
VALUES = pa.array([1.0, 2.0])
ERRORS = pa.nulls(2, ERROR_TYPE)


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


OTHERS = {
    "no addresses": batch_of(brightness=VALUES, _error=ERRORS),
    "no values": batch_of(_rowaddr=ADDRESSES, _error=ERRORS),
    "no errors": batch_of(_rowaddr=ADDRESSES, brightness=VALUES),
    "another type": batch_of(_rowaddr=ADDRESSES, brightness=VALUES.cast(pa.float32()), _error=ERRORS),
    "addresses of another type": batch_of(_rowaddr=ADDRESSES.cast(pa.int32()), brightness=VALUES, _error=ERRORS),
    "errors of another type": batch_of(_rowaddr=ADDRESSES, brightness=VALUES, _error=pa.array(["a", "b"])),
    "another column": batch_of(_rowaddr=ADDRESSES, darkness=VALUES, _error=ERRORS),
}
MISFITS = {
    "no address": batch_of(_rowaddr=pa.array([0, None], pa.int64()), brightness=VALUES, _error=ERRORS),
    "unsorted": range_batch([1, 0]),
    "repeated": range_batch([1, 1]),
    "before the range": range_batch([-1, 1]),
    "behind the range": range_batch([0, 10]),
    "far outside, unsorted": range_batch([0, 2**40, 1]),
}


@pytest.mark.parametrize("batch", MISFITS.values(), ids=MISFITS.keys())
def test_a_batch_that_does_not_fit_is_deleted_with_a_warning(store, caplog, batch):
    good = put_range(store, 10, 20)
    bad = range_key(PREFIX.text, 0, 0, 10)
    store.put(bad, batch)
    with caplog.at_level(logging.WARNING):
        found = find_ranges(store, PREFIX, 0, COLUMN)
    assert [checkpoint.key for checkpoint in found] == [good]
    assert store.list_keys() == [good]
    assert bad in caplog.text


@pytest.mark.parametrize("batch", OTHERS.values(), ids=OTHERS.keys())
def test_a_whole_batch_of_something_else_is_left_out_and_left_alone(store, caplog, batch):
    good = put_range(store, 10, 20)
    other = range_key(PREFIX.text, 0, 0, 10)
    store.put(other, batch)
    assert [checkpoint.key for checkpoint in find_ranges(store, PREFIX, 0, COLUMN)] == [good]
    assert store.list_keys() == [other, good]
    assert caplog.records == []


@pytest.mark.parametrize("batch", MISFITS.values(), ids=MISFITS.keys())
def test_who_only_looks_leaves_out_what_does_not_fit_and_changes_nothing(store, caplog, batch):
    good, file = put_range(store, 10, 20), put_file(store)
    bad, torn = range_key(PREFIX.text, 0, 0, 10), put_file(store, 0, 9)
    store.put(bad, batch)
    place = object_of(store, torn)
    raw(store).put_derived(place, raw(store).get(place)[:-9])
    before = contents(store)
    look = CheckpointFinder(store, DATASET)
    assert [found.key for found in look.ranges(PREFIX, 0, COLUMN)] == [good]
    assert [found.key for found in look.data(PREFIX, 0)] == [file]
    assert contents(store) == before
    assert bad in caplog.text
    assert torn in caplog.text


def contents(store):
    return {info.key: (raw(store).get(info.key), info.modified) for info in raw(store).list("")}


def test_rows_that_were_skipped_are_found_like_computed_ones(store):
    errors = pa.array([None, {"type": "ValueError", "message": "m", "traceback": "t", "attempts": 1}], ERROR_TYPE)
    schema = range_batch([]).schema
    batch = pa.RecordBatch.from_arrays([ADDRESSES, pa.array([1.0, None]), errors], schema=schema)
    key = range_key(PREFIX.text, 0, 0, 10)
    store.put(key, batch)
    (found,) = find_ranges(store, PREFIX, 0, COLUMN)
    assert found.rows == BitMap([0, 1])
    assert store.get(key).column(ERROR).equals(errors)


@given(st.lists(st.tuples(st.sets(st.integers(0, 40)), st.sampled_from(["", "a", "b"])), max_size=6))
def test_what_is_found_is_what_was_stored(stored):
    store = CheckpointStore(MemoryStore(), "c")
    expected: dict[str, set[int]] = {}
    for rows, where in stored:
        key = range_key(replace(PREFIX, where=hash_text(where)).text, 0, min(rows, default=0), max(rows, default=0) + 1)
        store.put(key, range_batch(sorted(rows)))
        expected[key] = rows
    found = find_ranges(store, PREFIX, 0, COLUMN)
    assert {checkpoint.key: set(checkpoint.rows) for checkpoint in found} == expected
    assert [c.start for c in found] == sorted(c.start for c in found)


# finished files

SEGMENT = ColumnSegment(start=100, end=110, digest="d" * 64, size=9, tail=5, tail_checksum=1).to_json()
NOW = datetime(2024, 1, 1, tzinfo=UTC)
DETAILS = [["A", "B", "C"], ["m"] * 3, ["t"] * 3, [2, 1, 1], [NOW] * 3]
SKIPPED = pa.table([[107, 103, 105], *DETAILS], schema=row_errors.SCHEMA)


def put_file(store, start=0, end=10, prefix=PREFIX, done=None, errors=None, segment=SEGMENT):
    key = data_key(prefix.text, 0, start, end)
    done = BitMap(range(start, end)) if done is None else done
    batch = encode_data_checkpoint(
        file="f/1", sources="[]", field_ids=[7, 3], segment=segment, done=done, errors=errors
    )
    store.put(key, batch)
    return key


def test_a_finished_file_is_found_with_all_that_was_noted(store):
    key = put_file(store, done=BitMap([1, 2, 9]), errors=SKIPPED)
    put_range(store, 0, 10)
    (found,) = find_data(store, PREFIX, 0)
    assert (found.key, found.start, found.end, found.file, found.sources) == (key, 0, 10, "f/1", "[]")
    assert (found.segment, found.field_ids, found.done) == (SEGMENT, (3, 7), BitMap([1, 2, 9]))
    assert found.errors.equals(SKIPPED)
    assert [c.key for c in find_ranges(store, PREFIX, 0, COLUMN)] == [range_key(PREFIX.text, 0, 0, 10)]


def test_the_errors_of_a_finished_file_lie_at_their_offsets(store):
    put_file(store, errors=SKIPPED)
    (found,) = find_data(store, PREFIX, 0)
    column = found.error_column(np.array([99, 103, 104, 105, 107, 108]))
    assert column.type == ERROR_TYPE
    assert [error and error["type"] for error in column.to_pylist()] == [None, "B", None, "C", "A", None]


@pytest.mark.parametrize("errors", [None, row_errors.EMPTY])
def test_a_finished_file_without_errors_has_no_error_column(store, errors):
    put_file(store, errors=errors)
    (found,) = find_data(store, PREFIX, 0)
    assert found.errors is None
    assert found.error_column(np.array([100])) is None


def test_finished_files_of_every_where_are_found_in_order(store):
    keys = [put_file(store, 5, 10), put_file(store, 0, 10, replace(PREFIX, where=hash_text("a > 1")))]
    put_file(store, 0, 10, replace(PREFIX, version="v2"))
    assert [found.key for found in find_data(store, PREFIX, 0)] == keys[::-1]


def changed(**columns):
    batch = encode_data_checkpoint(
        file="f", sources="[]", field_ids=[1], segment=SEGMENT, done=BitMap([1]), errors=None
    )
    return pa.record_batch({name: columns.get(name, batch.column(name)) for name in batch.schema.names})


MISFIT_FILES = {
    "two rows": pa.concat_batches([changed(), changed()]),
    "no rows": changed().slice(0, 0),
    "other columns": range_batch([1]),
    "no file": changed(file=pa.array([None], pa.string())),
    "a segment that is no JSON": changed(segment=pa.array(["{"])),
    "a segment that is none": changed(segment=pa.array(['{"start": 1}'])),
    "a segment that is a list": changed(segment=pa.array(["[]"])),
    "damaged rows": changed(done=pa.array([b"damaged"])),
    "rows outside": encode_data_checkpoint(
        file="f", sources="", field_ids=[], segment=SEGMENT, done=BitMap([10]), errors=None
    ),
    "field ids that are none": changed(output_field_ids=pa.array(['["a"]'])),
    "errors that are none": changed(errors=pa.array([b"damaged"])),
    "a file that is a number": changed(file=pa.array([[1]])),
}


@pytest.mark.parametrize("batch", MISFIT_FILES.values(), ids=MISFIT_FILES.keys())
def test_a_note_of_a_file_that_does_not_fit_is_deleted_with_a_warning(store, caplog, batch):
    good = put_file(store, 10, 20)
    bad = data_key(PREFIX.text, 0, 0, 10)
    store.put(bad, batch)
    with caplog.at_level(logging.WARNING):
        assert [found.key for found in find_data(store, PREFIX, 0)] == [good]
    assert store.list_keys() == [good]
    assert bad in caplog.text


def test_a_torn_note_of_a_file_is_deleted_with_a_warning(store, caplog):
    key = put_file(store)
    place = object_of(store, key)
    raw(store).put_derived(place, raw(store).get(place)[:-9])
    with caplog.at_level(logging.WARNING):
        assert find_data(store, PREFIX, 0) == []
    assert store.list_keys() == []
    assert key in caplog.text


def test_addresses_lie_first_in_a_batch_by_name_only(store):
    """Columns are found by their names: a writer may order them as it likes."""
    batch = range_batch(range(5)).select([ERROR, COLUMN.name, ROWADDR])
    store.put(range_key(PREFIX.text, 0, 0, 5), batch)
    assert [c.rows for c in find_ranges(store, PREFIX, 0, COLUMN)] == [BitMap(range(5))]
