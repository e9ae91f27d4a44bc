"""Cuts of pieces by reference, and settling: which rows of new pieces fit between the settled ones. Pure.

Cuts need the time points of a piece's rows; the caller passes a function that reads them.
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
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Piece, TimePoint, TimePoints, WaitingRun, rows_before
from floodmark.timeline.planner import split

ReadTimePoints: TypeAlias = Callable[[Piece], TimePoints]
"""Reads the event times and offsets of a piece's rows."""

MIN_SETTLED_PART = 16
"""A part of a piece settles in a gap if it is at least 1/16 of a row group; the other rows wait."""

_first = attrgetter("first")
_last = attrgetter("last")


@dataclass(frozen=True)
class SettleResult:
    """The settled pieces, including the new ones that fit, and the new pieces that did not fit."""

    pieces: tuple[Piece, ...]
    rest: tuple[Piece, ...]


def cut_piece(piece: Piece, rows: Iterable[int], places: TimePoints) -> list[Piece]:
    """Cut a piece before these rows. The parts reference the same file; the dead count is split in proportion."""
    edges = sorted({0, piece.rows, *(min(max(row, 0), piece.rows) for row in rows)})
    if len(edges) < 3:
        return [piece]
    times, offsets = places
    parts = []
    for lo, hi in pairwise(edges):
        dead = piece.dead * hi // piece.rows - piece.dead * lo // piece.rows
        size = piece.size * hi // piece.rows - piece.size * lo // piece.rows
        low, high = int(offsets[lo:hi].min()), int(offsets[lo:hi].max())
        first, last = (TimePoint(int(times[i]), int(offsets[i])) for i in (lo, hi - 1))
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


def cut_at(piece: Piece, at: Iterable[TimePoint], places: ReadTimePoints) -> list[Piece]:
    """Cut a piece before these time points. It is read only if one of them is inside."""
    inside = [place for place in at if piece.first < place <= piece.last]
    if not inside:
        return [piece]
    times, offsets = places(piece)
    return cut_piece(piece, [rows_before(times, offsets, place) for place in inside], (times, offsets))


def split_at(
    pieces: Iterable[Piece], lo: TimePoint, hi: TimePoint, places: ReadTimePoints
) -> tuple[list[Piece], list[Piece]]:
    """Cut pieces, in any order, into the parts inside [lo, hi) and the parts outside."""
    inside: list[Piece] = []
    outside: list[Piece] = []
    for piece in pieces:
        for part in cut_at(piece, (lo, hi), places):
            (inside if lo <= part.first < hi else outside).append(part)
    return inside, outside


def remove_range(
    runs: Iterable[WaitingRun], lo: TimePoint, hi: TimePoint, places: ReadTimePoints
) -> tuple[list[Piece], list[WaitingRun]]:
    """Remove the rows in [lo, hi) from runs: the removed pieces, and the remaining runs without empty ones."""
    taken: list[Piece] = []
    left: list[WaitingRun] = []
    for run in runs:
        if run.pieces[-1].last < lo or run.pieces[0].first >= hi:
            left.append(run)
            continue
        inside, outside = split_at(run.pieces, lo, hi, places)
        taken += inside
        if outside:
            left.append(replace(run, pieces=tuple(outside)) if inside else run)
    return taken, left


def span(settled: Sequence[Piece], first: int, last: int) -> tuple[TimePoint, TimePoint]:
    """The span [lo, hi) of the settled pieces first to last, inclusive."""
    lo = MIN_POINT if first == 0 else settled[first].first
    hi = MAX_POINT if last + 1 == len(settled) else settled[last + 1].first
    return lo, hi


def span_of(settled: Sequence[Piece], place: TimePoint) -> int:
    """The number of the settled piece whose span contains a time point."""
    return max(bisect_right(settled, place, key=_first) - 1, 0)


def cut_at_spans(pieces: Iterable[Piece], settled: Sequence[Piece], least: int, places: ReadTimePoints) -> list[Piece]:
    """Cut pieces where the spans of settled pieces begin, but not into parts of fewer than `least` rows.

    So the rows over each settled piece are known without reading files, and a few rows spread over many spans do not
    become one piece per span.
    """
    parts: list[Piece] = []
    for piece in pieces:
        starts = settled[bisect_right(settled, piece.first, key=_first) : bisect_right(settled, piece.last, key=_first)]
        if settled and starts and starts[0] is settled[0]:
            starts = starts[1:]  # the first span has no lower bound
        if not starts or piece.rows < 2 * least:
            parts.append(piece)
            continue
        times, offsets = places(piece)
        rows: list[int] = []
        for row in sorted({rows_before(times, offsets, p.first) for p in starts}):
            if row - (rows[-1] if rows else 0) >= least and piece.rows - row >= least:
                rows.append(row)
        parts += cut_piece(piece, rows, (times, offsets))
    return parts


def cut_evenly(piece: Piece, most: int, places: ReadTimePoints) -> list[Piece]:
    """Cut a piece of more than 1.5 times `most` rows into even parts."""
    if piece.rows <= most + most // 2:
        return [piece]
    return cut_piece(piece, np.cumsum(split(piece.rows, most)).tolist(), places(piece))


def settle(settled: Sequence[Piece], pieces: Iterable[Piece], most: int, places: ReadTimePoints) -> SettleResult:
    """Insert new pieces, in order, between the settled ones where they fit, by reference.

    A piece inside one gap settles whole. A piece that overlaps settled pieces is cut: the part after the last settled
    piece and large parts in gaps settle, the rest waits.
    """
    found = list(settled)
    rest: list[Piece] = []
    for piece in pieces:
        for part in cut_evenly(piece, most, places):
            for stretch, fits in _stretches(found, part, max(1, most // MIN_SETTLED_PART), places):
                if fits:
                    found.insert(bisect_left(found, stretch.first, key=_first), stretch)
                else:
                    rest.append(stretch)
    return SettleResult(tuple(found), tuple(rest))


def _stretches(settled: Sequence[Piece], piece: Piece, least: int, places: ReadTimePoints) -> list[tuple[Piece, bool]]:
    """The parts of a piece; for each, whether it is in a gap and large enough to settle there."""
    low, high = bisect_left(settled, piece.first, key=_last), bisect_left(settled, piece.last, key=_first)
    if low >= high:
        return [(piece, True)]
    times, offsets = places(piece)
    over = [_rows_over(settled[i], times, offsets) for i in range(low, high)]
    edges = [0, *(row for pair in over for row in pair), piece.rows]
    gaps = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
    beyond = high == len(settled)
    # Rows after the last piece settle even if they are few: most streams are nearly in order, so more rows follow.
    fits = [
        (lo, hi) for lo, hi in gaps if hi - lo >= least or (beyond and hi == piece.rows and 2 * (hi - lo) >= piece.rows)
    ]
    cuts = [row for pair in fits for row in pair]
    inside = {lo for lo, _ in fits}
    return [(part, part.row_lo - piece.row_lo in inside) for part in cut_piece(piece, cuts, (times, offsets))]


def _rows_over(settled: Piece, times: I64, offsets: I64) -> tuple[int, int]:
    """The range of rows between the first and the last time point of a settled piece."""
    after = TimePoint(settled.last.time, settled.last.offset + 1)
    return rows_before(times, offsets, settled.first), rows_before(times, offsets, after)
