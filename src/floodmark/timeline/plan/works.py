"""Works: which rows are written anew, file by file, where late rows are planned in among settled pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline.order.pieces import Piece, Place
from floodmark.timeline.order.places import order
from floodmark.timeline.plan import cost, planner
from floodmark.timeline.plan.settle import PlacesOf, cut_at, even

FILE_GROUPS = 16
FILE_BYTES = 1 << 30
"""About so many row groups, or bytes, go into one file, which one task writes."""

_first = attrgetter("first")


@dataclass(frozen=True, eq=False)
class Work:
    """Rows of some pieces that become new row groups, one after the other."""

    sources: tuple[Piece, ...]
    chunks: bool = False  # late rows alone, none of whose row groups may be larger than it should

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.sources)


def files_for(rows: float, size: float, most: int) -> int:
    """How many files so many rows and bytes are written into."""
    return max(1, ceil(rows / (FILE_GROUPS * most)), ceil(size / FILE_BYTES))


def planned(
    groups: Sequence[Sequence[Piece]], late: Sequence[Piece], most: int, places: PlacesOf
) -> list[Piece | Work]:
    """The planner's actions for settled pieces, some of which are taken as one, and late rows in any order."""
    times, offsets = _places(late, places)
    bounds, numbers = planner.ranks([(g[0].first, g[-1].last) for g in groups], times, offsets)
    sizes = [sum(p.rows for p in group) for group in groups]
    known = [planner.Bounds(lo, hi, rows) for (lo, hi), rows in zip(bounds, sizes, strict=True)]
    actions = planner.plan(known, numbers, small=most // 4, most=most)
    edges = [Place(int(times[row]), int(offsets[row])) for row in _starts(actions)]
    parts = iter(_shared_out(late, edges, places))
    found: list[Piece | Work] = []
    before: planner.Action | None = None
    for action in actions:
        if isinstance(action, planner.Merge):
            pieces = [p for group in groups[action.first : action.last + 1] for p in group]
            found.append(Work((*pieces, *next(parts))))
        elif isinstance(action, planner.CopyRowGroup):
            group = groups[action.index]
            found += [Work(tuple(group))] if len(group) > 1 or cost.is_dying(group[0]) else group
        elif not isinstance(before, planner.CopyLate):
            found += _standing_alone(next(parts), most, places)
        before = action
    return found


def _starts(actions: Sequence[planner.Action]) -> list[int]:
    """At which late row each action that takes some begins.

    Chunks that follow each other are one: what is referenced is cut where its row groups end, what is written evenly.
    """
    found: list[int] = []
    before: planner.Action | None = None
    for action in actions:
        follows = isinstance(action, planner.CopyLate) and isinstance(before, planner.CopyLate)
        if not isinstance(action, planner.CopyRowGroup) and not follows:
            found.append(action.late_lo)
        before = action
    return found


def _places(pieces: Sequence[Piece], places: PlacesOf) -> tuple[I64, I64]:
    """The places of the rows of some pieces, in order."""
    if not pieces:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = [places(p) for p in pieces]
    times, offsets = (np.concatenate([each[i] for each in found]) for i in (0, 1))
    positions = order(times, offsets)
    return (times, offsets) if positions is None else (times[positions], offsets[positions])


def _shared_out(late: Iterable[Piece], edges: Sequence[Place], places: PlacesOf) -> list[list[Piece]]:
    """Late pieces cut before each of these places, the first of which is that of the first row."""
    shares: list[list[Piece]] = [[] for _ in edges]
    for piece in late:
        for part in cut_at(piece, edges, places):
            shares[_last_at_most(edges, part.first)].append(part)
    return shares


def _last_at_most(edges: Sequence[Place], place: Place) -> int:
    lo, hi = 0, len(edges)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if edges[middle] <= place else (lo, middle)
    return lo


def _standing_alone(late: Sequence[Piece], most: int, places: PlacesOf) -> list[Piece | Work]:
    """Late rows that become row groups of their own: by reference where one piece has them, and has enough."""
    clusters: list[list[Piece]] = []
    end: Place | None = None
    for piece in sorted(late, key=_first):
        if end is not None and piece.first <= end:
            clusters[-1].append(piece)
            end = max(end, piece.last)
        else:
            clusters.append([piece])
            end = piece.last
    joined: list[list[Piece]] = []
    for share in (share for cluster in clusters for share in bounded(cluster, most, places)):
        goes_along = joined and _is_written(share, most) and _is_written(joined[-1], most)
        if goes_along and _fits([*joined[-1], *share], most):
            joined[-1] += share
        else:
            joined.append(share)
    found: list[Piece | Work] = []
    for each in joined:
        found += even(each[0], most, places) if len(each) == 1 else [Work(tuple(each), chunks=True)]
    return found


def bounded(cluster: list[Piece], most: int, places: PlacesOf) -> list[list[Piece]]:
    """Pieces that overlap, cut at places into what one file each takes."""
    rows, size = sum(p.rows for p in cluster), sum(p.size for p in cluster)
    count = min(files_for(rows, size, most), rows)
    if len(cluster) < 2 or count < 2:
        return [cluster]
    times, offsets = _places(cluster, places)
    starts = [rows * i // count for i in range(count)]
    return _shared_out(cluster, [Place(int(times[row]), int(offsets[row])) for row in starts], places)


def _fits(pieces: Sequence[Piece], most: int) -> bool:
    return files_for(sum(p.rows for p in pieces), sum(p.size for p in pieces), most) < 2


def _is_written(cluster: Sequence[Piece], most: int) -> bool:
    return len(cluster) > 1 or 4 * cluster[0].rows < most
