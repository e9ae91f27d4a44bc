"""The past of a dataset with a key is exact, at every single record, folded or not."""

from __future__ import annotations

from datetime import timedelta

import pytest

import floodmark as fm
from floodmark.errors import RecordsPurged
from floodmark.rows.fold import FoldRule
from floodmark.storage.memory import MemoryStore
from ledger.worlds import START, Clock, InterleavingStore
from rows.current_worlds import lived_in, people, rows


@pytest.fixture
def dataset(clock):
    lake = fm.Lake(MemoryStore(), runtime=fm.Runtime(clock=clock, fold_at=None))
    return lake.create("p", key=["id"], merge="upsert")


def check_every_past(dataset):
    for offset in range(-1, dataset.last_offset + 1):
        assert dataset.to_arrow(as_of=offset).to_pylist() == rows(dataset, offset + 1), offset


@pytest.mark.slow
def test_every_past_is_what_a_replay_of_the_records_gives(dataset):
    check_every_past(lived_in(dataset, seed=7, writes=6, keys=12))


def test_row_is_absent_between_its_old_and_its_new_value(dataset):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([1], "b"))  # offset 2 takes a1 away, offset 3 brings b1
    assert dataset.to_arrow(as_of=2).to_pylist() == [{"id": 2, "v": "a2"}]
    assert dataset.to_arrow(as_of=3).to_pylist() == [{"id": 2, "v": "a2"}, {"id": 1, "v": "b1"}]


def test_deleted_row_is_there_in_the_past_and_by_block_and_time_too(dataset, clock):
    first = dataset.write(people([1, 2], "a"))
    clock.tick(60)
    dataset.delete([2])
    assert dataset.count() == 1
    for point in (1, first.block, first.block.short, START + timedelta(seconds=30)):
        assert dataset.to_arrow(as_of=point).num_rows == 2


@pytest.mark.slow
def test_every_past_is_the_same_after_folds(dataset):
    lived_in(dataset, seed=8, writes=4, keys=12)
    folded_at = dataset.last_offset
    assert dataset.fold().dead > 0
    check_every_past(dataset)
    lived_in(dataset, seed=9, writes=3, keys=12)
    assert dataset.last_offset > folded_at
    check_every_past(dataset)  # after the fold, before it, and of slices that came since
    dataset.fold()
    check_every_past(dataset)


def test_fold_of_older_slices_alone_does_not_serve_the_past_before_it(dataset, monkeypatch):
    monkeypatch.setattr(FoldRule, "is_small", lambda self, rows, size: rows < 50)
    dataset.write(people(range(10), "small"))
    dataset.write(people(range(100, 200), "large"))
    dataset.write(people([0], "later"))
    assert dataset.fold().files > 0
    assert any(file.end == 10 and file.absent for file in dataset.scan().selection.files)
    for offset in (9, 50, 109, 110, 111):
        assert dataset.to_arrow(as_of=offset).to_pylist() == rows(dataset, offset + 1), offset


def test_past_before_a_purge_is_purged_and_after_it_is_not(dataset):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([1], "b"))
    dataset.write(people([3], "c"))
    dataset.fold()
    dataset.purge(before=2)
    for as_of in (1, 3):  # the row a2 of that time has another offset now
        with pytest.raises(RecordsPurged):
            dataset.to_arrow(as_of=as_of)
    everything = [{"id": 1, "v": "b1"}, {"id": 3, "v": "c3"}, {"id": 2, "v": "a2"}]
    assert dataset.to_arrow(as_of=5).to_pylist() == dataset.to_arrow().to_pylist() == everything


def test_reader_of_an_older_snapshot_does_not_use_a_newer_fold():
    """The writer folds after the reader has found the head and before it looks for folded files."""
    lake = fm.Lake(InterleavingStore(), runtime=fm.Runtime(clock=Clock(), fold_at=None))
    writer = lake.create("p", key=["id"], merge="upsert")
    writer.write(people(range(5), "a"))
    writer.write(people([7], "a"))
    expected = writer.to_arrow()

    def fold_meanwhile():
        writer.write(people([0, 1, 2], "b"))
        assert writer.fold().files == 1

    lake.store.at("before get", fold_meanwhile, "/info/fold/")
    assert lake["p"].to_arrow().equals(expected)
    assert lake["p"].to_arrow().to_pylist() == rows(writer) != expected.to_pylist()
