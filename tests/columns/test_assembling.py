"""Checkpoints in any order become one file: overlaps trimmed, old values kept, gaps refused."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from tests.columns.tasks import World, world
from tests.columns.worlds import checkpoint_path

import floodmark as fm
from floodmark.columns import assemble as assembling
from floodmark.columns import row_errors
from floodmark.columns.assemble import AssembledFile, AssembleTask, assemble
from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR
from floodmark.columns.checkpoints import DataCheckpoint, find_data
from floodmark.columns.column_file import has_valid_footer, read_values
from floodmark.columns.manifest import ColumnSegment
from floodmark.columns.plan import TargetFile
from floodmark.derive.checkpoint_key import range_key
from floodmark.errors import CheckpointCoverageError
from limits import set_limit
from profiles import examples

ROWS = 12
SKIPPED = {"type": "ValueError", "message": "no", "traceback": "", "attempts": 1}


@fm.udf(returns="int64", version="1")
def twice(n: pa.Array) -> pa.Array:
    return pc.multiply(n, 2)


def put(
    found: World, start: int, end: int, rows: dict[int, int | None], failed: tuple[int, ...] = (), message: str = "no"
) -> str:
    """A checkpoint with these values at these addresses; its key."""
    at = sorted(rows)
    skipped = {**SKIPPED, "message": message}
    batch = pa.RecordBatch.from_pydict(
        {ROWADDR: at, "y": [rows[a] for a in at], ERROR: [skipped if a in failed else None for a in at]},
        schema=pa.schema([(ROWADDR, pa.int64()), ("y", pa.int64()), (ERROR, ERROR_TYPE)]),
    )
    key = range_key(found.work.prefix.text, 0, start, end)
    found.dataset.checkpoints.put(key, batch)
    return key


def grow_old(found: World, key: str, seconds: float) -> None:
    """Make a checkpoint look as if it had been stored so long ago."""
    checkpoints = found.dataset.checkpoints
    path = checkpoints.store.local_path(checkpoint_path(checkpoints, key))
    assert path is not None
    moment = path.stat().st_mtime - seconds
    os.utime(path, (moment, moment))


def forget_ranges(found: World) -> None:
    for key in found.dataset.checkpoints.list_keys():
        if "_range-" in key:
            found.dataset.checkpoints.delete(key)


def noted(found: World) -> list[DataCheckpoint]:
    return find_data(found.work.objects.checkpoints, found.work.prefix, 0)


def messages(made: AssembledFile) -> dict[int, str]:
    errors = made.written.errors
    return dict(zip(errors["offset"].to_pylist(), errors["message"].to_pylist(), strict=True))


def task(
    rows: BitMap,
    target: TargetFile | None = None,
    visible: BitMap | None = None,
    again: BitMap | None = None,
    done: BitMap | None = None,
    errors: str | None = None,
) -> AssembleTask:
    return AssembleTask(
        0,
        target or TargetFile(0, ROWS, ()),
        rows,
        done or BitMap(),
        BitMap(range(ROWS)),
        visible or BitMap(),
        errors=errors,
        again=again or BitMap(),
    )


def values(found: World, made: object) -> list[int | None]:
    segment = made.written.segment  # type: ignore[attr-defined]
    field = found.column_snapshot.catalog.column("y").field
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
    made = assemble(found.work, task(BitMap([1, 3, 5]), TargetFile(0, ROWS, (old,)), every))
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


def test_of_two_failures_the_newer_one_is_told(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    grow_old(found, put(found, 0, 6, {1: None}, (1,), "first"), 100)
    put(found, 0, 4, {1: None}, (1,), "third")
    grow_old(found, put(found, 1, 3, {1: None}, (1,), "second"), 50)
    assert messages(assemble(found.work, task(BitMap([1])))) == {1: "third"}


def test_row_tried_again_that_fails_again_keeps_its_new_error(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 1: None}, (1,), "then")
    first = assemble(found.work, task(BitMap([0, 1])))
    forget_ranges(found)
    [old] = noted(found)
    grow_old(found, old.key, 100)
    put(found, 1, 2, {1: None}, (1,), "now")
    target = TargetFile(0, ROWS, (first.written.segment,))
    made = assemble(found.work, task(BitMap([1]), target, again=BitMap([1])))
    assert messages(made) == {1: "now"}


def test_only_the_newest_counts_of_a_row_that_is_tried_again(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    grow_old(found, put(found, 0, 6, {1: 5, 2: 6}), 100)
    put(found, 1, 3, {1: None, 2: None}, (1, 2), "now")
    made = assemble(found.work, task(BitMap([1, 2]), again=BitMap([1])))
    assert values(found, made)[:3] == [None, None, 6]  # any value of the same computation does for the other row
    assert messages(made) == {1: "now"}


def test_what_a_checkpoint_calls_done_has_its_errors_there(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 1: None, 2: None}, (1, 2), "then")
    first = assemble(found.work, task(BitMap([0, 1, 2])))
    before = row_errors.put(found.work.objects, first.written.errors)
    forget_ranges(found)
    put(found, 6, 12, {7: 14, 8: None}, (8,), "now")
    target = TargetFile(0, ROWS, (first.written.segment,))
    # Row 2 is of another computation now.
    made = assemble(found.work, task(BitMap([7, 8]), target, done=BitMap([0, 1]), errors=before))
    [data] = noted(found)
    assert sorted(data.done) == [0, 1, 7, 8]
    assert data.errors is not None
    assert data.errors["offset"].to_pylist() == [1, 8]
    assert messages(made) == {8: "now"}


def test_rows_whose_errors_are_lost_are_not_noted_as_done(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 6, {0: 0, 1: None}, (1,))
    first = assemble(found.work, task(BitMap([0, 1])))
    put(found, 6, 12, {7: 14})
    target = TargetFile(0, ROWS, (first.written.segment,))
    assemble(found.work, task(BitMap([7]), target, done=BitMap([0, 1]), errors="0" * 64))
    [data] = noted(found)
    assert sorted(data.done) == [7]


def test_errors_of_a_finished_file_are_those_of_the_rows_asked_for(tmp_path: Path) -> None:
    found = world(tmp_path, twice, ROWS)
    put(found, 0, 12, {0: 0, 1: None, 2: None}, (1, 2))
    assemble(found.work, task(BitMap([0, 1, 2])))
    forget_ranges(found)
    two = BitMap([0, 1])  # row 2 has died
    left = AssembleTask(0, TargetFile(0, ROWS, ()), two, BitMap(), BitMap(range(ROWS)) - BitMap([2]), BitMap())
    made = assemble(found.work, left)
    assert sorted(messages(made)) == [1]


MANY = 400
"""Rows whose pages are so large that nothing but their own checksums tells of damage in them."""


def finished_file(found: World) -> ColumnSegment:
    """A file of many rows that nobody has committed; its rows are in no other checkpoint."""
    chosen = random.Random(1)
    put(found, 0, MANY, {n: chosen.getrandbits(60) for n in range(MANY)})
    segment = assemble(found.work, of_many(BitMap(range(MANY)))).written.segment
    forget_ranges(found)
    return segment


def of_many(rows: BitMap, *replaced: ColumnSegment) -> AssembleTask:
    return AssembleTask(0, TargetFile(0, MANY, replaced), rows, BitMap(), BitMap(range(MANY)), BitMap())


def flip_value(found: World, segment: ColumnSegment) -> Path:
    """Change a byte in the middle of the file's page."""
    path = found.work.objects.store.local_path(segment.key(found.work.objects))
    assert path is not None
    column = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    assert has_valid_footer(found.work.objects, segment)
    return path


