"""The cost rule: which late rows are merged now, and which lie over settled ones until merging them pays. Pure.

Merging K late rows into n that are there writes n + K rows; it pays when that is at most RATIO + 1 times K. Until then
each row is carried, in runs that are put together FAN at a time, so it is written once more for each time the number of
waiting rows grows by that factor. What one update rewrites is bounded by what came in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from floodmark.timeline.order.pieces import Piece, Place, Run
from floodmark.timeline.order.places import rows_before
from floodmark.timeline.plan.settle import PlacesOf, span, span_of

RATIO = 8
"""So many rows that are there are rewritten at most for each late row."""

FAN = 8
"""So many runs of a tier are put together into one of the next."""

DEAD = 4
"""Settled pieces are rewritten when one row in so many is dead."""

MIDDLE = 32
"""A piece is cut into parts of no less than this part of a row group."""

FILE_ROWS = 256
"""A file's footer and its name in a manifest cost about as much as these rows."""

PIECES_PER_GROUP = 2
SPARE_PIECES = 16
"""Pieces are cut while there are fewer than two per row group, and these."""

ALLOWED_GROUPS = 4
ALLOWED_ROWS = 16
"""One update rewrites at most so many row groups, or so many times the rows that came in, whichever is more."""

_first = attrgetter("first")

Stretch = tuple[int, int]
"""Settled pieces by their numbers, half open."""


@dataclass(frozen=True, slots=True)
class Middle:
    """Rows [row_lo, row_hi) of one settled piece, to be merged with what waits in the places [lo, hi)."""

    index: int
    row_lo: int
    row_hi: int
    lo: Place
    hi: Place


@dataclass(frozen=True, slots=True)
class NextTier:
    """Runs that are put together into one, and the tier of that."""

    tier: int
    runs: tuple[Run, ...]


