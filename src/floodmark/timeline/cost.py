"""The cost rule and the fold rule: which pieces an update rewrites, and which a fold rewrites. Pure.

Merging K late rows into n settled rows writes n + K rows. It pays when n + K is at most RATIO + 1 times K. Until then,
late rows wait in runs, and FAN runs are merged into one run of the next tier: each time the number of waiting rows
grows by the factor FAN, a row is written once more. The number of new rows bounds what one update rewrites.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from floodmark.timeline.piece_cuts import ReadTimePoints, span, span_of
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, TimePoint, WaitingRun, rows_before

RATIO = 8
"""Rewrite at most this many settled rows per late row."""

FAN = 8
"""This many runs of a tier are merged into one run of the next tier."""

DEAD_RATIO = 4
"""Settled pieces are rewritten when at least 1/4 of their rows is dead."""

MIDDLE = 32
"""A piece is cut into parts of at least 1/32 of a row group."""

FILE_ROWS = 256
"""A file's footer and its name in a manifest cost about as much as these rows."""

PIECES_PER_GROUP = 2
SPARE_PIECES = 16
"""A partition may have this many pieces per row group, plus a constant; at the limit no piece is cut."""

ALLOWED_GROUPS = 4
ALLOWED_ROWS = 16
"""One update rewrites at most this many row groups, or this many times the new rows, whichever is larger."""

_first = attrgetter("first")

Stretch = tuple[int, int]
"""A half-open range of settled pieces, by number."""


@dataclass(frozen=True, slots=True)
class NarrowMerge:
    """Rows [row_lo, row_hi) of one settled piece, to merge with the rows that wait at the time points [lo, hi)."""

    index: int
    row_lo: int
    row_hi: int
    lo: TimePoint
    hi: TimePoint


@dataclass(frozen=True, slots=True)
class TierMerge:
    """Runs to merge into one, and the tier of the result."""

    tier: int
    runs: tuple[WaitingRun, ...]


