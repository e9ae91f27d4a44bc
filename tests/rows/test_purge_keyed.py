"""A purge of a dataset with a key keeps the current rows: they are carried into new slices, only history goes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import RecordsPurged, StorageError
from floodmark.rows import key_index_loader
from ledger.worlds import Clock, blocks, keys, untouched
from limits import set_limit
from profiles import sample
from rows.current_worlds import lived_in, people
from rows.mortal_store import Dies, MortalStore


def rows(dataset):
    return sorted(dataset.to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.fixture
def dataset(memory_lake):
    return memory_lake.create("d", key="id")


def test_current_rows_stay_and_history_goes(dataset):
    dataset.write(people([1, 2, 3], "a"))
    dataset.delete([2])
    done = dataset.purge(before=4)
    assert (done.before, done.slices, done.records, done.carried) == (4, 2, 4, 2)
    assert rows(dataset) == [{"id": 1, "v": "a1"}, {"id": 3, "v": "a3"}]
    assert dataset.count() == 2
    assert dataset.get([1, 2, 3]).to_pylist() == rows(dataset)
    assert dataset.history([1, 2, 3])["id"].to_pylist() == [1, 3]
    assert len(keys(dataset, "data")) == 1
    report = dataset.verify()
    assert (report.ok, report.slices, report.purged_slices) == (True, 1, 2)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_reads_after_purges_as_before(dataset, seed):
    rng = np.random.default_rng(seed)
    lived_in(dataset, seed, writes=8, keys=12)
    for _ in range(3):
        before = rows(dataset)
        dataset.purge(before=int(rng.integers(1, dataset.last_offset + 2)))
        assert rows(dataset) == before
        assert dataset.count() == len(before)
        assert fm.Lake(dataset.parts.ledger.objects.store)["d"].verify().ok
        key_index_loader.rebuild(dataset.snapshot(), {})
        dataset = fm.Lake(dataset.parts.ledger.objects.store)["d"]
        assert dataset.get(range(40)).num_rows == len(before)
        dataset.fold()
        assert rows(dataset) == before
        dataset.write(people(rng.choice(20, 5, replace=False), f"p{seed}-"))
        dataset.delete(rng.choice(20, 2, replace=False).tolist())


def test_carried_rows_of_many_parts_are_all_kept(dataset, monkeypatch):
    set_limit(monkeypatch, "purge.part_bytes", 1)
    for number in range(4):
        dataset.write(people(range(10 * number, 10 * number + 10), "a"))
    dataset.write(people([0, 11, 22], "b"))
    dataset.delete([33])
    before = rows(dataset)
    done = dataset.purge(before=dataset.last_offset + 1)
    assert done.carried == 39
    assert len(dataset.snapshot().carried) > 1
    assert rows(dataset) == before
    assert fm.Lake(dataset.parts.ledger.objects.store)["d"].verify().ok


def test_slices_without_history_stay_where_they_are(dataset):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([1], "b"))
    dataset.write(people([3, 4], "c"))
    assert dataset.purge(before=6).before == 4
    assert rows(dataset) == [{"id": 1, "v": "b1"}, {"id": 2, "v": "a2"}, {"id": 3, "v": "c3"}, {"id": 4, "v": "c4"}]
    assert dataset.history([3])["offset"].to_pylist() == [4]


def test_plan_is_what_a_purge_does(dataset):
    lived_in(dataset, 3, writes=5, keys=8)
    for before in (5, 20, 10**6):
        with untouched(dataset):
            plan = dataset.plan_purge(before)
        assert dataset.purge(before) == plan


def test_purge_without_history_is_nothing_to_do(dataset):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([3], "a"))
    with untouched(dataset):
        assert dataset.purge(before=3).records == 0
    dataset.write(people([3], "b"))
    assert dataset.purge(before=5).carried == 3
    with untouched(dataset):
        assert dataset.purge(before=dataset.last_offset + 1).slices == 0


@pytest.mark.parametrize("kind", ["upsert", "snapshot", "ledger"])
def test_carried_rows_are_neither_written_again_nor_lost_by_the_next_batch(memory_lake, kind):
    dataset = memory_lake.create(kind, key="id", merge=kind)
    dataset.write(people([1, 2, 3], "a"))
    dataset.write(people([1, 2, 3, 4], "a"))
    if kind != "ledger":
        dataset.write(people([1, 2, 3, 4], "b"))
    before = rows(dataset)
    dataset.purge(before=dataset.last_offset + 1)
    commit = dataset.write(pa.table({"id": [r["id"] for r in before], "v": [r["v"] for r in before]}))
    assert (commit.unchanged, commit.rows) == (4, 0)
    assert rows(dataset) == before


def test_past_without_its_rows_is_refused(dataset):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([1], "b"))
    dataset.write(people([3], "c"))
    past = [block for block, _ in blocks(dataset)][-1]
    dataset.purge(before=4)
    for as_of in (0, 3, 4, 5, past):
        with pytest.raises(RecordsPurged) as purged:
            dataset.to_arrow(as_of=as_of)
        assert "offset 6" in purged.value.hint
    assert dataset.to_arrow(as_of=6).num_rows == 3
    dataset.write(people([1], "d"))
    assert sorted(dataset.to_arrow(as_of=6)["v"].to_pylist()) == ["a2", "b1", "c3"]


def test_log_and_chain_say_what_was_carried(dataset):
    dataset.write(people([1, 2, 3], "a"))
    dataset.delete([2])
    dataset.purge(before=4)
    purged, carried, *_ = (entry.summary for entry in dataset.log())
    assert purged == "purged records before offset 4; 2 current rows of them were carried to new offsets"
    assert carried.startswith("carried 2 current rows from before offset 4, offsets 4–5")
    [one] = dataset.snapshot().carried
    assert (one.before, one.start, one.end) == (4, 4, 6)
    dataset.delete([1])
    dataset.purge(before=7)
    assert list(dataset.log())[1].summary.startswith("carried 1 current row from before offset 7, offsets 7–7")


def died_after(changes):
    """The store of a dataset whose purge died before the change of this number."""
    store = MortalStore()
    dataset = fm.Lake(store, runtime=fm.Runtime(clock=Clock())).create(
        "d", key="id", event_time="at", partition_by="day"
    )
    for number in range(4):
        batch = people(range(number, number + 3), f"{number}-")
        dataset.write(batch.append_column("at", pa.array([1_000_000_000] * 3, pa.timestamp("s", "UTC"))))
    dataset.delete([0])
    store.left = changes
    with suppress(Dies):
        dataset.purge(before=dataset.last_offset + 1)
    store.changes, store.left = store.left, 10**9
    return store


@pytest.mark.slow
def test_crash_at_any_change_keeps_all_rows_and_another_purge_completes():
    enough = 10**9
    store = died_after(enough)
    expected, changes = rows(fm.Lake(store)["d"]), enough - store.changes
    assert len(expected) == 5
    assert changes > 8
    for number in sample(range(changes), 10):
        store = died_after(number)
        dataset = fm.Lake(store)["d"]
        assert rows(dataset) == expected, number
        dataset.purge(before=dataset.last_offset + 1)
        assert rows(dataset) == expected, number
        assert dataset.history([0]).num_rows == 0
        dataset.update_timeline()
        assert dataset.collect_garbage() is not None
        assert dataset.verify().problems == (), number


def test_purge_whose_index_cannot_be_extended_is_done(dataset, monkeypatch):
    dataset.write(people([1, 2], "a"))
    dataset.write(people([1], "b"))

    def full(*_args):
        raise StorageError("no space", hint="later")

    with monkeypatch.context() as patch:
        patch.setattr("floodmark.rows.purge.store_copy", full)
        dataset.purge(before=4)
    assert rows(dataset) == [{"id": 1, "v": "b1"}, {"id": 2, "v": "a2"}]
    assert dataset.verify().ok
