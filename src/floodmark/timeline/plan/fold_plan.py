"""What a fold rewrites: pieces with something waiting over them, fragments, and small ones. Pure.

A stretch is a range of settled pieces that become one sorted stretch of new row groups, with all that waits over them.
"""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.timeline.order.pieces import How, Partition, Piece
from floodmark.timeline.plan.cost import Stretch, is_fragment, waiting_rows

CROWDED_PER_GROUP = 4
CROWDED = 64
"""A partition folds by itself when it has more than four settled pieces per row group, and these."""

TOGETHER = 4
"""No fewer fragments are folded into one without being asked to."""

DEAD_BYTES = 64 << 20
"""Less than this much that nobody shows is not worth a fold by itself."""


_OWN = (How.MERGED, How.FOLDED)


def stretches(partition: Partition, most: int) -> list[Stretch]:
    """What must be rewritten so that nothing waits, nothing is dead and at most one row group is small."""
    settled = partition.settled
    if not settled:
        return []
    over = waiting_rows(settled, partition.waiting)
    bad = [_is_poor(piece) or over[i] > 0 for i, piece in enumerate(settled)]
    small = [4 * piece.rows < most for piece in settled[:-1]]
    if sum(small) + (4 * settled[-1].rows < most) > 1:  # the last may stay: what comes next makes it grow
        bad = [is_bad or is_small for is_bad, is_small in zip(bad, [*small, False], strict=True)]
    found: list[Stretch] = []
    for i, is_bad in enumerate(bad):
        if is_bad and found and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1)
        elif is_bad:
            found.append((i, i + 1))
    return _joined([_widened(settled, over, one, most) for one in found])


def _is_poor(piece: Piece) -> bool:
    """Whether it shows dead rows, or a reader must decode much that it does not show."""
    if piece.dead:
        return True
    if piece.how is How.SHARED:  # it is small, and would be written together with others again
        return False
    return not piece.is_whole and (_is_own(piece) or 4 * piece.rows < 3 * piece.group_rows)


def _widened(settled: Sequence[Piece], over: list[float], stretch: Stretch, most: int) -> Stretch:
    """A stretch of too few rows takes a neighbour along, the smaller one; the last of a partition may stay small."""
    lo, hi = stretch
    rows = sum(p.rows - p.dead for p in settled[lo:hi]) + sum(over[lo:hi])
    if 4 * rows >= most or hi == len(settled):
        return stretch
    if lo > 0 and settled[lo - 1].rows < settled[hi].rows:
        return lo - 1, hi
    return lo, hi + 1


def _joined(found: list[Stretch]) -> list[Stretch]:
    """Stretches that overlap as one."""
    joined: list[Stretch] = []
    for lo, hi in found:
        if joined and lo < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def by_itself(partition: Partition, most: int) -> list[Stretch]:
    """What is folded without being asked, because pieces are many or much of what is kept is shown by nobody."""
    found: list[Stretch] = []
    if is_crowded(partition, most):
        found += crowds(partition.settled, most)
    if is_wasteful(partition):
        found += [(i, i + 1) for i, p in enumerate(partition.settled) if _is_own(p) and 2 * p.rows < p.group_rows]
    return _joined(sorted(found))


def is_crowded(partition: Partition, most: int) -> bool:
    rows = sum(p.rows for p in partition.settled)
    return len(partition.settled) > CROWDED_PER_GROUP * (rows // most) + CROWDED


def is_wasteful(partition: Partition) -> bool:
    """Whether row groups that were written for this partition hold more that nobody shows than half of all it shows."""
    unseen = unseen_bytes(partition)
    return unseen > DEAD_BYTES and 2 * unseen > sum(p.size for p in partition.pieces)


def unseen_bytes(partition: Partition) -> int:
    """About how many bytes of own row groups no piece shows. The ledger's are its own: they stay in any case."""
    seen: dict[tuple[str, int], tuple[int, int, int]] = {}
    # Spelled out: this runs over all pieces at each update.
    for piece in [p for p in partition.pieces if p.row_hi - p.row_lo != p.group_rows and p.how in _OWN]:
        rows, size, _ = seen.get((piece.file, piece.row_group), (0, 0, 0))
        seen[piece.file, piece.row_group] = rows + piece.rows, size + piece.size, piece.group_rows
    return sum(size * (total - rows) // rows for rows, size, total in seen.values())


def _is_own(piece: Piece) -> bool:
    """Whether its row group was written for this partition alone."""
    return piece.how in _OWN


def crowds(settled: Sequence[Piece], most: int) -> list[Stretch]:
    """Neighbouring fragments that together make at most a row group, none of which is more than half of it.

    So each row is written again only when the row group that it is in has at least doubled.
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
    """A stretch of fragments, without those that are too large to be written again with the others."""
    if hi - lo < TOGETHER:
        return []
    largest = max(range(lo, hi), key=lambda i: settled[i].rows)
    if 2 * settled[largest].rows <= sum(p.rows for p in settled[lo:hi]):
        return [(lo, hi)]
    return _even_crowds(settled, lo, largest) + _even_crowds(settled, largest + 1, hi)
