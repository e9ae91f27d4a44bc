"""Merging: living rows of several pieces in one new file, in order, cut into row groups, whatever they were before."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import StorageError, UnreadablePiece
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.timeline.interleave import take_rows
from floodmark.timeline.merge import PieceMergeTask, RowGroupShape, even_cuts, merge, merge_all, select_dead
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Piece, PieceOrigin, TimePoint
from limits import set_limit
from profiles import examples
from timeline.piece_worlds import LAYOUT, WIDER, check_pieces, objects_in, rows_of, table, write_piece


@pytest.fixture
def objects():
    return objects_in(MemoryStore())


def task_of(objects, sources, **other):
    given = {"most": 100, "how": PieceOrigin.MERGED, "since": 7, **other}
    return PieceMergeTask(objects, given.pop("layout", LAYOUT), tuple(sources), **given)


def test_late_rows_come_after_those_of_the_same_time_and_before_later_ones(objects):
    there = write_piece(objects, [(10, 0), (20, 1), (30, 2)])
    late = write_piece(objects, [(5, 3), (20, 4), (20, 5), (40, 6)])
    merged = merge(task_of(objects, [late, there]))
    assert [r["offset"] for r in rows_of(objects, merged.pieces)] == [3, 0, 1, 4, 5, 2, 6]
    (piece,) = merged.pieces
    assert (piece.first, piece.last) == (TimePoint(5, 3), TimePoint(40, 6))
    assert (piece.how, piece.since, piece.dead, piece.is_whole) == (PieceOrigin.MERGED, 7, 0, True)
    assert merged.dropped == 0
    assert merged.bytes == objects.store.stat(objects.key(piece.file)).size > piece.size > 0


PLACES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 40)), unique_by=lambda row: row[1], min_size=1, max_size=40
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    rows=PLACES,
    share=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    dead=st.sets(st.integers(0, 40)),
    purged_before=st.integers(0, 10),
    most=st.integers(1, 50),
    shape=st.sampled_from(RowGroupShape),
)
def test_a_merge_has_the_living_rows_of_its_sources_in_order(rows, share, dead, purged_before, most, shape):
    objects = objects_in(MemoryStore())
    parts = [p for n in range(4) if (p := [row for row, m in zip(rows, share, strict=False) if m == n])]
    sources = [write_piece(objects, part) for part in parts]
    task = task_of(
        objects, sources, dead=np.array(sorted(dead), np.int64), purged_before=purged_before, most=most, shape=shape
    )
    merged = merge(task)
    taken = sorted(row for part in parts for row in part)
    living = [row for row in taken if row[1] not in dead and row[1] >= purged_before]
    assert rows_of(objects, merged.pieces) == table(living).to_pylist()
    assert merged.dropped == len(taken) - len(living)
    assert all(p.rows <= (most if shape is RowGroupShape.CHUNKS else max(most * 3 // 2, 1)) for p in merged.pieces)
    assert len({p.file for p in merged.pieces}) <= 1
    check_pieces(objects, merged.pieces)


def test_rows_of_a_fragment_alone_are_merged(objects):
    fragment = write_piece(objects, [(t, t) for t in range(10)], cut=6)
    merged = merge(task_of(objects, [fragment]))
    assert [r["offset"] for r in rows_of(objects, merged.pieces)] == [6, 7, 8, 9]


def test_older_rows_get_nulls_in_columns_that_came_later(objects):
    older = write_piece(objects, [(1, 1), (3, 3)])
    newer = write_piece(objects, [(2, 2)], WIDER)
    merged = merge(task_of(objects, [older, newer], layout=WIDER))
    assert [(r["offset"], r["more"]) for r in rows_of(objects, merged.pieces, WIDER)] == [(1, None), (2, 20), (3, None)]


def test_a_merge_of_nothing_but_dead_rows_writes_no_file(objects):
    piece = write_piece(objects, [(1, 1), (2, 2)])
    before = list(objects.files())
    merged = merge(task_of(objects, [piece], dead=np.array([1, 2])))
    assert (merged.pieces, merged.dropped, merged.bytes) == ((), 2, 0)
    assert [f.key for f in objects.files()] == [f.key for f in before]


def test_the_same_merge_again_gives_the_same_file_even_in_place_of_a_damaged_one(tmp_path):
    objects = objects_in(LocalStore(tmp_path))
    task = task_of(objects, [write_piece(objects, [(1, 1), (2, 2)]), write_piece(objects, [(1, 3)])])
    first = merge(task)
    path = objects.store.local_path(objects.key(first.pieces[0].file))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UnreadablePiece):
        rows_of(objects, first.pieces)
    assert merge(task) == first
    assert [r["offset"] for r in rows_of(objects, first.pieces)] == [1, 3, 2]
    assert list(objects.store.staging().iterdir()) == []


def test_a_source_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    objects = objects_in(LocalStore(tmp_path))
    piece = write_piece(objects, [(1, 1), (2, 2)])
    objects.store.delete(objects.key(piece.file))
    with pytest.raises(UnreadablePiece, match=piece.file):
        merge(task_of(objects, [piece]))
    assert list(objects.files()) == []
    assert list(objects.store.staging().iterdir()) == []


def test_a_store_that_refuses_the_file_leaves_nothing_behind(tmp_path, monkeypatch):
    objects = objects_in(LocalStore(tmp_path))
    task = task_of(objects, [write_piece(objects, [(1, 1)]), write_piece(objects, [(2, 2)])])

    def refuse(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(LocalStore, "put_file", refuse)
    with pytest.raises(StorageError, match="the disk is full"):
        merge(task)
    assert list(objects.store.staging().iterdir()) == []


def test_tasks_survive_pickling_and_results_come_in_their_order(tmp_path):
    objects = objects_in(LocalStore(tmp_path))
    merges = [task_of(objects, [write_piece(objects, [(n, n)])]) for n in range(5)]
    shipped = [pickle.loads(pickle.dumps(task)) for task in merges]
    assert [m.pieces[0].first.time for m in merge_all("ticks", shipped, fm.Runtime())] == [0, 1, 2, 3, 4]
    assert merge_all("ticks", [], fm.Runtime()) == []


@pytest.mark.spark
def test_much_data_is_merged_by_spark(tmp_path, session, monkeypatch):
    set_limit(monkeypatch, "tasks.spark_bytes", 0)
    objects = objects_in(LocalStore(tmp_path))
    merges = [
        task_of(objects, [write_piece(objects, [(n, 2 * n)]), write_piece(objects, [(n, 2 * n + 1)])]) for n in range(3)
    ]
    merged = merge_all("ticks", merges, fm.Runtime(session=session))
    assert [r["offset"] for m in merged for r in rows_of(objects, m.pieces)] == [0, 1, 2, 3, 4, 5]


@given(
    st.sets(st.integers(0, 60)),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=5),
)
def test_a_task_takes_along_only_the_dead_that_its_pieces_may_hold(dead, bounds):
    some = Piece("data/f", 0, 0, 1, 1, MIN_POINT, MAX_POINT, 0, 0, 1, PieceOrigin.SLICE, 1)
    pieces = [replace(some, offset_min=low, offset_max=low + more) for low, more in bounds]
    expected = sorted(d for d in dead if any(p.offset_min <= d <= p.offset_max for p in pieces))
    assert select_dead(np.array(sorted(dead), np.int64), pieces).tolist() == expected


@given(st.integers(1, 500), st.integers(1, 100))
def test_even_cuts_leave_no_part_larger_than_allowed_and_none_much_smaller(rows, most):
    bounds = [0, *even_cuts(rows, most), rows]
    sizes = np.diff(bounds)
    assert sizes.max() <= most
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("round_bytes", [1, 100, 1 << 20])
@settings(max_examples=examples(16))
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.data())
def test_gathering_is_taking_from_all_tables_as_one(round_bytes, sizes, data):
    whole = table([(n, n) for n in range(sum(sizes))])
    ends = np.cumsum([0, *sizes]).tolist()
    tables = [whole.slice(lo, hi - lo) for lo, hi in pairwise(ends)]
    positions = np.array(data.draw(st.permutations(range(sum(sizes)))), np.int64)[: data.draw(st.integers(0, 40))]
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "gathering.round_bytes", round_bytes)
        found = take_rows(tables, positions)
    assert found.to_pylist() == whole.take(pa.array(positions)).to_pylist()
    assert found.schema == whole.schema
