"""Merging: the living rows of several pieces become one file in the timeline's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.layout import Layout
from floodmark.ledger.selection import NOBODY
from floodmark.storage.arrays import I64
from floodmark.timeline.order.pieces import How, Piece, Place
from floodmark.timeline.order.places import alive, order, rows_between
from floodmark.timeline.plan import planner
from floodmark.timeline.reading.gathering import gathered
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.stored.objects import TimelineObjects
from floodmark.timeline.stored.own_writing import GroupRows, pieces_of, write_groups
from floodmark.timeline.stored.packed_offsets import packed, unpacked


class Shape(Enum):
    """How the rows of a merge are cut into row groups of about `most` rows."""

    SPLIT = (
        "split"  # one row group up to half as many again, else even ones, cut where the time changes if that is near
    )
    CHUNKS = "chunks"  # even ones, none with more


@dataclass(frozen=True)
class MergeTask:
    """Rows that become one file, wherever that happens."""

    objects: TimelineObjects
    layout: Layout
    sources: tuple[Piece, ...]
    most: int
    how: How
    since: int  # the version of the root that will have it
    shape: Shape = Shape.SPLIT
    dead: I64 = field(default_factory=lambda: NOBODY, compare=False)  # sorted; `dead_among` are enough
    purged_before: int = 0

    @property
    def rows(self) -> int:
        """How many rows it reads at most."""
        return sum(p.rows for p in self.sources)

    @property
    def size(self) -> int:
        return sum(p.size for p in self.sources)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dead": packed(self.dead)}  # a keyed dataset may have very many

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, dead=unpacked(state["dead"]))


@dataclass(frozen=True)
class Merged:
    """The pieces of a new file, in order, without a dead row; how many dead or purged rows were left out."""

    pieces: tuple[Piece, ...]
    dropped: int
    bytes: int  # of the file, 0 when nothing lived

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)


def offset_bounds(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """Where the offsets of some pieces lie: ranges [low, high), ascending and apart."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((p.offset_min, p.offset_max + 1) for p in pieces):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def dead_among(dead: I64, pieces: Sequence[Piece]) -> I64:
    """Those of the dead that may lie in these pieces, so that a task takes no more of them along."""
    found = np.searchsorted(dead, np.array(offset_bounds(pieces), np.int64).reshape(-1, 2))
    parts = [dead[low:high] for low, high in found.tolist() if low < high]
    return np.concatenate(parts) if parts else NOBODY


def merge(task: MergeTask) -> Merged:
    """Write the living rows of a task's sources as one file and put it into the store durably.

    Places are looked at first; then rows are read and written row group by row group.
    """
    files = PieceFiles(task.objects, task.layout)
    parts = [_Part(piece, *files.places(piece)) for piece in task.sources]
    if not parts:
        return Merged((), 0, 0)
    times = np.concatenate([p.times for p in parts])
    offsets = np.concatenate([p.offsets for p in parts])
    positions = order(times, offsets)
    if positions is not None:
        times, offsets = times[positions], offsets[positions]
    living = alive(offsets, task.dead, task.purged_before)
    dropped = 0
    if living is not None:
        dropped = int(len(living) - np.count_nonzero(living))
        positions = np.flatnonzero(living) if positions is None else positions[living]
        times, offsets = times[living], offsets[living]
    if len(times) == 0:
        return Merged((), dropped, 0)
    bounds = [0, *_cuts(times, task), len(times)]
    stretches = [GroupRows(number, lo, hi) for number, (lo, hi) in enumerate(pairwise(bounds))]
    made = write_groups(task.objects, task.layout, _groups(files, parts, positions, times, offsets, bounds))
    pieces = pieces_of(made.name, made.groups, stretches, times, offsets, task.how, task.since)
    return Merged(pieces, dropped, made.size)


def _cuts(times: I64, task: MergeTask) -> list[int]:
    if task.shape is Shape.SPLIT:
        return planner.cuts(times, task.most)
    return even_cuts(len(times), task.most)


def even_cuts(rows: int, most: int) -> list[int]:
    """Where so many rows are cut into even parts, none of which has more than `most`."""
    count = -(-rows // most)
    return [rows * i // count for i in range(1, count)]


@dataclass(frozen=True)
class _Part:
    """What a source brings: a piece cut to its rows, and their places."""

    piece: Piece
    times: I64
    offsets: I64

    @property
    def rows(self) -> int:
        return len(self.times)

    def between(self, lo: Place, hi: Place) -> tuple[int, int]:
        return rows_between(self.times, self.offsets, lo, hi)

    def cut(self, start: int, stop: int) -> Piece:
        """The piece of these rows; what else it says is not looked at by who reads it."""
        return replace(self.piece, row_lo=self.piece.row_lo + start, row_hi=self.piece.row_lo + stop)


def _groups(
    files: PieceFiles, parts: Sequence[_Part], positions: I64 | None, times: I64, offsets: I64, bounds: list[int]
) -> Iterator[pa.Table]:
    """The row groups, one at a time: of each part only what lies between a row group's ends is read for it."""
    names = files.layout.slice_schema.names
    starts = np.cumsum([0, *(p.rows for p in parts)], dtype=np.int64)
    for lo, hi in pairwise(bounds):
        first = Place(int(times[lo]), int(offsets[lo]))
        after = Place(int(times[hi - 1]), int(offsets[hi - 1]) + 1)
        rows = [part.between(first, after) for part in parts]
        used = [i for i, (start, stop) in enumerate(rows) if start < stop]
        tables = [files.read(parts[i].cut(*rows[i]), names) for i in used]
        wanted = np.arange(lo, hi) if positions is None else positions[lo:hi]
        read = np.cumsum([0, *(t.num_rows for t in tables)], dtype=np.int64)
        # From where a row lies among all parts to where it lies among what was read of them.
        shifts = np.array([read[n] - starts[i] - rows[i][0] for n, i in enumerate(used)], np.int64)
        which = np.searchsorted(starts[used], wanted, side="right") - 1
        local = wanted + shifts[which]
        is_all = len(local) == read[-1] and positions is None
        yield pa.concat_tables(tables) if is_all else gathered(tables, local)
