"""Merges: write the live rows of several pieces as one file in timeline order. Small merges share files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.session import Runtime
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.storage.arrays import I64
from floodmark.timeline import planner, tasks
from floodmark.timeline.arrangement import FILE_GROUPS
from floodmark.timeline.interleave import take_rows
from floodmark.timeline.manifest import TimelineObjects, pack_offsets, unpack_offsets
from floodmark.timeline.piece_files import GroupRows, PieceFiles, WrittenPieceFile, make_pieces, write_groups
from floodmark.timeline.pieces import Piece, PieceOrigin, TimePoint, live_mask, rows_between, sort_positions


class RowGroupShape(Enum):
    """How the rows of a merge are cut into row groups of about `most` rows."""

    # One row group up to 1.5 times `most`, else even row groups, cut at a change of the time if one is near.
    SPLIT = "split"
    # Even row groups of at most `most` rows.
    CHUNKS = "chunks"


@dataclass(frozen=True)
class PieceMergeTask:
    """Rows to write as one file. It can be pickled and run on any worker."""

    objects: TimelineObjects
    layout: Layout
    sources: tuple[Piece, ...]
    most: int
    how: PieceOrigin
    since: int  # the version of the root that will name the file
    shape: RowGroupShape = RowGroupShape.SPLIT
    dead: I64 = field(default_factory=lambda: NO_OFFSETS, compare=False)  # sorted; those of `select_dead` are enough
    purged_before: int = 0

    @property
    def rows(self) -> int:
        """The number of rows it reads at most."""
        return sum(p.rows for p in self.sources)

    @property
    def size(self) -> int:
        return sum(p.size for p in self.sources)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dead": pack_offsets(self.dead)}  # a keyed dataset may have very many

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, dead=unpack_offsets(state["dead"]))


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge: pieces of the new file, in order and without dead rows."""

    pieces: tuple[Piece, ...]
    dropped: int  # dead or purged rows that were left out
    bytes: int  # of the file; 0 if no row was live

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)


