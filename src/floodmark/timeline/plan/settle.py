"""Settling: how pieces are cut by reference, and which rows of new ones find room between those that are there. Pure.

Nothing is read but the places of pieces that must be cut, by a function that the caller gives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline.order.pieces import BEGINNING, END, Piece, Place, Run
from floodmark.timeline.order.places import Places, rows_before
from floodmark.timeline.plan.planner import split

PlacesOf: TypeAlias = Callable[[Piece], Places]
"""Reads the times and offsets of a piece's rows."""

ROOM = 16
"""Some rows of a piece settle in a gap, and the others wait, when they are at least this part of a row group."""

_first = attrgetter("first")
_last = attrgetter("last")


@dataclass(frozen=True)
class Settled:
    """The settled pieces after some new ones found room, and those for which there was none."""

    pieces: tuple[Piece, ...]
    rest: tuple[Piece, ...]


def cut(piece: Piece, rows: Iterable[int], places: Places) -> list[Piece]:
    """A piece in parts, by reference, cut before these of its rows; the dead are shared out in proportion."""
    edges = sorted({0, piece.rows, *(min(max(row, 0), piece.rows) for row in rows)})
    if len(edges) < 3:
        return [piece]
    times, offsets = places
    parts = []
    for lo, hi in pairwise(edges):
        dead = piece.dead * hi // piece.rows - piece.dead * lo // piece.rows
        size = piece.size * hi // piece.rows - piece.size * lo // piece.rows
        low, high = int(offsets[lo:hi].min()), int(offsets[lo:hi].max())
        first, last = (Place(int(times[i]), int(offsets[i])) for i in (lo, hi - 1))
        row_lo, row_hi = piece.row_lo + lo, piece.row_lo + hi
        parts.append(
            replace(
                piece,
                row_lo=row_lo,
                row_hi=row_hi,
                first=first,
                last=last,
                offset_min=low,
                offset_max=high,
                size=size,
                dead=dead,
            )
        )
    return parts


def cut_at(piece: Piece, at: Iterable[Place], places: PlacesOf) -> list[Piece]:
    """A piece in parts, cut before these places. It is read only if one of them is inside."""
    inside = [place for place in at if piece.first < place <= piece.last]
    if not inside:
        return [piece]
    times, offsets = places(piece)
    return cut(piece, [rows_before(times, offsets, place) for place in inside], (times, offsets))


def parted(pieces: Iterable[Piece], lo: Place, hi: Place, places: PlacesOf) -> tuple[list[Piece], list[Piece]]:
    """Pieces in any order, cut into what lies in [lo, hi) and what does not."""
    inside: list[Piece] = []
    outside: list[Piece] = []
    for piece in pieces:
        for part in cut_at(piece, (lo, hi), places):
            (inside if lo <= part.first < hi else outside).append(part)
    return inside, outside


def without(runs: Iterable[Run], lo: Place, hi: Place, places: PlacesOf) -> tuple[list[Piece], list[Run]]:
    """The rows of runs that lie in [lo, hi), and the runs without them; a run that is left empty is gone."""
    taken: list[Piece] = []
    left: list[Run] = []
    for run in runs:
        if run.pieces[-1].last < lo or run.pieces[0].first >= hi:
            left.append(run)
            continue
        inside, outside = parted(run.pieces, lo, hi, places)
        taken += inside
        if outside:
            left.append(replace(run, pieces=tuple(outside)) if inside else run)
    return taken, left


def span(settled: Sequence[Piece], first: int, last: int) -> tuple[Place, Place]:
    """The places [lo, hi) that belong to the settled pieces first to last, which is inclusive."""
    lo = BEGINNING if first == 0 else settled[first].first
    hi = END if last + 1 == len(settled) else settled[last + 1].first
    return lo, hi


def span_of(settled: Sequence[Piece], place: Place) -> int:
    """Which settled piece's span a place lies in."""
    return max(bisect_right(settled, place, key=_first) - 1, 0)


def at_spans(pieces: Iterable[Piece], settled: Sequence[Piece], least: int, places: PlacesOf) -> list[Piece]:
    """Pieces cut where the spans of settled ones begin, but into no parts of fewer than `least` rows.

    So what lies over each settled piece is known without a look into files, and rows that are spread thin over many
    spans do not become a piece for each.
    """
    parts: list[Piece] = []
    for piece in pieces:
        starts = settled[bisect_right(settled, piece.first, key=_first) : bisect_right(settled, piece.last, key=_first)]
        if settled and starts and starts[0] is settled[0]:
            starts = starts[1:]  # the first span begins at the beginning
        if not starts or piece.rows < 2 * least:
            parts.append(piece)
            continue
        times, offsets = places(piece)
        rows: list[int] = []
        for row in sorted({rows_before(times, offsets, p.first) for p in starts}):
            if row - (rows[-1] if rows else 0) >= least and piece.rows - row >= least:
                rows.append(row)
        parts += cut(piece, rows, (times, offsets))
    return parts


def even(piece: Piece, most: int, places: PlacesOf) -> list[Piece]:
    """A piece of more than half as many rows again as there should be, in even parts."""
    if piece.rows <= most + most // 2:
        return [piece]
    return cut(piece, np.cumsum(split(piece.rows, most)).tolist(), places(piece))


def settle(settled: Sequence[Piece], pieces: Iterable[Piece], most: int, places: PlacesOf) -> Settled:
    """New pieces, in order, put between the settled ones where there is room for them, by reference.

    A piece that lies in one gap settles whole. One that overlaps settled pieces is cut: what lies beyond the last, and
    what lies in a gap if it is much, settles; the rest does not.
    """
    found = list(settled)
    rest: list[Piece] = []
    for piece in pieces:
        for part in even(piece, most, places):
            for stretch, fits in _stretches(found, part, max(1, most // ROOM), places):
                if fits:
                    found.insert(bisect_left(found, stretch.first, key=_first), stretch)
                else:
                    rest.append(stretch)
    return Settled(tuple(found), tuple(rest))


def _stretches(settled: Sequence[Piece], piece: Piece, least: int, places: PlacesOf) -> list[tuple[Piece, bool]]:
    """Parts of a piece, and of each whether it lies between settled ones and is worth being there."""
    low, high = bisect_left(settled, piece.first, key=_last), bisect_left(settled, piece.last, key=_first)
    if low >= high:
        return [(piece, True)]
    times, offsets = places(piece)
    over = [_rows_over(settled[i], times, offsets) for i in range(low, high)]
    edges = [0, *(row for pair in over for row in pair), piece.rows]
    gaps = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
    beyond = high == len(settled)
    # What lies beyond the last piece settles though it is little: most streams are nearly in order, and go on.
    fits = [
        (lo, hi) for lo, hi in gaps if hi - lo >= least or (beyond and hi == piece.rows and 2 * (hi - lo) >= piece.rows)
    ]
    cuts = [row for pair in fits for row in pair]
    inside = {lo for lo, _ in fits}
    return [(part, part.row_lo - piece.row_lo in inside) for part in cut(piece, cuts, (times, offsets))]


def _rows_over(settled: Piece, times: I64, offsets: I64) -> tuple[int, int]:
    """Which of these rows lie between the first and the last place of a settled piece."""
    after = Place(settled.last.time, settled.last.offset + 1)
    return rows_before(times, offsets, settled.first), rows_before(times, offsets, after)
