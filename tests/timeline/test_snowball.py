"""The snowball of the seed: commit after commit into one row group stays bounded in rows, bytes, pieces and reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.storage.memory import CountingStore, Counts, MemoryStore
from profiles import IN_FULL
from timeline.layouts import assert_sound
from timeline.oracle import assert_right
from timeline.timeline_worlds import BEGIN, column_of

NAME = "ticks"
ROW_GROUP = 400
GROUPS = 10
LATE = 4
NARROW = 0.02
SECOND = 1_000_000


def rows(seconds: list[float], first: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + len(seconds)), pa.int64()),
            "at": column_of([BEGIN + int(s * SECOND) for s in seconds], "us utc"),
            "v": pa.array([float(first + n) for n in range(len(seconds))]),
        }
    )


@dataclass(frozen=True)
class Moment:
    """What one commit cost, and what the timeline was like after it."""

    cost: Counts
    written: int  # bytes of the timeline alone
    merged: int  # rows that were rewritten
    largest: int  # rows of the largest row group
    pieces: int
    waiting: int  # rows
    size: int  # bytes of all pieces


def snowball(commits: int, width: float, late_merge: str) -> tuple[Dataset, list[Moment]]:
    """Ten row groups in order, then so many commits of few late rows, all inside the fourth.

    The rows of one commit lie within a stretch as wide as this part of that row group.
    """
    store = CountingStore(MemoryStore())
    lake = fm.Lake(store)
    given = {"event_time": "at", "partition_by": "day", "row_group_size": ROW_GROUP}
    dataset = lake.create(NAME, late_merge=late_merge, **given)
    dataset.write(rows([float(n) for n in range(GROUPS * ROW_GROUP)], 0))
    chance, moments = random.Random(7), []
    for number in range(commits):
        low = 3 * ROW_GROUP + 10 + chance.random() * (1 - width) * (ROW_GROUP - 20)
        seconds = [low + chance.random() * width * (ROW_GROUP - 20) for _ in range(LATE)]
        before, root = store.counts, dataset.timeline_root()
        dataset.write(rows(seconds, 10_000 + number * LATE))
        cost = store.counts - before
        moments.append(_moment(dataset, cost, root.bytes_written))
    return dataset, moments


def _moment(dataset: Dataset, cost: Counts, written_before: int) -> Moment:
    seen = dataset.timeline_pieces()
    pieces = [piece for partition in seen.partitions for piece in partition.pieces]
    last = seen.root.last
    assert last is not None
    return Moment(
        cost=cost,
        written=seen.root.bytes_written - written_before,
        merged=last.merged_rows,
        largest=max(piece.group_rows for piece in pieces),
        pieces=len(pieces),
        waiting=sum(run.rows for partition in seen.partitions for run in partition.waiting),
        size=sum(piece.size for piece in pieces),
    )


def assert_bounded(moments: list[Moment]) -> None:
    """No commit costs much, and the timeline never has much lying about."""
    assert max(m.largest for m in moments) <= 1.5 * ROW_GROUP
    rows_there = GROUPS * ROW_GROUP + LATE * len(moments)
    assert max(m.pieces for m in moments) <= 4 * rows_there / ROW_GROUP + 64 + 24
    assert max(m.waiting for m in moments) <= 2 * ROW_GROUP
    assert max(m.merged for m in moments) <= LATE * (1.5 * ROW_GROUP + 1), "more than a row group for each late row"


def assert_level(moments: list[Moment], window: int) -> None:
    """The last commits cost about what early ones did. The ledger folds its own slices now and then: not counted."""
    early, late = moments[window : 2 * window], moments[-window:]
    kinds: dict[str, tuple[Callable[[list[int]], float], Callable[[Moment], int]]] = {
        "bytes of the timeline": (mean, lambda m: m.written),
        "rows rewritten": (mean, lambda m: m.merged),
        "bytes put": (median, lambda m: m.cost.bytes_put),
        "bytes read": (median, lambda m: m.cost.bytes_read),
        "reads": (median, lambda m: m.cost.reads),
        "puts": (median, lambda m: m.cost.puts),
    }
    for name, (middle, cost) in kinds.items():
        first, last = middle([cost(m) for m in early]), middle([cost(m) for m in late])
        assert last <= 1.6 * first + 1, f"{name}: {first:.0f} a commit early, {last:.0f} late"


COMMITS = 1000 if IN_FULL else 90
CASES = [("auto", NARROW), ("always", NARROW), ("auto", 1.0), ("always", 1.0)]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("late_merge", "width"), CASES if IN_FULL else CASES[:2])
def test_commits_into_one_row_group_stay_bounded(late_merge, width):
    dataset, moments = snowball(COMMITS, width, late_merge)
    assert_right(dataset)
    assert_sound(dataset)
    assert_bounded(moments)
    if width == NARROW:  # what is spread over one row group is spread over more of them when that has grown
        assert_level(moments, window=COMMITS // 3 if COMMITS < 600 else 200)


@pytest.mark.slow
def test_waiting_costs_a_fraction_of_merging_at_once():
    """What `auto` is for: it rewrites a fraction of the rows that one merge per commit rewrites."""
    merged = {mode: sum(m.merged for m in snowball(40, 1.0, mode)[1]) for mode in ("auto", "always")}
    assert merged["always"] > 40 * ROW_GROUP / 4
    assert 3 * merged["auto"] < merged["always"]