def offset_bounds(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The offset ranges [low, high) of some pieces, ascending and not touching."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((p.offset_min, p.offset_max + 1) for p in pieces):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def select_dead(dead: I64, pieces: Sequence[Piece]) -> I64:
    """The dead offsets that may be in these pieces. This keeps tasks small."""
    found = np.searchsorted(dead, np.array(offset_bounds(pieces), np.int64).reshape(-1, 2))
    parts = [dead[low:high] for low, high in found.tolist() if low < high]
    return np.concatenate(parts) if parts else NO_OFFSETS


def merge(task: PieceMergeTask) -> MergeResult:
    """Write the live rows of a task's sources as one file, and store it durably.

    Time points are read first; then rows are read and written one row group at a time.
    """
    files = PieceFiles(task.objects, task.layout)
    parts = [_Part(piece, *files.places(piece)) for piece in task.sources]
    if not parts:
        return MergeResult((), 0, 0)
    times = np.concatenate([p.times for p in parts])
    offsets = np.concatenate([p.offsets for p in parts])
    positions = sort_positions(times, offsets)
    if positions is not None:
        times, offsets = times[positions], offsets[positions]
    live = live_mask(offsets, task.dead, task.purged_before)
    dropped = 0
    if live is not None:
        dropped = int(len(live) - np.count_nonzero(live))
        positions = np.flatnonzero(live) if positions is None else positions[live]
        times, offsets = times[live], offsets[live]
    if len(times) == 0:
        return MergeResult((), dropped, 0)
    bounds = [0, *_cuts(times, task), len(times)]
    stretches = [GroupRows(number, lo, hi) for number, (lo, hi) in enumerate(pairwise(bounds))]
    file = write_groups(task.objects, task.layout, _groups(files, parts, positions, times, offsets, bounds))
    pieces = make_pieces(file.name, file.groups, stretches, times, offsets, task.how, task.since)
    return MergeResult(pieces, dropped, file.size)


def _cuts(times: I64, task: PieceMergeTask) -> list[int]:
    if task.shape is RowGroupShape.SPLIT:
        return planner.cuts(times, task.most)
    return even_cuts(len(times), task.most)


def even_cuts(rows: int, most: int) -> list[int]:
    """The rows at which to cut into even parts of at most `most` rows."""
    count = -(-rows // most)
    return [rows * i // count for i in range(1, count)]


@dataclass(frozen=True)
class _Part:
    """A source piece and the time points of its rows."""

    piece: Piece
    times: I64
    offsets: I64

    @property
    def rows(self) -> int:
        return len(self.times)

    def between(self, lo: TimePoint, hi: TimePoint) -> tuple[int, int]:
        return rows_between(self.times, self.offsets, lo, hi)

    def cut(self, start: int, stop: int) -> Piece:
        """The piece with only these rows. Its other fields stay unchanged: readers do not use them."""
        return replace(self.piece, row_lo=self.piece.row_lo + start, row_hi=self.piece.row_lo + stop)


def _groups(
    files: PieceFiles, parts: Sequence[_Part], positions: I64 | None, times: I64, offsets: I64, bounds: list[int]
) -> Iterator[pa.Table]:
    """The row groups, one at a time. For each, only the rows between its first and last time point are read."""
    names = files.layout.slice_schema.names
    starts = np.cumsum([0, *(p.rows for p in parts)], dtype=np.int64)
    for lo, hi in pairwise(bounds):
        first = TimePoint(int(times[lo]), int(offsets[lo]))
        after = TimePoint(int(times[hi - 1]), int(offsets[hi - 1]) + 1)
        rows = [part.between(first, after) for part in parts]
        used = [i for i, (start, stop) in enumerate(rows) if start < stop]
        tables = [files.read(parts[i].cut(*rows[i]), names) for i in used]
        sources = np.arange(lo, hi) if positions is None else positions[lo:hi]
        read = np.cumsum([0, *(t.num_rows for t in tables)], dtype=np.int64)
        # The difference between a row's position among all parts and its position among the tables read here.
        shifts = np.array([read[n] - starts[i] - rows[i][0] for n, i in enumerate(used)], np.int64)
        which = np.searchsorted(starts[used], sources, side="right") - 1
        local = sources + shifts[which]
        is_all = len(local) == read[-1] and positions is None
        yield pa.concat_tables(tables) if is_all else take_rows(tables, local)


# Merges that share files

SHARED_BYTES = 16 << 20
"""Merges share a row group only if they read at most this many bytes together."""


@dataclass(frozen=True)
class FileTask:
    """The merges of one file, by row group: many small ones, or one that is large enough for a separate file."""

    row_groups: tuple[tuple[PieceMergeTask, ...], ...]

    @property
    def merges(self) -> list[PieceMergeTask]:
        return [task for group in self.row_groups for task in group]

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.merges)


def merge_all(name: str, merges: Sequence[PieceMergeTask], runtime: Runtime) -> list[MergeResult]:
    """Run merges in this process or on Spark. The results have the order of the tasks."""
    numbers = assign_files(merges)
    files = [FileTask(tuple(tuple(merges[i] for i in group) for group in file)) for file in numbers]
    size = sum(task.size for task in merges)
    written = tasks.run_tasks(f"merging {name}", files, write_file, runtime, size=size, rows=_file_rows)
    found = dict(zip(chain(*chain(*numbers)), chain(*written), strict=True))
    return [found[i] for i in range(len(merges))]


def _file_rows(file: FileTask) -> int:
    return file.rows


def assign_files(merges: Sequence[PieceMergeTask]) -> list[list[list[int]]]:
    """The numbers of the merges by file and row group. A merge that is not small gets a separate file."""
    room = max((task.most for task in merges), default=0)
    alone: list[list[list[int]]] = []
    groups: list[list[int]] = []
    rows = size = 0
    for i, task in enumerate(merges):
        if 4 * task.rows >= room or 4 * task.size >= SHARED_BYTES:
            alone.append([[i]])
            continue
        if not groups or rows + task.rows > room or size + task.size > SHARED_BYTES:
            groups.append([])
            rows = size = 0
        groups[-1].append(i)
        rows, size = rows + task.rows, size + task.size
    return [*alone, *(groups[at : at + FILE_GROUPS] for at in range(0, len(groups), FILE_GROUPS))]


def write_file(file: FileTask) -> list[MergeResult]:
    """Write the live rows of a file's merges, and store it durably. Only one row group at a time is in memory.

    The results have the order of the merges.
    """
    merges = file.merges
    if len(merges) == 1:
        return [merge(merges[0])]
    files = PieceFiles(merges[0].objects, merges[0].layout)
    groups: list[_Group] = []
    tables = _tables(files, file, groups)
    first = next(tables, None)
    if first is None:
        return [MergeResult((), dropped, 0) for group in groups for dropped in group.dropped]
    written = write_groups(merges[0].objects, merges[0].layout, chain([first], tables))
    return _results(file, groups, written)


@dataclass(frozen=True)
class _Group:
    """A row group that several merges share."""

    times: I64
    offsets: I64
    bounds: list[int]  # the first row of each merge, and the number of rows
    dropped: list[int]  # by merge


def _tables(files: PieceFiles, file: FileTask, groups: list[_Group]) -> Iterator[pa.Table]:
    """The tables of the row groups that are not empty. Appends each row group, also the empty ones, to `groups`."""
    for merges in file.row_groups:
        group, table = _group(files, merges)
        groups.append(group)
        if table.num_rows:
            yield table


def _group(files: PieceFiles, merges: Sequence[PieceMergeTask]) -> tuple[_Group, pa.Table]:
    """The live rows of some merges, merge by merge, in timeline order within each."""
    names = files.layout.slice_schema.names
    found: list[tuple[I64, I64, I64]] = []
    tables: list[pa.Table] = []
    for piece, rows, whose in _read_once(merges):
        times, offsets = files.places(piece)
        table = files.read(piece, names)
        found.append((whose, times[rows], offsets[rows]))
        # Copy a few rows, so that the decoded row group can be freed.
        tables.append(table if len(rows) == piece.rows else table.take(pa.array(rows)))
    whose, times, offsets = (np.concatenate(each) for each in zip(*found, strict=True))
    positions: I64 = np.lexsort((offsets, times, whose))
    live = live_mask(offsets[positions], _all_dead(merges), merges[0].purged_before)
    before = np.bincount(whose, minlength=len(merges))
    if live is not None:
        positions = positions[live]
    whose, times, offsets = whose[positions], times[positions], offsets[positions]
    counts = np.bincount(whose, minlength=len(merges))
    bounds = [0, *np.cumsum(counts).tolist()]
    return _Group(times, offsets, bounds, (before - counts).tolist()), take_rows(tables, positions)


def _read_once(merges: Sequence[PieceMergeTask]) -> Iterator[tuple[Piece, I64, I64]]:
    """For each row group to read: a piece that covers its rows, the rows to use, and the number of each row's merge.

    Late rows of many partitions are in a few row groups, so each is read once, not once per partition.
    """
    by_group: defaultdict[tuple[str, int], list[tuple[int, Piece]]] = defaultdict(list)
    for number, task in enumerate(merges):
        for piece in task.sources:
            by_group[piece.file, piece.row_group].append((number, piece))
    for some in by_group.values():
        some.sort(key=lambda each: each[1].row_lo)
        lo, hi = some[0][1].row_lo, max(piece.row_hi for _, piece in some)
        rows = np.concatenate([np.arange(piece.row_lo - lo, piece.row_hi - lo) for _, piece in some])
        whose = np.repeat([number for number, _ in some], [piece.rows for _, piece in some])
        yield replace(some[0][1], row_lo=lo, row_hi=hi), rows, whose


def _all_dead(merges: Sequence[PieceMergeTask]) -> I64:
    return np.unique(np.concatenate([task.dead for task in merges]))


def _results(file: FileTask, groups: Sequence[_Group], written: WrittenPieceFile) -> list[MergeResult]:
    pieces: list[tuple[Piece, ...]] = []
    number = 0
    for merges, group in zip(file.row_groups, groups, strict=True):
        for task, (lo, hi) in zip(merges, pairwise(group.bounds), strict=True):
            how = task.how if hi - lo == len(group.times) else PieceOrigin.SHARED
            rows = [GroupRows(number, lo, hi, lo)] if lo < hi else []
            pieces.append(make_pieces(written.name, written.groups, rows, group.times, group.offsets, how, task.since))
        number += len(group.times) > 0
    ends = np.cumsum([sum(p.size for p in some) for some in pieces]).astype(np.int64)
    shares = np.diff(written.size * ends // max(int(ends[-1]), 1), prepend=0).tolist()
    dropped = chain(*(group.dropped for group in groups))
    return [MergeResult(*each) for each in zip(pieces, dropped, shares, strict=True)]