def overhead(most: int) -> int:
    """The fixed cost of a file, in rows."""
    return min(FILE_ROWS, most // 16)


def allowance(most: int, new_rows: int) -> int:
    """The number of rows that one update may rewrite."""
    return max(ALLOWED_GROUPS * most, ALLOWED_ROWS * new_rows)


def blocks(settled: Sequence[Piece], most: int) -> list[Stretch]:
    """Settled pieces that are rewritten together: a whole row group alone, fragments with their neighbours."""
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
    return piece.dead > 0 and DEAD_RATIO * piece.dead >= piece.rows


def waiting_rows(settled: Sequence[Piece], runs: Iterable[WaitingRun]) -> list[float]:
    """The number of rows that wait in the span of each settled piece, estimated for pieces over several spans."""
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


def select_due(settled: Sequence[Piece], runs: Sequence[WaitingRun], most: int, allowed: int) -> list[Stretch]:
    """The settled pieces to rewrite now with the rows that wait there, in order. The highest debts are chosen first."""
    over = waiting_rows(settled, runs)
    owed: list[tuple[float, Stretch]] = []
    for lo, hi in blocks(settled, most):
        if (debt := _debt(settled, over, lo, hi, most)) >= 1:
            owed.append((debt, (lo, hi)))
        elif hi - lo > 1:  # check each fragment: rows may arrive late at the same times repeatedly
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
    """The debt of a stretch. Rewriting pays from 1 on."""
    rows = sum(p.rows for p in settled[lo:hi]) + overhead(most)
    dead = sum(p.dead for p in settled[lo:hi])
    return max(RATIO * sum(over[lo:hi]), DEAD_RATIO * dead) / rows


def spare(settled: Sequence[Piece], most: int) -> int:
    """The number of pieces that cuts may still add to a partition."""
    rows = sum(p.rows for p in settled)
    return PIECES_PER_GROUP * (rows // most) + SPARE_PIECES - len(settled)


def find_narrow_merges(
    settled: Sequence[Piece],
    new: Sequence[Piece],
    runs: Sequence[WaitingRun],
    busy: Iterable[Stretch],
    most: int,
    places: ReadTimePoints,
) -> list[NarrowMerge]:
    """The narrow parts of settled pieces, at most one in each, where merging new pieces pays at once.

    Pieces in busy stretches are rewritten anyway. Time points are read only if the bounds suggest a narrow part.
    """
    taken = {i for lo, hi in busy for i in range(lo, hi)}
    room = spare(settled, most)
    bounds: dict[int, tuple[TimePoint, TimePoint, int]] = {}
    for piece in new:
        i = span_of(settled, piece.first)
        if i in taken or i != span_of(settled, piece.last):
            continue
        first, last, rows = bounds.get(i, (piece.first, piece.last, 0))
        bounds[i] = min(first, piece.first), max(last, piece.last), rows + piece.rows
    found: list[NarrowMerge] = []
    for i, (first, last, rows) in sorted(bounds.items()):
        if room < 2:
            break
        if 2 * _estimate_covered(settled[i], first, last) > settled[i].rows + most // MIDDLE:
            continue
        middle = _middle(settled, i, first, last, most, places)
        late = max(rows, _rows_within(runs, middle.lo, middle.hi))
        size = middle.row_hi - middle.row_lo
        if 2 * size <= settled[i].rows and size + overhead(most) <= RATIO * late:
            found.append(middle)
            room -= 2
    return found


def _estimate_covered(piece: Piece, first: TimePoint, last: TimePoint) -> float:
    """The estimated number of rows of a piece between two time points."""
    lo, hi = max(first.time, piece.first.time), min(last.time, piece.last.time)
    length = piece.last.time - piece.first.time
    return max(0, hi - lo) / length * piece.rows if length else piece.rows


def _middle(
    settled: Sequence[Piece], index: int, first: TimePoint, last: TimePoint, most: int, places: ReadTimePoints
) -> NarrowMerge:
    """The rows of a piece between two time points, widened so that no part becomes too small."""
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
        lo = min(first, TimePoint(int(times[row_lo]), int(offsets[row_lo])))
    if row_hi < piece.rows:
        hi = TimePoint(int(times[row_hi]), int(offsets[row_hi]))
    return NarrowMerge(index, row_lo, row_hi, lo, hi)


def _rows_within(runs: Iterable[WaitingRun], lo: TimePoint, hi: TimePoint) -> int:
    """The number of rows of the waiting pieces that are completely inside [lo, hi)."""
    total = 0
    for run in runs:
        inside = run.pieces[bisect_left(run.pieces, lo, key=_first) : bisect_left(run.pieces, hi, key=_first)]
        total += sum(p.rows for p in inside if p.last < hi)
    return total


def merge_tiers(runs: Sequence[WaitingRun]) -> tuple[list[WaitingRun], list[TierMerge]]:
    """The runs to keep, and the runs to merge. A merge that overflows several tiers is written once."""
    left: list[WaitingRun] = []
    found: list[TierMerge] = []
    pile: list[WaitingRun] = []
    for tier in range(max((run.tier for run in runs), default=-1) + 2):
        mine = [run for run in runs if run.tier == tier]
        if len(mine) + bool(pile) >= FAN:
            pile += mine
            continue
        left += mine
        if pile:
            found.append(TierMerge(tier, tuple(pile)))
            pile = []
    return left, found


# Folds

CROWDED_PER_GROUP = 4
CROWDED = 64
"""An update folds a partition with more settled pieces than this many per row group, plus a constant."""

MIN_CROWD = 4
"""An automatic fold joins at least this many fragments."""

DEAD_BYTES = 64 << 20
"""An automatic fold needs more bytes than this that no piece shows."""


_OWN = (PieceOrigin.MERGED, PieceOrigin.FOLDED)


def find_fold_stretches(partition: Partition, most: int) -> list[Stretch]:
    """The stretches to rewrite so that no row waits, no row is dead, and at most one row group is small."""
    settled = partition.settled
    if not settled:
        return []
    over = waiting_rows(settled, partition.waiting)
    bad = [_is_wasteful_piece(piece) or over[i] > 0 for i, piece in enumerate(settled)]
    small = [4 * piece.rows < most for piece in settled[:-1]]
    if sum(small) + (4 * settled[-1].rows < most) > 1:  # the last may stay small: the next rows make it grow
        bad = [is_bad or is_small for is_bad, is_small in zip(bad, [*small, False], strict=True)]
    found: list[Stretch] = []
    for i, is_bad in enumerate(bad):
        if is_bad and found and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1)
        elif is_bad:
            found.append((i, i + 1))
    return _join_overlaps([_widen(settled, over, one, most) for one in found])


def _is_wasteful_piece(piece: Piece) -> bool:
    """Whether it contains dead rows, or shows too little of the row group that a reader must decode."""
    if piece.dead:
        return True
    if piece.how is PieceOrigin.SHARED:  # it is small: a rewrite would put it into a shared row group again
        return False
    return not piece.is_whole and (_is_own(piece) or 4 * piece.rows < 3 * piece.group_rows)


def _widen(settled: Sequence[Piece], over: list[float], stretch: Stretch, most: int) -> Stretch:
    """The stretch, with its smaller neighbour if it has too few rows. The last one of a partition may stay small."""
    lo, hi = stretch
    rows = sum(p.rows - p.dead for p in settled[lo:hi]) + sum(over[lo:hi])
    if 4 * rows >= most or hi == len(settled):
        return stretch
    if lo > 0 and settled[lo - 1].rows < settled[hi].rows:
        return lo - 1, hi
    return lo, hi + 1


def _join_overlaps(found: list[Stretch]) -> list[Stretch]:
    """The stretches, with overlapping ones joined."""
    joined: list[Stretch] = []
    for lo, hi in found:
        if joined and lo < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def find_automatic_folds(partition: Partition, most: int) -> list[Stretch]:
    """The stretches of an automatic fold: there are too many pieces, or too much data that no piece shows."""
    found: list[Stretch] = []
    if is_crowded(partition, most):
        found += group_crowded(partition.settled, most)
    if is_wasteful(partition):
        found += [(i, i + 1) for i, p in enumerate(partition.settled) if _is_own(p) and 2 * p.rows < p.group_rows]
    return _join_overlaps(sorted(found))


def is_crowded(partition: Partition, most: int) -> bool:
    rows = sum(p.rows for p in partition.settled)
    return len(partition.settled) > CROWDED_PER_GROUP * (rows // most) + CROWDED


def is_wasteful(partition: Partition) -> bool:
    """Whether its own row groups hold many bytes that no piece shows: more than half of the bytes that pieces show."""
    unseen = unseen_bytes(partition)
    return unseen > DEAD_BYTES and 2 * unseen > sum(p.size for p in partition.pieces)


def unseen_bytes(partition: Partition) -> int:
    """The estimated bytes of own row groups that no piece shows. Slices do not count: the ledger keeps them."""
    seen: dict[tuple[str, int], tuple[int, int, int]] = {}
    # No properties here: this loop visits all pieces at each update.
    for piece in [p for p in partition.pieces if p.row_hi - p.row_lo != p.group_rows and p.how in _OWN]:
        rows, size, _ = seen.get((piece.file, piece.row_group), (0, 0, 0))
        seen[piece.file, piece.row_group] = rows + piece.rows, size + piece.size, piece.group_rows
    return sum(size * (total - rows) // rows for rows, size, total in seen.values())


def _is_own(piece: Piece) -> bool:
    """Whether its row group was written only for this partition."""
    return piece.how in _OWN


def group_crowded(settled: Sequence[Piece], most: int) -> list[Stretch]:
    """Neighbouring fragments that fit together into one row group, none larger than half of it.

    So the row group of a row at least doubles with each rewrite.
    """
    found: list[Stretch] = []
    lo, rows = 0, 0
    for i, piece in enumerate(settled):
        if not is_fragment(piece, most):
            found += _even_crowds(settled, lo, i)
            lo, rows = i + 1, 0
        elif rows + piece.rows > most:
            found += _even_crowds(settled, lo, i)
            lo, rows = i, piece.rows
        else:
            rows += piece.rows
    return found + _even_crowds(settled, lo, len(settled))


def _even_crowds(settled: Sequence[Piece], lo: int, hi: int) -> list[Stretch]:
    """A stretch of fragments, split at those that are too large to rewrite with the others."""
    if hi - lo < MIN_CROWD:
        return []
    largest = max(range(lo, hi), key=lambda i: settled[i].rows)
    if 2 * settled[largest].rows <= sum(p.rows for p in settled[lo:hi]):
        return [(lo, hi)]
    return _even_crowds(settled, lo, largest) + _even_crowds(settled, largest + 1, hi)
