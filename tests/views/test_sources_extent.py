"""How far a source is read whose computed columns are not all there: compared with looking at every state in turn."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from derive.derived_worlds import World, row
from floodmark import Lake, Runtime
from floodmark.columns.manifest import ColumnManifest, Fragment
from floodmark.columns.snapshot import ColumnCoverage, find_complete_states, find_readable_end
from floodmark.dataset import Dataset
from floodmark.derive.inputs import snapshot_dataset
from floodmark.rows.key_entries import NO_ROW
from limits import set_limit

ROWS = 4


def computed_of(*done: set[int]) -> ColumnCoverage:
    """Columns of which the values at these offsets are there."""
    manifests = []
    for number, offsets in enumerate(done):
        fragments = [
            Fragment(n, done=BitMap(o - n * ROWS for o in offsets if o // ROWS == n))
            for n in sorted({o // ROWS for o in offsets})
        ]
        manifests.append(ColumnManifest(number, "", tuple(fragments)))
    return ColumnCoverage(ROWS, tuple(manifests))


def naive_extent(source: Dataset, done: set[int]) -> int:
    """Every state since the purge, newest first, and the first one all of whose rows are done."""
    snapshot = source.snapshot()
    ends = [0, *snapshot.all_slices.column("end").to_pylist()]
    for end in reversed(ends):
        if end < snapshot.purged_before:
            break
        if end == snapshot.purged_before:
            return end
        alive = source.to_batches(["offset"], as_of=end - 1).read_all().column(0).to_pylist()
        if done.issuperset(alive):
            return end
    raise AssertionError("there is no such state")


def _history(lake: Lake, draw: random.Random, key: str | None) -> Dataset:
    source = lake.create("s", key=key, schema={"id": "int64", "v": "int64"})
    for n in range(6):
        ids = sorted(draw.sample(range(8), draw.randint(1, 4)))
        source.write(pa.table({"id": ids, "v": [100 * n + i for i in ids]}))
        if key is not None and draw.random() < 0.4:
            source.delete(draw.sample(range(8), 2))
    return source


@pytest.mark.slow
@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("seed", range(4))
def test_extent_is_the_newest_state_all_of_whose_rows_are_computed(tmp_path: Path, seed: int, key: str | None):
    draw = random.Random(seed)
    source = _history(Lake(tmp_path / "lake", runtime=Runtime(fold_at=None)), draw, key)
    if seed == 3 and key is None:
        source.purge(4)
    input_snapshot = snapshot_dataset(source)
    everyone = range(input_snapshot.end)
    found = set()
    for share in (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 1.0) * 2:
        one, two = ({o for o in everyone if draw.random() < share} for _ in range(2))
        expected = naive_extent(source, one & two)
        assert find_readable_end(input_snapshot, computed_of(one, two)) == expected
        found.add(expected)
    assert len(found) > 2


def test_rows_that_died_before_they_were_computed_hold_nothing_up(tmp_path: Path):
    source = Lake(tmp_path / "lake").create("s", key="id")
    source.write(pa.table({"id": [1, 2]}))
    source.write(pa.table({"id": [3]}))
    source.delete([3])
    input_snapshot = snapshot_dataset(source)
    assert find_readable_end(input_snapshot, computed_of({0, 1})) == input_snapshot.end
    assert find_readable_end(input_snapshot, computed_of({0})) == 0


@pytest.mark.slow
def test_part_of_a_transaction_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_limit(monkeypatch, "derive.slice_bytes", 300)
    world = World(Lake(tmp_path / "lake"), tmp_path / "results", ("k",))
    world.derive([row(1, "a", 1)], [1], world.moved_input())
    written = world.derive([row(k, "a", k + 1) for k in range(40)], range(40)).commit
    assert written.slices > 3
    input_snapshot = snapshot_dataset(world.output)
    for missing in (written.end - 1, written.start + 20):
        done = set(range(input_snapshot.end)) - {missing}
        assert find_readable_end(input_snapshot, computed_of(done)) == written.start
    assert find_readable_end(input_snapshot, computed_of(set(range(input_snapshot.end)))) == written.end


@dataclass(frozen=True)
class Life:
    born: int
    ended_by: int


@given(
    st.sets(st.integers(1, 30), min_size=1),
    st.lists(st.tuples(st.integers(0, 29), st.one_of(st.just(NO_ROW), st.integers(0, 30)))),
)
def test_a_state_is_complete_when_no_waiting_record_is_current_in_it(ends: set[int], drawn: list[tuple[int, int]]):
    lives = [Life(born, by if by == NO_ROW else max(by, born)) for born, by in drawn]
    in_order = sorted(ends)
    expected = [
        not any(life.born < end and (life.ended_by == NO_ROW or life.ended_by >= end) for life in lives)
        for end in in_order
    ]
    born = np.array([life.born for life in lives], np.int64)
    ended = np.array([life.ended_by for life in lives], np.int64)
    waiting = [(born[:2], ended[:2]), (born[2:], ended[2:])]
    assert find_complete_states(np.array(in_order), waiting).tolist() == expected
