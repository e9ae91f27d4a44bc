"""The watermark moves with data or by itself, never back, and an event without data carries everything forward."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

import floodmark as fm
from floodmark.errors import BadData, BadPosition
from floodmark.storage.memory import CountingStore, MemoryStore
from ledger.worlds import START, data_events, events, numbers, untouched


def minute(n):
    return START + timedelta(minutes=n)


@pytest.fixture
def dataset(lake):
    return lake.create("d", event_time="at")


def test_watermark_follows_the_newest_event(dataset):
    assert dataset.watermark is None
    assert dataset.write(events(3, 9, 4)).watermark == minute(9)
    assert dataset.write(events(12, 11)).watermark == minute(12)
    assert dataset.watermark == minute(12)


def test_late_data_leaves_the_watermark_where_it_is(dataset):
    dataset.write(events(9))
    assert dataset.write(events(2)).watermark == minute(9)
    assert dataset.verify().ok


def test_watermark_can_be_moved_without_data(dataset):
    commit = dataset.advance_watermark(minute(5))
    assert dataset.watermark == commit.watermark == minute(5)
    assert (commit.rows, commit.slices, commit.size) == (0, 0, 0)
    assert dataset.verify().ok


def test_event_that_only_moves_the_watermark_carries_the_rest(dataset):
    dataset.write(events(1, 2, 3), source="kafka", state="7")
    dataset.advance_watermark(minute(10))
    first, last = data_events(dataset)
    assert first.prev_offset is None
    assert (last.prev_offset, last.new_data) == (2, None)
    assert last.new_source_state == first.new_source_state
    assert last.prev_checkpoint is None
    assert dataset.write(events(4)).start == 3


def test_checkpoint_is_carried_through_events_without_one(dataset):
    from dataclasses import replace

    from floodmark.chain.events import Checkpoint
    from floodmark.chain.ids import Multihash
    from floodmark.ledger.commit import empty_event
    from floodmark.ledger.create import commit_events

    dataset.write(events(1))
    objects = dataset.snapshot().objects
    name = Multihash.sha3_256(b"state")
    objects.store.put_if_absent(objects.checkpoint_key(name), b"state")

    def with_checkpoint(snapshot):
        return [replace(empty_event(snapshot.state), new_checkpoint=Checkpoint(physical_hash=name, size=5))]

    commit_events("d", dataset.snapshot, with_checkpoint, fm.Runtime(clock=lambda: 2**62))
    dataset.advance_watermark(minute(10))
    dataset.write(events(4))
    assert [e.prev_checkpoint for e in data_events(dataset)] == [None, None, name, name]
    report = dataset.verify()
    assert (report.ok, report.checkpoints) == (True, 1)


def test_watermark_that_is_there_already_writes_no_block(dataset):
    dataset.advance_watermark(minute(5))
    with untouched(dataset):
        assert dataset.advance_watermark(minute(5)) is None


def test_watermark_never_goes_back(dataset):
    dataset.write(events(5))
    with untouched(dataset), pytest.raises(BadData, match="'d'") as refused:
        dataset.advance_watermark(minute(4))
    assert "later" in refused.value.hint


@pytest.mark.parametrize(
    "given",
    [
        "2026-04-01",
        "2026-04-01T00:00:00Z",
        "2026-04-01T02:00:00+02:00",
        date(2026, 4, 1),
        datetime(2026, 4, 1, tzinfo=UTC),
    ],
)
def test_watermark_can_be_given_as_text_or_date(dataset, given):
    dataset.advance_watermark(given)
    assert dataset.watermark == datetime(2026, 4, 1, tzinfo=UTC)


@pytest.mark.parametrize("given", ["soon", "", None, 5])
def test_watermark_that_is_no_time_is_refused(dataset, given):
    with untouched(dataset), pytest.raises(BadPosition):
        dataset.advance_watermark(given)


@pytest.fixture(scope="module")
def year_of_empty_events():
    """A source that said a thousand times that there was nothing new, and twelve times that there was."""
    store = CountingStore(MemoryStore())
    lake = fm.Lake(store)
    dataset = lake.create("iot", event_time="at")
    for i in range(1000):
        if i % 84 == 0:
            dataset.write(events(60 * i))
        else:
            dataset.advance_watermark(minute(60 * i))
    return store


@pytest.mark.slow
def test_next_commit_is_prepared_from_the_newest_blocks_alone(year_of_empty_events):
    store = year_of_empty_events
    dataset = fm.Lake(store)["iot"]
    before, keys_before = store.counts, len(store.keys_read)
    snapshot = dataset.snapshot()
    assert snapshot.next_offset == 12
    counts = store.counts - before
    assert counts.reads <= 4
    assert counts.lists == 0
    assert not any("/data/" in key for key in store.keys_read[keys_before:])


def test_offset_after_a_year_of_empty_events_comes_from_the_newest_block(year_of_empty_events):
    dataset = fm.Lake(year_of_empty_events)["iot"]
    newest = dataset.snapshot().head_block.event
    assert (newest.new_data, newest.prev_offset) == (None, 11)
    assert dataset.write(events(60 * 1000)).start == 12


def test_writing_after_a_year_of_empty_events_reads_no_more_than_after_a_day(year_of_empty_events):
    store = CountingStore(MemoryStore())
    fresh = fm.Lake(store).create("iot", event_time="at")
    fresh.write(events(0))
    spent = {}
    for kind, counted in (("day", store), ("year", year_of_empty_events)):
        dataset = fm.Lake(counted)["iot"]
        before = counted.counts
        dataset.write(events(10**6))
        spent[kind] = (counted.counts - before).reads
    assert spent["year"] <= spent["day"] + 8  # segments that are merged at most every eighth time


def test_watermark_without_an_event_time_is_the_time_of_writing(lake, clock):
    dataset = lake.create("plain")
    clock.tick(7)
    dataset.write(numbers(0, 1))
    assert dataset.watermark == START + timedelta(seconds=7)
