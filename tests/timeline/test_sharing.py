"""Sharing files: what many partitions need written goes into few files, and is the same as if each had its own."""

from __future__ import annotations

import pickle
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.storage.local import LocalStore
from floodmark.storage.memory import MemoryStore
from floodmark.storage.sweep import remove
from floodmark.timeline import garbage
from floodmark.timeline import merge as sharing
from floodmark.timeline.manifest import TimelineObjects
from floodmark.timeline.merge import PieceMergeTask, RowGroupShape, assign_files, merge, merge_all, write_file
from floodmark.timeline.piece_cuts import cut_piece
from floodmark.timeline.piece_files import PieceFiles
from floodmark.timeline.pieces import PieceOrigin
from limits import set_limit
from profiles import examples
from timeline.layouts import assert_folded, assert_sound, purge_problems
from timeline.oracle import assert_right
from timeline.piece_worlds import LAYOUT, check_pieces, objects_in, rows_of, write_piece
from timeline.timeline_worlds import BEGIN, HOUR, World, template_folder, world

HOURS = 24


def task_of(objects: Any, sources: Any, **other: Any) -> PieceMergeTask:
    return PieceMergeTask(
        objects, LAYOUT, tuple(sources), **{"most": 100, "how": PieceOrigin.MERGED, "since": 7, **other}
    )


def many_hours(tmp_path: Any, **declared: Any) -> World:
    """A few rows in each of many hours."""
    made = world(tmp_path, unit="hour", row_group_size=200, **declared)
    made.dataset.write(made.table([BEGIN + HOUR * h + 60_000_000 * m for h in range(HOURS) for m in range(10)]))
    return made


def thin(tmp_path: Any) -> World:
    """The same after one late row in each came so many times that all have been merged."""
    return _thin().copied(tmp_path)


@cache
def _thin() -> World:
    made = many_hours(template_folder())
    for n in range(9):
        late(made, range(HOURS), n)
    return made


def late(made: World, hours: Any, n: int) -> None:
    made.dataset.write(made.table([BEGIN + HOUR * h + 60_000_000 * n + 7 for h in hours]))


def timeline_objects(made: World) -> TimelineObjects:
    return TimelineObjects(made.dataset.snapshot().objects)


def own_files(made: World) -> dict[str, int]:
    return {info.key: info.size for info in timeline_objects(made).files()}


@pytest.mark.slow
@pytest.mark.parametrize("late_merge", ["auto", "always"])
def test_late_rows_thin_over_many_partitions_cost_a_few_files_per_commit(tmp_path, late_merge):
    made = many_hours(tmp_path, late_merge=late_merge)
    written = []
    for n in range(10):
        before = own_files(made)
        late(made, range(HOURS), n)
        written.append(len(own_files(made).keys() - before.keys()))
    assert 0 < max(written) <= 2
    assert_sound(made.dataset)
    assert_right(made.dataset)
    assert made.dataset.verify().problems == ()


@pytest.mark.slow
def test_a_fold_of_many_small_partitions_writes_a_few_files_and_the_next_one_none(tmp_path):
    made = thin(tmp_path)
    late(made, range(HOURS), 20)
    done = made.dataset.fold()
    after = own_files(made)
    assert 0 < done.files <= 3
    assert {p.how for each in made.dataset.timeline_pieces().partitions for p in each.pieces} == {PieceOrigin.SHARED}
    assert_folded(made.dataset)
    assert_right(made.dataset)
    assert made.dataset.fold().rows == 0
    assert own_files(made) == after


@pytest.mark.slow
def test_a_shared_file_stays_while_one_partition_needs_it_and_goes_after_the_last(tmp_path):
    made = thin(tmp_path)
    made.dataset.fold()
    shared = {p.file for each in made.dataset.timeline_pieces().partitions for p in each.pieces}
    made.dataset.write(made.table([BEGIN + HOUR * h + n for h in range(1, HOURS) for n in range(60)]))
    made.dataset.fold()
    (first, *others) = made.dataset.timeline_pieces().partitions
    kept = {p.file for p in first.pieces}
    assert kept <= shared
    assert not kept & {p.file for each in others for p in each.pieces}
    stats = made.dataset.timeline_stats()
    assert stats.partitions[0].dead_bytes > stats.partitions[0].bytes  # what the others left in its row group
    assert {o.key for o in sweep(made)} >= {timeline_objects(made).key(f) for f in shared - kept}
    assert_right(made.dataset)
    made.dataset.write(made.table([BEGIN + n for n in range(60)]))
    made.dataset.fold()
    assert {timeline_objects(made).key(f) for f in kept} <= {o.key for o in sweep(made)}
    assert_right(made.dataset)


def sweep(made: World) -> Any:
    objects = timeline_objects(made)
    return remove(garbage.find(objects, 2**62, grace_nanos=0)).objects


def test_a_purge_leaves_no_copy_in_shared_files(tmp_path):
    made = thin(tmp_path)
    made.dataset.fold()
    made.dataset.purge(before=HOURS * 12)
    assert purge_problems(made.dataset) == []
    assert_sound(made.dataset)
    assert_right(made.dataset)
    assert len({p.file for each in made.dataset.timeline_pieces().partitions for p in each.pieces}) <= 10


