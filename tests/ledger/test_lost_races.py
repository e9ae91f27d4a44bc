"""A write that loses a race takes the next offsets; its rows are neither lost nor read or hashed twice."""

from __future__ import annotations

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import CommitConflict, CommitUnknown, ReadOnlyDataset, SwapUnknown
from floodmark.storage import logical_hash, parquet
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from ledger.worlds import InterleavingFolder, events, numbers, racing
from limits import set_limit


@pytest.fixture
def lake(tmp_path, clock):
    return fm.Lake(InterleavingFolder(tmp_path / "lake"), runtime=fm.Runtime(clock=clock))


@pytest.fixture(params=["folder", "memory"])
def racing_lake(request, tmp_path, clock):
    store = racing(LocalStore)(tmp_path / "lake") if request.param == "folder" else racing(MemoryStore)()
    return fm.Lake(store, runtime=fm.Runtime(clock=clock, sleep=lambda _: None))


def test_loser_takes_the_next_offsets(lake):
    dataset = lake.create("d")
    dataset.write(numbers(0, 2))
    lake.store.at("before turn", lambda: lake["d"].write(numbers(2, 5)))
    commit = dataset.write(numbers(5, 9))
    assert (commit.start, commit.end) == (5, 9)
    assert dataset.to_arrow().column("n").to_pylist() == list(range(9))
    assert dataset.verify().ok


def test_loser_does_not_hash_its_data_again(lake, monkeypatch):
    dataset = lake.create("d", event_time="at")
    dataset.write(events(1))
    hashed = []
    real = logical_hash.column_digests
    monkeypatch.setattr(parquet, "column_digests", lambda column: hashed.append(column.type) or real(column))
    lake.store.at("before turn", lambda: lake["d"].advance_watermark("2027-01-01"))
    dataset.write(events(3, 2))
    system = [pa.int64(), pa.int32(), pa.timestamp("ms", "UTC")]
    assert hashed == [*system, pa.timestamp("us", "UTC"), pa.int64(), *system]
    assert dataset.to_arrow().column("i").to_pylist() == [0, 1, 0]
    assert dataset.verify().ok


@pytest.mark.parametrize("rivals", [1, 3])
def test_head_that_moves_under_the_swap_is_tried_again(racing_lake, rivals):
    dataset = racing_lake.create("d")
    dataset.write(numbers(0, 2))
    racing_lake.store.rivals = tuple(
        lambda i=i: racing_lake["d"].write(numbers(10 * i, 10 * i + 1)) for i in range(1, rivals + 1)
    )
    commit = dataset.write(numbers(2, 4))
    assert commit.start == 2 + rivals
    assert dataset.to_arrow().column("n").to_pylist() == [0, 1, *[10 * i for i in range(1, rivals + 1)], 2, 3]
    assert dataset.verify().ok


def test_write_of_many_slices_survives_a_head_that_moves_under_the_swap(racing_lake, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 80)
    dataset = racing_lake.create("d")
    dataset.write(numbers(0, 2))
    racing_lake.store.rivals = (lambda: racing_lake["d"].write(numbers(2, 3)),)
    dataset.write(numbers(3, 28))
    assert dataset.to_arrow().column("n").to_pylist() == list(range(28))
    assert dataset.verify().ok


def test_rival_with_the_same_pair_makes_the_loser_s_write_a_repetition(racing_lake):
    dataset = racing_lake.create("d")
    dataset.write(numbers(0, 2))
    won = []
    racing_lake.store.rivals = (lambda: won.append(racing_lake["d"].write(numbers(2, 4), source="k", state="1")),)
    assert dataset.write(numbers(2, 4), source="k", state="1") == won[0]
    assert dataset.count() == 4


def test_watermark_is_planned_again_after_a_lost_race(racing_lake):
    dataset = racing_lake.create("d")
    dataset.write(numbers(0, 2))
    racing_lake.store.rivals = (lambda: racing_lake["d"].write(numbers(2, 3)),)
    dataset.advance_watermark("2027-01-01")
    assert dataset.last_offset == 2
    assert dataset.verify().ok


@pytest.mark.slow
def test_race_that_is_lost_for_good_did_not_happen(racing_lake):
    dataset = racing_lake.create("d", schema={"n": "int64"})
    rival = racing_lake["d"]
    racing_lake.store.rivals = tuple(lambda i=i: rival.advance_watermark(f"{2026 + i}-01-01") for i in range(1, 60))
    with pytest.raises(CommitConflict, match="nothing was written"):
        dataset.write(numbers(0, 2))
    racing_lake.store.rivals = ()
    assert dataset.count() == 0
    assert dataset.verify().ok


class LosesAnswers(MemoryStore):
    """A store whose next answers to a swap get lost, after it happened or before."""

    lost: tuple = ()

    def compare_and_swap(self, key, expected, new):
        if expected not in (None, new) and self.lost:
            (happens, *rest) = self.lost
            self.lost = tuple(rest)
            if happens:
                super().compare_and_swap(key, expected, new)
            raise SwapUnknown("the line went dead", key=key, url=self.url)
        return super().compare_and_swap(key, expected, new)


@pytest.mark.parametrize("lost", [(True,), (False,), (False, False), (False, True)])
def test_lost_answer_is_settled_by_reading_the_chain(lost):
    store = LosesAnswers()
    dataset = fm.Lake(store).create("d", schema={"n": "int64"})
    store.lost = lost
    assert dataset.write(numbers(0, 3)).start == 0
    assert dataset.count() == 3
    assert dataset.verify().ok


def test_answer_that_stays_away_is_said_to_be_unknown():
    store = LosesAnswers()
    dataset = fm.Lake(store).create("d", schema={"n": "int64"})
    store.lost = (False,) * 100
    with pytest.raises(CommitUnknown, match="may or may not") as unknown:
        dataset.write(numbers(0, 3), source="k", state="1")
    assert "source=" in unknown.value.hint
    store.lost = ()
    assert dataset.write(numbers(0, 3), source="k", state="1").start == 0
    assert dataset.count() == 3


def test_write_to_a_dataset_that_is_dropped_meanwhile_fails(lake):
    dataset = lake.create("d", schema={"n": "int64"})
    lake.store.at("before turn", lambda: lake.drop("d"))
    with pytest.raises(CommitConflict, match="dropped"):
        dataset.write(numbers(0, 3))
    assert lake.datasets() == []


def test_derived_dataset_takes_no_outside_data(lake):
    from dataclasses import replace

    from floodmark.chain.events import DatasetKind

    dataset = lake.create("d", schema={"n": "int64"})
    snapshot = dataset.snapshot()
    snapshot.state = replace(snapshot.state, dataset_kind=DatasetKind.DERIVATIVE)
    with pytest.raises(ReadOnlyDataset, match="'d'"):
        dataset.write(numbers(0, 3))
