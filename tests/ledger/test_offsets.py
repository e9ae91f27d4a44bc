"""Records are numbered 0, 1, 2, … in the order of their commits; a write is one step, however many files it has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark.chain.events import AddData, SetDataSchema
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import blocks, data_events, events, numbers
from limits import set_limit


@pytest.fixture
def small_parts(monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 80)  # ten numbers


def offsets(dataset):
    return dataset.changes_arrow().column("offset").to_pylist()


def test_first_record_has_offset_0_and_blocks_hold_closed_intervals(lake):
    dataset = lake.create("d")
    assert dataset.last_offset is None
    first, second = dataset.write(numbers(0, 3)), dataset.write(numbers(3, 4))
    assert (first.start, first.end, second.start, second.end) == (0, 3, 3, 4)
    intervals = [(e.new_data.offset_interval.start, e.new_data.offset_interval.end) for e in data_events(dataset)]
    assert intervals == [(0, 2), (3, 3)]
    assert [e.prev_offset for e in data_events(dataset)] == [None, 2]
    assert dataset.last_offset == 3


def test_offsets_are_dense_over_many_commits(lake):
    dataset = lake.create("d")
    sizes = [1, 7, 2, 30, 1, 1, 4]
    for size in sizes:
        dataset.write(numbers(0, size))
    assert offsets(dataset) == list(range(sum(sizes)))
    assert dataset.count() == sum(sizes)


def test_first_write_sets_the_schema_in_the_same_commit(lake):
    dataset = lake.create("d")
    before = len(blocks(dataset))
    dataset.write(numbers(0, 1))
    new = [block.event for _, block in blocks(dataset)[before:]]
    assert [type(event) for event in new] == [SetDataSchema, AddData]
    assert len({block.system_time for _, block in blocks(dataset)[before:]}) == 1


def test_large_write_is_several_slices_and_one_move_of_the_head(clock, small_parts):
    import floodmark as fm

    store = CountingStore(MemoryStore())
    dataset = fm.Lake(store, runtime=fm.Runtime(clock=clock)).create("d", schema={"n": "int64"})
    before = store.counts
    commit = dataset.write(numbers(0, 35))
    assert (store.counts - before).swaps == 1
    assert (commit.slices, commit.rows, commit.start) == (4, 35, 0)
    slices = [e.new_data for e in data_events(dataset)]
    assert [s.rows for s in slices] == [10, 10, 10, 5]
    assert commit.size == sum(s.size for s in slices)
    assert commit.block == dataset.head
    assert dataset.to_arrow().column("n").to_pylist() == list(range(35))
    assert offsets(dataset) == list(range(35))
    assert dataset.verify().ok


def test_blocks_of_one_write_know_their_place_and_only_the_last_brings_the_source_state(lake, small_parts):
    dataset = lake.create("d")
    dataset.write(numbers(0, 10), source="a", state="1")
    dataset.write(numbers(0, 25), source="b", state="2")
    notes = [(e.extra.parsed["floodmark.dev/commit"], e.new_source_state.value) for e in data_events(dataset)]
    assert notes == [
        ({"part": 0, "parts": 1}, "1"),
        ({"part": 0, "parts": 3}, "1"),
        ({"part": 1, "parts": 3}, "1"),
        ({"part": 2, "parts": 3}, "2"),
    ]


def test_records_of_a_slice_are_in_the_order_of_their_events(lake):
    dataset = lake.create("d", event_time="at")
    dataset.write(events(5, 1, 3))
    dataset.write(events(2, 0))
    assert dataset.to_arrow().column("i").to_pylist() == [1, 2, 0, 1, 0]


def test_events_of_one_moment_keep_the_order_they_came_in(lake):
    dataset = lake.create("d", event_time="at")
    minutes = [i % 3 for i in range(1000)][::-1]
    dataset.write(events(*minutes))
    expected = sorted(range(1000), key=lambda i: minutes[i])  # Python's sort is stable
    assert dataset.to_arrow().column("i").to_pylist() == expected


@pytest.mark.parametrize(
    "column", [pa.array([20, 10, 15], pa.date32()), pa.array([3, 1, 2], pa.timestamp("ms"))], ids=lambda c: str(c.type)
)
def test_event_times_of_every_type_are_sorted(lake, column):
    dataset = lake.create("d", event_time="at")
    dataset.write(pa.table({"at": column, "i": [0, 1, 2]}))
    assert dataset.to_arrow().column("i").to_pylist() == [1, 2, 0]


def test_system_time_is_whole_milliseconds_and_never_goes_back(lake, clock):
    dataset = lake.create("d")
    clock.now += 1_234_567
    first = dataset.write(numbers(0, 1))
    clock.now -= 3600 * 10**9
    second = dataset.write(numbers(0, 1))
    assert first.system_time.microsecond % 1000 == 0
    assert second.system_time == first.system_time
    times = [block.system_time for _, block in blocks(dataset)]
    assert times == sorted(times)
    assert dataset.verify().ok