def overhead(most: int) -> int:
    """What a file costs besides its rows, in rows."""
    return min(FILE_ROWS, most // 16)


def allowance(most: int, new_rows: int) -> int:
    """How many rows one update may rewrite."""
    return max(ALLOWED_GROUPS * most, ALLOWED_ROWS * new_rows)


def blocks(settled: Sequence[Piece], most: int) -> list[Stretch]:
    """Settled pieces that are rewritten together: a whole row group by itself, fragments with their neighbours."""
    found: list[Stretch] = []
    rows = 0
    open_block = False
    for i, piece in enumerate(settled):
        fragment = is_fragment(piece, most)
        if fragment and open_block and rows + piece.rows <= most + most // 2:
            found[-1] = (found[-1][0], i + 1)
            rows += piece.rows
        else:
            found.append((i, i + 1))
            rows = piece.rows
        open_block = fragment
    return found


def is_fragment(piece: Piece, most: int) -> bool:
    return not piece.is_whole or 4 * piece.rows < most


def is_dying(piece: Piece) -> bool:
    return piece.dead > 0 and DEAD * piece.dead >= piece.rows


def waiting_rows(settled: Sequence[Piece], runs: Iterable[Run]) -> list[float]:
    """How many rows wait in the span of each settled piece; of a piece over several spans, as its times suggest."""
    rows = [0.0] * len(settled)
    starts = [p.first for p in settled]
    for run in runs:
        at = 1  # spans that begin before a piece of the run do so before the next one too
        for piece in run.pieces:
            at = max(bisect_right(starts, piece.first, at - 1), 1)
            first, size = at - 1, piece.row_hi - piece.row_lo
            last = first if at == len(starts) or piece.last < starts[at] else bisect_right(starts, piece.last, at) - 1
            if first == last:
                rows[first] += size
                continue
            length = piece.last.time - piece.first.time or 1
            edges = [piece.first.time, *(place.time for place in starts[first + 1 : last + 1]), piece.last.time]
            for i in range(first, last + 1):
                rows[i] += size * (edges[i - first + 1] - edges[i - first]) / length
    return rows


def due(settled: Sequence[Piece], runs: Sequence[Run], most: int, allowed: int) -> list[Stretch]:
    """Which settled pieces are rewritten now with what waits over them, in order, the most indebted chosen first."""
    over = waiting_rows(settled, runs)
    owed: list[tuple[float, Stretch]] = []
    for lo, hi in blocks(settled, most):
        if (debt := _debt(settled, over, lo, hi, most)) >= 1:
            owed.append((debt, (lo, hi)))
        elif hi - lo > 1:  # a fragment by itself: the same place may be late again and again
            alone = [(_debt(settled, over, i, i + 1, most), (i, i + 1)) for i in range(lo, hi)]
            owed += [(debt, stretch) for debt, stretch in alone if debt >= 1]
    chosen: list[Stretch] = []
    for _, (lo, hi) in sorted(owed, key=lambda each: -each[0]):
        rows = sum(p.rows for p in settled[lo:hi]) + sum(over[lo:hi])
        if not chosen or rows <= allowed:
            chosen.append((lo, hi))
            allowed -= int(rows)
    return sorted(chosen)


def _debt(settled: Sequence[Piece], over: list[float], lo: int, hi: int, most: int) -> float:
    """At 1 rewriting pays."""
    rows = sum(p.rows for p in settled[lo:hi]) + overhead(most)
    dead = sum(p.dead for p in settled[lo:hi])
    return max(RATIO * sum(over[lo:hi]), DEAD * dead) / rows


def spare(settled: Sequence[Piece], most: int) -> int:
    """By how many pieces a partition may grow through cuts."""
    rows = sum(p.rows for p in settled)
    return PIECES_PER_GROUP * (rows // most) + SPARE_PIECES - len(settled)


def middles(
    settled: Sequence[Piece],
    new: Sequence[Piece],
    runs: Sequence[Run],
    busy: Iterable[Stretch],
    most: int,
    places: PlacesOf,
) -> list[Middle]:
    """Where new pieces cover so little of a settled one that merging this part pays at once; at most one in each.

    Pieces in busy stretches are rewritten anyway. Places are read only where times suggest that little is covered.
    """
    taken = {i for lo, hi in busy for i in range(lo, hi)}
    room = spare(settled, most)
    bounds: dict[int, tuple[Place, Place, int]] = {}
    for piece in new:
        i = span_of(settled, piece.first)
        if i in taken or i != span_of(settled, piece.last):
            continue
        first, last, rows = bounds.get(i, (piece.first, piece.last, 0))
        bounds[i] = min(first, piece.first), max(last, piece.last), rows + piece.rows
    found: list[Middle] = []
    for i, (first, last, rows) in sorted(bounds.items()):
        if room < 2:
            break
        if 2 * _covered(settled[i], first, last) > settled[i].rows + most // MIDDLE:
            continue
        middle = _middle(settled, i, first, last, most, places)
        late = max(rows, _rows_within(runs, middle.lo, middle.hi))
        size = middle.row_hi - middle.row_lo
        if 2 * size <= settled[i].rows and size + overhead(most) <= RATIO * late:
            found.append(middle)
            room -= 2
    return found


def _covered(piece: Piece, first: Place, last: Place) -> float:
    """About how many rows of a piece lie between two places, as its times suggest."""
    lo, hi = max(first.time, piece.first.time), min(last.time, piece.last.time)
    length = piece.last.time - piece.first.time
    return max(0, hi - lo) / length * piece.rows if length else piece.rows


def _middle(settled: Sequence[Piece], index: int, first: Place, last: Place, most: int, places: PlacesOf) -> Middle:
    """The rows of a piece between two places, and some around them, so that no part becomes too small."""
    piece = settled[index]
    times, offsets = places(piece)
    low, high = rows_before(times, offsets, first), rows_before(times, offsets, last)
    least = max(1, most // MIDDLE)
    size = max(high - low, least)
    row_lo = max(0, min((low + high - size) // 2, piece.rows - size))
    row_hi = row_lo + size
    row_lo = 0 if row_lo < least else row_lo
    row_hi = piece.rows if piece.rows - row_hi < least else row_hi
    lo, hi = span(settled, index, index)
    if row_lo > 0:
        lo = min(first, Place(int(times[row_lo]), int(offsets[row_lo])))
    if row_hi < piece.rows:
        hi = Place(int(times[row_hi]), int(offsets[row_hi]))
    return Middle(index, row_lo, row_hi, lo, hi)


def _rows_within(runs: Iterable[Run], lo: Place, hi: Place) -> int:
    """The rows of waiting pieces that lie in [lo, hi) as a whole."""
    total = 0
    for run in runs:
        inside = run.pieces[bisect_left(run.pieces, lo, key=_first) : bisect_left(run.pieces, hi, key=_first)]
        total += sum(p.rows for p in inside if p.last < hi)
    return total


def tiered(runs: Sequence[Run]) -> tuple[list[Run], list[NextTier]]:
    """Which runs go on as they are, and which are put together. What overflows several tiers is written once."""
    left: list[Run] = []
    found: list[NextTier] = []
    pile: list[Run] = []
    for tier in range(max((run.tier for run in runs), default=-1) + 2):
        mine = [run for run in runs if run.tier == tier]
        if len(mine) + bool(pile) >= FAN:
            pile += mine
            continue
        left += mine
        if pile:
            found.append(NextTier(tier, tuple(pile)))
            pile = []
    return left, found
