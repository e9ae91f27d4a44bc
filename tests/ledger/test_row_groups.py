"""Slices of a dataset with a timeline have row groups of the size that its timeline needs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from floodmark.ledger.schema import rows_per_group
from floodmark.storage.memory import MemoryStore
from floodmark.storage.parquet import ROW_GROUP_ROWS, Vocabulary, write_rows
from limits import set_limit


@pytest.fixture
def lake():
    return fm.Lake(MemoryStore())


def ticks(rows):
    times = pa.array(range(rows), pa.timestamp("us", "UTC"))
    return pa.table({"at": times, "n": pa.array(range(rows), pa.int64())})


def row_groups(dataset):
    """How many rows the row groups of each slice have."""
    found = []
    objects = dataset.snapshot().objects
    for info in sorted(objects.store.list(f"{objects.folder}/data"), key=lambda info: info.key):
        with pq.ParquetFile(objects.store.open(info.key)) as file:
            first = file.read_row_group(0, columns=["offset"]).column("offset")[0].as_py()
            groups = range(file.metadata.num_row_groups)
            found.append((first, [file.metadata.row_group(i).num_rows for i in groups]))
    return [rows for _, rows in sorted(found)]


@pytest.mark.parametrize("key", [None, "n"])
def test_row_groups_have_at_most_row_group_size_rows(lake, key):
    dataset = lake.create("d", event_time="at", key=key, partition_by="day", row_group_size=10)
    dataset.write(ticks(30))
    assert row_groups(dataset) == [[10, 10, 10]]


@pytest.mark.parametrize("key", [None, "n"])
def test_the_last_row_group_is_not_much_smaller_than_the_others(lake, key):
    dataset = lake.create("d", event_time="at", key=key, partition_by="day", row_group_size=10)
    dataset.write(ticks(31))
    assert row_groups(dataset) == [[8, 8, 8, 7]]


def test_a_frame_is_cut_into_slices_where_row_groups_end(lake, monkeypatch):
    table = ticks(45)
    set_limit(monkeypatch, "parts.part_bytes", table.nbytes * 25 // 45)
    dataset = lake.create("d", event_time="at", partition_by="day", row_group_size=10)
    dataset.write(table)
    assert row_groups(dataset) == [[10, 10], [10, 10], [5]]


def test_row_groups_too_large_for_a_slice_do_not_make_it_larger(lake, monkeypatch):
    table = ticks(45)
    set_limit(monkeypatch, "parts.part_bytes", table.nbytes * 25 // 45)
    dataset = lake.create("d", event_time="at", partition_by="day", row_group_size=40)
    dataset.write(table)
    assert row_groups(dataset) == [[25], [20]]


def test_a_stream_of_batches_gets_such_row_groups_too(lake):
    dataset = lake.create("d", event_time="at", partition_by="day", row_group_size=10)
    table = ticks(30)
    dataset.write(pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=7)))
    assert row_groups(dataset) == [[10, 10, 10]]


def test_without_a_timeline_row_groups_are_as_ever(lake):
    dataset = lake.create("d", event_time="at")
    dataset.write(ticks(ROW_GROUP_ROWS + 1))
    assert row_groups(dataset) == [[ROW_GROUP_ROWS, 1]]


def test_row_groups_may_be_larger_than_usual(lake):
    dataset = lake.create("d", event_time="at", partition_by="day", row_group_size=2 * ROW_GROUP_ROWS)
    dataset.write(ticks(ROW_GROUP_ROWS + 1))
    assert row_groups(dataset) == [[ROW_GROUP_ROWS + 1]]


def test_a_table_of_records_is_one_row_group_however_large(tmp_path):
    table = pa.table({"n": pa.array(range(ROW_GROUP_ROWS + 1), pa.int64())})
    write_rows(tmp_path / "f", iter([table, table.slice(0, 3)]), table.schema, Vocabulary())
    with pq.ParquetFile(tmp_path / "f") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(2)] == [ROW_GROUP_ROWS + 1, 3]


@given(st.integers(1, 10_000), st.integers(1, 3_000))
def test_even_row_groups_are_as_few_as_can_be(rows, size):
    each = rows_per_group(rows, size)
    assert 1 <= each <= size
    assert -(-rows // each) == -(-rows // size)
