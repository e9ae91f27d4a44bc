"""Sharing files: small merges, as of late rows that lie thin over many partitions, are written into one file together.

Their rows share row groups too, so that a commit costs a few files and not one for each partition that it touches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from floodmark.ledger.runtime import Runtime
from floodmark.storage.arrays import I64
from floodmark.timeline.change import tasks
from floodmark.timeline.change.merge import Merged, MergeTask, merge
from floodmark.timeline.order.pieces import How, Piece
from floodmark.timeline.order.places import alive
from floodmark.timeline.plan.works import FILE_GROUPS
from floodmark.timeline.reading.gathering import gathered
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.stored.own_writing import GroupRows, Written, pieces_of, write_groups

SHARED_BYTES = 16 << 20
"""Merges of together more than this, in the files that they read, share no row group."""


@dataclass(frozen=True)
class FileTask:
    """Merges that one file takes: those of each row group, or one that is large enough for a file of its own."""

    row_groups: tuple[tuple[MergeTask, ...], ...]

    @property
    def merges(self) -> list[MergeTask]:
        return [task for group in self.row_groups for task in group]

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.merges)


def merge_all(name: str, merges: Sequence[MergeTask], runtime: Runtime) -> list[Merged]:
    """Merge, here or on Spark; the results are in the order of the tasks."""
    numbers = shared_out(merges)
    files = [FileTask(tuple(tuple(merges[i] for i in group) for group in file)) for file in numbers]
    size = sum(task.size for task in merges)
    written = tasks.run_tasks(f"merging {name}", files, write_file, runtime, size=size, rows=_rows)
    found = dict(zip(chain(*chain(*numbers)), chain(*written), strict=True))
    return [found[i] for i in range(len(merges))]


def _rows(file: FileTask) -> int:
    return file.rows


def shared_out(merges: Sequence[MergeTask]) -> list[list[list[int]]]:
    """Which merges, by number, go into which row group of which file. One that is not small has a file to itself."""
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


def write_file(file: FileTask) -> list[Merged]:
    """Write the living rows of a file's merges and put it into the store durably; a row group at a time is in memory.

    The results are in the order of the merges.
    """
    merges = file.merges
    if len(merges) == 1:
        return [merge(merges[0])]
    files = PieceFiles(merges[0].objects, merges[0].layout)
    made: list[_Group] = []
    tables = _tables(files, file, made)
    first = next(tables, None)
    if first is None:
        return [Merged((), dropped, 0) for group in made for dropped in group.dropped]
    written = write_groups(merges[0].objects, merges[0].layout, chain([first], tables))
    return _results(file, made, written)


@dataclass(frozen=True)
class _Group:
    """The places of a row group's rows, where those of each merge begin, and how many rows each has left out."""

    times: I64
    offsets: I64
    bounds: list[int]
    dropped: list[int]


def _tables(files: PieceFiles, file: FileTask, made: list[_Group]) -> Iterator[pa.Table]:
    """The row groups that have rows; what is known of all of them is added to `made`."""
    for merges in file.row_groups:
        group, table = _group(files, merges)
        made.append(group)
        if table.num_rows:
            yield table


def _group(files: PieceFiles, merges: Sequence[MergeTask]) -> tuple[_Group, pa.Table]:
    """The living rows of some merges: in order within each, and one merge after the other."""
    names = files.layout.slice_schema.names
    found: list[tuple[I64, I64, I64]] = []
    tables: list[pa.Table] = []
    for piece, rows, whose in _read_once(merges):
        times, offsets = files.places(piece)
        table = files.read(piece, names)
        found.append((whose, times[rows], offsets[rows]))
        # A copy of few rows, so that what they were decoded with need not stay.
        tables.append(table if len(rows) == piece.rows else table.take(pa.array(rows)))
    whose, times, offsets = (np.concatenate(each) for each in zip(*found, strict=True))
    positions: I64 = np.lexsort((offsets, times, whose))
    living = alive(offsets[positions], _dead(merges), merges[0].purged_before)
    before = np.bincount(whose, minlength=len(merges))
    if living is not None:
        positions = positions[living]
    whose, times, offsets = whose[positions], times[positions], offsets[positions]
    counts = np.bincount(whose, minlength=len(merges))
    bounds = [0, *np.cumsum(counts).tolist()]
    return _Group(times, offsets, bounds, (before - counts).tolist()), gathered(tables, positions)


def _read_once(merges: Sequence[MergeTask]) -> Iterator[tuple[Piece, I64, I64]]:
    """For each row group that merges have rows of: the piece that has all of these, which rows they are, and whose.

    Late rows over many partitions lie in a few row groups, each of which is read once and not for each partition.
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


def _dead(merges: Sequence[MergeTask]) -> I64:
    return np.unique(np.concatenate([task.dead for task in merges]))


def _results(file: FileTask, made: Sequence[_Group], written: Written) -> list[Merged]:
    pieces: list[tuple[Piece, ...]] = []
    number = 0
    for merges, group in zip(file.row_groups, made, strict=True):
        for task, (lo, hi) in zip(merges, pairwise(group.bounds), strict=True):
            how = task.how if hi - lo == len(group.times) else How.SHARED
            rows = [GroupRows(number, lo, hi, lo)] if lo < hi else []
            pieces.append(pieces_of(written.name, written.groups, rows, group.times, group.offsets, how, task.since))
        number += len(group.times) > 0
    ends = np.cumsum([sum(p.size for p in some) for some in pieces]).astype(np.int64)
    shares = np.diff(written.size * ends // max(int(ends[-1]), 1), prepend=0).tolist()
    dropped = chain(*(group.dropped for group in made))
    return [Merged(*each) for each in zip(pieces, dropped, shares, strict=True)]