@pytest.mark.parametrize("rows", [BitMap(range(MANY)), BitMap([3, 4])], ids=["as it is", "as a source"])
def test_damaged_finished_file_is_neither_committed_nor_read(tmp_path: Path, rows: BitMap) -> None:
    found = world(tmp_path, twice, MANY)
    path = flip_value(found, finished_file(found))
    with pytest.raises(CheckpointCoverageError, match=f"{len(rows)} rows"):
        assemble(found.work, of_many(rows))
    assert not path.exists()
    assert noted(found) == []


def test_finished_file_that_is_damaged_while_it_is_read_leads_to_a_new_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = world(tmp_path, twice, MANY)
    flip_value(found, finished_file(found))
    monkeypatch.setattr(assembling, "has_valid_hash", has_valid_footer)
    with pytest.raises(CheckpointCoverageError):
        assemble(found.work, of_many(BitMap([3])))
    assert noted(found) == []


def test_damaged_finished_file_does_no_harm_when_checkpoints_have_its_rows(tmp_path: Path) -> None:
    found = world(tmp_path, twice, MANY)
    flip_value(found, finished_file(found))
    put(found, 0, MANY, {n: n for n in range(MANY)})
    assert values(found, assemble(found.work, of_many(BitMap(range(MANY))))) == list(range(MANY))


def test_damaged_file_that_is_committed_is_left_to_its_readers(tmp_path: Path) -> None:
    found = world(tmp_path, twice, MANY)
    segment = finished_file(found)
    path = flip_value(found, segment)
    with pytest.raises(CheckpointCoverageError):
        assemble(found.work, of_many(BitMap([3]), segment))
    assert path.exists()


def test_task_says_in_a_few_words_what_it_is_for() -> None:
    assert str(task(BitMap(range(ROWS)))) == "to assemble the values of records 0 to 11"


@st.composite
def checkpoints(draw: st.DrawFn) -> list[tuple[int, int, set[int]]]:
    """Ranges in any order, overlapping or not, each with some of the rows inside it."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, ROWS - 1))
        end = draw(st.integers(start + 1, ROWS))
        found.append((start, end, draw(st.sets(st.integers(start, end - 1)))))
    return found


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(checkpoints(), st.sets(st.integers(0, ROWS - 1)), st.integers(1, 100), st.integers(1, 100))
def test_any_checkpoints_come_out_as_their_addresses_say(
    tmp_path_factory: pytest.TempPathFactory,
    given_: list[tuple[int, int, set[int]]],
    before: set[int],
    piece_bytes: int,
    group_bytes: int,
) -> None:
    found = world(tmp_path_factory.mktemp("w"), twice, ROWS)
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "sources.piece_bytes", piece_bytes)
        set_limit(patch, "column_file.group_bytes", group_bytes)
        oracle: list[int | None] = [row if row in before else None for row in range(ROWS)]
        put(found, 0, ROWS, {row: row for row in before})
        old = assemble(found.work, task(BitMap(before))).written.segment
        for key in found.dataset.checkpoints.list_keys():
            found.dataset.checkpoints.delete(key)
        fresh = set()
        for start, end, rows in {(s, e): (s, e, r) for s, e, r in given_}.values():
            put(found, start, end, {row: row * 10 for row in rows})
            for row in rows:
                oracle[row] = row * 10
            fresh |= rows
        made = assemble(found.work, task(BitMap(fresh), TargetFile(0, ROWS, (old,)), BitMap(before)))
        assert values(found, made) == oracle
        assert set(made.changed) == {row for row in fresh & before if row}  # 0 stays 0
