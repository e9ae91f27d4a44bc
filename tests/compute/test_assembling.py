"""Checkpoints in any order become one file: overlaps trimmed, old values kept, gaps refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.compute.tasks import World, world

import floodmark as fm
from floodmark.compute.assemble import AssembleTask, assemble
from floodmark.compute.batches import ERROR, ERROR_TYPE, ROWADDR
from floodmark.compute.column_file import read_values
from floodmark.compute.errors import CheckpointCoverageError
from floodmark.compute.keys import range_key
from floodmark.compute.plan import Target

ROWS = 12
SKIPPED = {"type": "ValueError", "message": "no", "traceback": "", "attempts": 1}


@fm.udf(returns="int64", version="1")
def twice(n: pa.Array) -> pa.Array:
    return pc.multiply(n, 2)


def put(found: World, start: int, end: int, rows: dict[int, int | None], failed: tuple[int, ...] = ()) -> None:
    """A checkpoint with these values at these addresses."""
    at = sorted(rows)
    batch = pa.RecordBatch.from_pydict(
        {ROWADDR: at, "y": [rows[a] for a in at], ERROR: [SKIPPED if a in failed else None for a in at]},
        schema=pa.schema([(ROWADDR, pa.int64()), ("y", pa.int64()), (ERROR, ERROR_TYPE)]),
    )
    found.dataset.checkpoints.put(range_key(found.work.prefix.text, 0, start, end), batch)


def task(rows: BitMap, target: Target | None = None, visible: BitMap | None = None) -> AssembleTask:
    return AssembleTask(0, target or Target(0, ROWS, ()), rows, BitMap(), BitMap(range(ROWS)), visible or BitMap())


def values(found: World, made: object) -> list[int | None]:
    segment = made.written.segment  # type: ignore[attr-defined]
    field = found.pinned.catalog.column("y").field
    answer: list[int | None] = read_values(found.work.objects, segment, field, segment.start, segment.end).to_pylist()
    return answer


def test_rows_that_are_dead_or_filtered_are_null(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 6, 12, {7: 14, 11: 22})
    put(found, 0, 6, {0: 0, 2: 4})
    made = assemble(found.work, task(BitMap([0, 2, 7, 11])))
    assert values(found, made) == [0, None, 4, None, None, None, None, 14, None, None, None, 22]


def test_a_gap_is_refused(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 2: 4})
    with pytest.raises(CheckpointCoverageError, match="between records 3 and 3"):
        assemble(found.work, task(BitMap([0, 2, 3])))


def test_rows_of_a_checkpoint_that_are_not_asked_for_stay_out(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 2: 4, 5: 10})
    assert values(found, assemble(found.work, task(BitMap([2]))))[:6] == [None, None, 4, None, None, None]


def test_a_value_found_by_a_later_try_wins_over_an_error(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 1: None, 2: None}, failed=(1, 2))
    put(found, 0, 2, {1: 2})
    put(found, 1, 3, {1: None, 2: None}, failed=(1, 2))
    made = assemble(found.work, task(BitMap([0, 1, 2])))
    assert values(found, made)[:3] == [0, 2, None]
    assert made.written.errors.column("offset").to_pylist() == [2]


def test_old_values_stay_and_changed_ones_are_named(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 12, {n: n for n in range(ROWS)})
    every = BitMap(range(ROWS))
    old = assemble(found.work, task(every)).written.segment
    for key in found.dataset.checkpoints.list_keys():
        found.dataset.checkpoints.delete(key)
    put(found, 0, 12, {1: 1, 3: -3, 5: None})
    made = assemble(found.work, task(BitMap([1, 3, 5]), Target(0, ROWS, (old,)), every))
    assert values(found, made) == [0, 1, 2, -3, 4, None, 6, 7, 8, 9, 10, 11]
    assert sorted(made.changed) == [3, 5]


def test_a_finished_file_is_taken_as_it_is(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 12, {n: n for n in range(ROWS)})
    every = BitMap(range(ROWS))
    first = assemble(found.work, task(every))
    files = [info.modified for info in found.work.objects.files()]
    assert assemble(found.work, task(every)).written.segment == first.written.segment
    assert [info.modified for info in found.work.objects.files()] == files


@st.composite
def checkpoints(draw: st.DrawFn) -> list[tuple[int, int, set[int]]]:
    """Ranges in any order, overlapping or not, each with some of the rows inside it."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, ROWS - 1))
        end = draw(st.integers(start + 1, ROWS))
        found.append((start, end, draw(st.sets(st.integers(start, end - 1)))))
    return found


@settings(deadline=None, max_examples=20)
@given(checkpoints())
def test_any_checkpoints_come_out_as_their_addresses_say(
    tmp_path_factory: pytest.TempPathFactory, given_: list[tuple[int, int, set[int]]]
) -> None:
    found = world(tmp_path_factory.mktemp("w"), twice, ROWS)
    oracle: list[int | None] = [None] * ROWS
    for start, end, rows in {(s, e): (s, e, r) for s, e, r in given_}.values():
        put(found, start, end, {row: row * 10 for row in rows})
        for row in rows:
            oracle[row] = row * 10
    rows = BitMap(np.flatnonzero([v is not None for v in oracle]).tolist())
    assert values(found, assemble(found.work, task(rows))) == oracle