PARTS = st.lists(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60)), min_size=1, max_size=14, unique_by=lambda row: row[1]),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    parts=PARTS,
    cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    dead=st.sets(st.integers(0, 900)),
    purged_before=st.sampled_from([0, 0, 70]),
    most=st.sampled_from([4, 40, 200]),
    groups=st.integers(1, 3),
)
def test_merges_together_give_what_each_gives_alone(parts, cuts, dead, purged_before, most, groups):
    objects = objects_in(MemoryStore())
    dead_rows = np.array(sorted(dead), np.int64)
    merges = []
    for n, (rows, count) in enumerate(zip(parts, cuts, strict=False)):
        mine = [(time, offset + 61 * n) for time, offset in rows]
        sources = [write_piece(objects, some) for i in range(count) if (some := mine[i::count])]
        merges.append(task_of(objects, sources, dead=dead_rows, purged_before=purged_before, most=most))
    before = {info.key for info in objects.files()}
    with pytest.MonkeyPatch.context() as patched:
        set_limit(patched, "sharing.file_groups", groups)
        together = merge_all("ticks", merges, fm.Runtime())
    stored = {info.key: info.size for info in objects.files() if info.key not in before}
    alone = [merge(task) for task in merges]
    for one, other in zip(together, alone, strict=True):
        assert rows_of(objects, one.pieces) == rows_of(objects, other.pieces)
        assert (one.dropped, one.rows) == (other.dropped, other.rows)
        assert all(p.is_whole == (p.how is PieceOrigin.MERGED) for p in one.pieces)
        assert all(p.how is PieceOrigin.MERGED or 4 * p.rows < most for p in one.pieces)
        check_pieces(objects, one.pieces)
    named = {objects.key(p.file) for m in together for p in m.pieces}
    assert stored.keys() <= named
    assert all(p.group_rows <= max(most * 3 // 2, 1) for m in together for p in m.pieces)
    if not named - stored.keys():
        assert sum(m.bytes for m in together) == sum(stored.values())


def test_rows_of_one_row_group_are_read_once_for_all_that_need_some(monkeypatch):
    objects = objects_in(MemoryStore())
    whole = write_piece(objects, [(n, n) for n in range(60)])
    places = PieceFiles(objects, LAYOUT).places(whole)
    parts = cut_piece(whole, range(0, 60, 2), places)
    assert len(parts) == 30
    reads = []
    real = PieceFiles.read
    monkeypatch.setattr(PieceFiles, "read", lambda self, *args: reads.append(args) or real(self, *args))
    found = merge_all("ticks", [task_of(objects, [part], most=1000) for part in parts], fm.Runtime())
    assert len(reads) <= 2
    monkeypatch.undo()
    assert rows_of(objects, [p for m in found for p in m.pieces]) == rows_of(objects, [whole])


class Sized(PieceMergeTask):
    """A merge that says of itself how much it reads."""

    rows = property(lambda self: self.since)  # type: ignore[assignment]
    size = property(lambda self: self.purged_before)  # type: ignore[assignment]


def shared(sizes: list[tuple[int, int]], most: int = 100) -> list[list[list[int]]]:
    """How merges of so many rows and bytes are shared out."""
    objects = objects_in(MemoryStore())
    return assign_files(
        [Sized(objects, LAYOUT, (), most, PieceOrigin.MERGED, rows, purged_before=size) for rows, size in sizes]
    )


def test_row_groups_are_shared_up_to_so_many_rows_and_bytes_and_files_up_to_so_many_row_groups(monkeypatch):
    set_limit(monkeypatch, "sharing.file_groups", 2)
    set_limit(monkeypatch, "sharing.shared_bytes", 1000)
    assert shared([]) == []
    assert shared([(20, 1)] * 6) == [[[0, 1, 2, 3, 4], [5]]]
    assert shared([(20, 1)] * 11) == [[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], [[10]]]
    assert shared([(1, 240)] * 5) == [[[0, 1, 2, 3], [4]]]
    assert shared([(1, 1), (25, 1), (1, 1), (1, 250), (1, 1)]) == [[[1]], [[3]], [[0, 2, 4]]]


def test_a_file_of_nothing_but_dead_rows_is_not_written():
    objects = objects_in(MemoryStore())
    merges = [task_of(objects, [write_piece(objects, [(n, n)])], dead=np.arange(9)) for n in range(4)]
    before = [info.key for info in objects.files()]
    assert [(m.pieces, m.dropped, m.bytes) for m in merge_all("ticks", merges, fm.Runtime())] == [((), 1, 0)] * 4
    assert [info.key for info in objects.files()] == before


def test_shared_files_survive_pickling(tmp_path):
    objects = objects_in(LocalStore(tmp_path))
    merges = tuple(task_of(objects, [write_piece(objects, [(n, n), (n, 9 + n)])]) for n in range(3))
    file = sharing.FileTask((merges[:2], merges[2:]))
    shipped = pickle.loads(pickle.dumps(file))
    assert [m.rows for m in write_file(shipped)] == [2, 2, 2]
    assert len(set(chain(*([p.file for p in m.pieces] for m in write_file(shipped))))) == 1


def test_many_dead_travel_in_a_fraction_of_their_bytes():
    objects = objects_in(MemoryStore())
    dead = np.cumsum(np.random.default_rng(0).integers(1, 50, 100_000))
    task = task_of(objects, [write_piece(objects, [(1, 1)])], dead=dead, shape=RowGroupShape.CHUNKS)
    state = task.__getstate__()
    assert len(pickle.dumps(state["dead"])) < dead.nbytes / 7
    again = PieceMergeTask.__new__(PieceMergeTask)
    again.__setstate__(pickle.loads(pickle.dumps({**state, "objects": None})))
    assert np.array_equal(again.dead, dead)
    assert again.shape is RowGroupShape.CHUNKS
