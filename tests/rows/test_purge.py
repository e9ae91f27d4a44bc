"""A purge removes whole slices of old records for good; chain and offsets stay, and everything says so."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

import floodmark as fm
from floodmark.errors import BadPosition, RecordsPurged, StorageError
from floodmark.storage.memory import MemoryStore
from ledger.worlds import START, blocks, events, keys, numbers, untouched


@pytest.fixture
def lake(memory_lake):
    return memory_lake


@pytest.fixture
def dataset(lake):
    """Offsets 0–2, 3–4, 5–9; events in the minutes 0–2, 10–11, 20–24."""
    made = lake.create("d", event_time="at")
    made.write(events(0, 1, 2), source="k", state="1")
    made.write(events(10, 11), source="k", state="2")
    made.write(events(20, 21, 22, 23, 24))
    return made


def offsets(table):
    return table.column("offset").to_pylist()


@pytest.mark.parametrize(
    ("before", "first"), [(3, 3), (4, 3), (5, 5), (9, 5), (10, 10), (1000, 10), (2, 0), (0, 0), (-5, 0)]
)
def test_slices_that_lie_wholly_before_an_offset_go(dataset, before, first):
    purge = dataset.purge(before=before)
    assert purge.before == purge.records == first
    assert purge.slices == len([end for end in (3, 5, 10) if end <= first])
    assert dataset.count() == 10 - first
    assert offsets(dataset.changes_arrow(since=first - 1)) == list(range(first, 10))
    assert dataset.to_arrow().num_rows == 10 - first


@pytest.mark.parametrize(
    ("before", "first"),
    [
        ("2026-03-01T00:02:00Z", 0),
        ("2026-03-01T00:02:01Z", 3),
        (datetime(2026, 3, 1, 0, 11, tzinfo=UTC), 3),
        (datetime(2026, 3, 1, 0, 12, tzinfo=UTC), 5),
        ("2026-03-01T02:12:00+02:00", 5),
        (date(2026, 3, 2), 10),
        (START, 0),
    ],
)
def test_slices_whose_events_all_lie_before_a_time_go(dataset, before, first):
    assert dataset.purge(before=before).before == first
    assert dataset.count() == 10 - first


def test_slice_kept_for_one_late_event_keeps_what_follows_it(lake):
    dataset = lake.create("late", event_time="at")
    dataset.write(events(1))
    dataset.write(events(0, 99))
    dataset.write(events(2))
    assert dataset.purge(before=START.replace(minute=50)).before == 1


def test_files_are_gone_and_the_chain_is_whole(dataset, lake):
    before, files = blocks(dataset), keys(dataset, "data")
    sizes = [block.event.new_data.size for _, block in before if getattr(block.event, "new_data", None)]
    purge = dataset.purge(before=5)
    assert purge.bytes == sum(sizes[:2])
    assert len(keys(dataset, "data")) == len(files) - 2
    assert blocks(dataset)[:-1] == before
    assert dataset.snapshot().size == sizes[2]
    report = dataset.verify()
    assert (report.ok, report.slices, report.purged_slices) == (True, 1, 2)


def test_log_says_what_was_purged(dataset):
    dataset.purge(before=5)
    assert next(iter(dataset.log())).summary == "purged records before offset 5"


def test_reading_what_is_purged_is_an_error_that_says_from_where_to_read(dataset):
    dataset.purge(before=5)
    for since in (None, -1, 0, 3):
        with pytest.raises(RecordsPurged) as purged:
            dataset.changes_arrow(since=since)
        assert purged.value.purged_before == 5
        assert "since 4" in purged.value.hint
    assert offsets(dataset.changes_arrow(since=4)) == list(range(5, 10))
    assert offsets(dataset.changes_arrow(since=4, until=6)) == [5, 6]
    with pytest.raises(RecordsPurged):
        dataset.changes_arrow(since=1, until=2)
    assert offsets(dataset.changes_arrow(since=2, until=2)) == []


def test_past_before_the_purge_is_purged_too(dataset):
    past = [block_hash for block_hash, _ in blocks(dataset)]
    dataset.purge(before=5)
    for as_of in (0, 3, past[-3], START.replace(year=2025)):
        with pytest.raises(RecordsPurged) as purged:
            dataset.to_arrow(as_of=as_of)
        assert purged.value.purged_before == 5
    assert dataset.to_arrow(as_of=6, columns=["offset"]).column(0).to_pylist() == [5, 6]
    assert dataset.to_arrow(as_of=dataset.head).num_rows == 5


def test_purge_again_is_nothing_to_do(dataset):
    dataset.purge(before=5)
    with untouched(dataset):
        again = dataset.purge(before=4)
    assert (again.before, again.slices, again.records, again.bytes) == (5, 0, 0, 0)


def test_purge_goes_on_from_where_the_last_one_ended(dataset):
    dataset.purge(before=3)
    second = dataset.purge(before=10)
    assert (second.slices, second.records) == (2, 7)
    assert dataset.count() == dataset.to_arrow().num_rows == 0
    assert dataset.snapshot().size == 0
    assert dataset.verify().purged_slices == 3


def test_file_that_a_crash_left_behind_goes_with_the_next_purge(dataset, lake, monkeypatch):
    monkeypatch.setattr("floodmark.rows.purge.remove_purged", lambda *_: None)
    dataset.purge(before=5)
    monkeypatch.undo()
    assert len(keys(dataset, "data")) == 3
    assert dataset.verify().ok
    dataset.purge(before=5)
    assert len(keys(dataset, "data")) == 1


def test_offsets_and_repetitions_go_on_after_a_purge(dataset, lake):
    dataset.purge(before=10)
    reopened = fm.Lake(lake.store)["d"]
    assert reopened.write(events(30)).start == 10
    assert reopened.write(events(0, 1, 2), source="k", state="1").end == 3
    assert reopened.write(events(40), source="k", state="3").start == 11
    assert reopened.count() == 2
    assert lake.sql("select count(*) c from d").to_pylist() == [{"c": 2}]
    assert reopened.verify().ok


def test_watermark_survives_a_purge(dataset):
    before = dataset.watermark
    dataset.purge(before=10)
    assert dataset.watermark == before


def test_dataset_without_event_times_is_purged_by_the_time_of_writing(lake, clock):
    dataset = lake.create("plain")
    dataset.write(numbers(0, 2))
    clock.tick(60)
    dataset.write(numbers(2, 3))
    assert dataset.purge(before=START.replace(second=30)).before == 2


def test_reader_of_an_older_head_is_told_of_the_purge(dataset, lake):
    other = lake["d"]
    assert other.count() == 10
    dataset.purge(before=5)
    assert other.count() == 5


@pytest.mark.parametrize("before", ["long ago", True, 1.5, None])
def test_purge_before_nothing_sensible_is_refused(dataset, before):
    with untouched(dataset), pytest.raises(BadPosition):
        dataset.purge(before=before)


def test_empty_dataset_has_nothing_to_purge(lake):
    dataset = lake.create("empty", schema={"n": "int64"})
    with untouched(dataset):
        assert dataset.purge(before=10).records == 0


class Undeletable(MemoryStore):
    """A store that refuses to delete data, until `refuses` is cleared."""

    refuses = True

    def delete(self, key: str) -> None:
        if self.refuses and "/data/" in f"/{key}":
            raise StorageError(f"{key} cannot be deleted", hint="later")
        super().delete(key)


def test_purge_whose_files_cannot_be_deleted_is_done_and_the_next_one_deletes_them(caplog):
    store = Undeletable()
    dataset = fm.Lake(store).create("d", event_time="at")
    dataset.write(events(0, 1, 2))
    dataset.write(events(10, 11))
    slices = {info.key for info in store.list("") if "/data/" in info.key}
    assert dataset.purge(before=3).records == 3
    assert "could not be deleted" in caplog.text
    assert dataset.count() == 2
    assert slices <= {info.key for info in store.list("")}
    store.refuses = False
    dataset.write(events(20))
    dataset.purge(before=5)
    assert not slices & {info.key for info in store.list("")}
    assert dataset.count() == 1
    assert dataset.verify().ok
