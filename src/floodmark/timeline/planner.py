"""The planner: which row groups late rows are merged into, which row groups stay, which late rows stay separate. Pure.

It takes bounds and sorted times, and returns actions in time order. A late row belongs to the row group whose closed
bounds contain its time. Rows in a gap go to a small neighbour, the previous one first, or become separate row groups.
If several row groups share a boundary, the first takes the late rows at it. If a commit removes duplicates, these row
groups are merged together, since any of them may have the row to replace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floodmark.storage.arrays import I64
from floodmark.timeline.pieces import TimePoint

SMALL = 4096
NO_LIMIT = 2**31 - 1

_NEARBY = 8
"""A cut moves by at most 1/8 of a chunk to reach a change of the time."""


@dataclass(frozen=True, slots=True)
class RowGroupBounds:
    """A row group: its smallest and largest time, both inclusive, and its number of rows."""

    min: Any
    max: Any
    rows: int


@dataclass(frozen=True, slots=True)
class MergeLate:
    """Merge rows [row_lo, row_hi) of the consecutive row groups first to last with late rows [late_lo, late_hi)."""

    first: int
    last: int  # inclusive
    row_lo: int
    row_hi: int
    late_lo: int
    late_hi: int


@dataclass(frozen=True, slots=True)
class CopyRowGroup:
    """Keep rows [row_lo, row_hi) of a row group unchanged (the seed's COPY_ROW_GROUP_SLICE)."""

    index: int
    row_lo: int
    row_hi: int


@dataclass(frozen=True, slots=True)
class CopyLate:
    """Write late rows [late_lo, late_hi) as a separate row group (the seed's COPY_O3)."""

    late_lo: int
    late_hi: int


Action: TypeAlias = MergeLate | CopyRowGroup | CopyLate


@dataclass(slots=True)
class _Block:
    """Neighbouring row groups that are treated as one, and the late rows [lo, hi) that they take."""

    first: int
    last: int
    rows: int
    lo: int
    hi: int

    def action(self) -> Action:
        if self.lo < self.hi:
            return MergeLate(self.first, self.last, 0, self.rows, self.lo, self.hi)
        return CopyRowGroup(self.first, 0, self.rows)


def plan(
    groups: Sequence[RowGroupBounds],
    late: npt.NDArray[Any],
    *,
    small: int = SMALL,
    most: int = NO_LIMIT,
    dedup: bool = False,
) -> list[Action]:
    """Plan the actions for row groups and late rows, both in time order.

    A row group of fewer than `small` rows takes the late rows in the gaps next to it. Late rows that stay separate are
    cut into chunks of `most` rows. With `dedup`, late rows may replace rows at the same time.
    """
    blocks = _blocks(groups, late, dedup)
    claimed = 0
    for i, block in enumerate(blocks):
        block.lo = max(block.lo, claimed)  # at a shared boundary, the previous block has taken them
        block.hi = max(block.hi, block.lo)
        if claimed < block.lo:
            if i > 0 and blocks[i - 1].rows < small:
                blocks[i - 1].hi = block.lo
            elif block.rows < small:
                block.lo = claimed
        claimed = block.hi
    if blocks and blocks[-1].rows < small:
        blocks[-1].hi = len(late)
    actions: list[Action] = []
    at = 0
    for block in blocks:
        actions += [*_alone(at, block.lo, small, most), block.action()]
        at = block.hi
    return actions + _alone(at, len(late), small, most)


def split(total: int, most: int) -> list[int]:
    """The rows per row group of a merge result: all in one up to 1.5 times `most`, else even chunks."""
    count = -(-total // _largest(most))
    if count == 0:
        return []
    even, over = divmod(total, count)
    return [even + 1] * over + [even] * (count - over)


def cuts(times: npt.NDArray[Any], most: int) -> list[int]:
    """The rows before which to cut a merge result with these sorted times: the cuts of `split`, moved to time changes.

    A cut moves only if a change of the time is near and no chunk becomes too large.
    """
    sizes = split(len(times), most)
    even = np.cumsum(sizes).tolist()
    found: list[int] = []
    before = 0
    for i in range(len(sizes) - 1):
        near = min(sizes[i], sizes[i + 1]) // _NEARBY
        low = max(even[i] - near, even[i + 1] - _largest(most), before + 1)
        high = min(even[i] + near, before + _largest(most), even[i + 1] - 1)
        before = _nearest_change(times, low, high, even[i])
        found.append(before)
    return found


def ranks(
    groups: Sequence[tuple[TimePoint, TimePoint]], late_times: I64, late_offsets: I64
) -> tuple[list[tuple[int, int]], I64]:
    """Time points as integers that `plan` can compare: the bounds of row groups, and the sorted late rows.

    Only comparisons with late rows matter, so bounds between the same two late rows share a number.
    """
    bounds = [place for pair in groups for place in pair]
    times = np.array([p.time for p in bounds], np.int64)
    low = np.searchsorted(late_times, times, "left")
    high = np.searchsorted(late_times, times, "right")
    for i in np.flatnonzero(low < high).tolist():  # late rows with exactly the time of a bound: offsets decide
        low[i] += np.searchsorted(late_offsets[low[i] : high[i]], bounds[i].offset, "left")
    is_late = np.zeros(len(bounds), np.int64)
    inside = np.flatnonzero(low < high)
    is_late[inside] = late_offsets[low[inside]] == np.array([p.offset for p in bounds], np.int64)[inside]
    numbers = (2 * low + is_late).tolist()
    return list(zip(numbers[::2], numbers[1::2], strict=True)), 2 * np.arange(len(late_times), dtype=np.int64) + 1


def _blocks(groups: Sequence[RowGroupBounds], late: npt.NDArray[Any], dedup: bool) -> list[_Block]:
    """The row groups with the late rows within their bounds. Row groups that must be merged together are one block."""
    lows, highs = _as_keys([g.min for g in groups], late), _as_keys([g.max for g in groups], late)
    if len(groups) and not ((lows <= highs).all() and (highs[:-1] <= lows[1:]).all()):
        raise ValueError("row groups must be in time order and must not overlap")
    lo = np.searchsorted(late, lows, "left").tolist()
    hi = np.searchsorted(late, highs, "right").tolist()
    at_max = np.searchsorted(late, highs, "left").tolist()
    shared = (highs[:-1] == lows[1:]).tolist()
    blocks: list[_Block] = []
    for i, group in enumerate(groups):
        if dedup and i > 0 and shared[i - 1] and at_max[i - 1] < hi[i - 1]:
            blocks[-1].last = i
            blocks[-1].rows += group.rows
            blocks[-1].hi = hi[i]
        else:
            blocks.append(_Block(i, i, group.rows, lo[i], hi[i]))
    return blocks


def _as_keys(values: list[Any], late: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bounds as an array that compares exactly with the late times."""
    if not values or late.dtype.kind in "iu":  # numpy would compare signed with unsigned integers as floats
        return np.array(values, late.dtype)
    return np.array(values)


def _alone(lo: int, hi: int, small: int, most: int) -> list[Action]:
    """Late rows [lo, hi) as chunks of `most` rows. A small remainder joins the last chunk."""
    at = list(range(lo, hi, most))
    remainder = hi - at[-1] if at else 0
    if len(at) > 1 and remainder < small and most + remainder <= _largest(most):
        at.pop()
    return [CopyLate(start, end) for start, end in pairwise([*at, hi])]


def _largest(most: int) -> int:
    """The most rows of a row group: 1.5 times the target."""
    return most + most // 2


def _nearest_change(times: npt.NDArray[Any], low: int, high: int, target: int) -> int:
    """The row in [low, high] nearest to the target row where the time changes; the target row if there is none."""
    changes = low + np.flatnonzero(times[low : high + 1] != times[low - 1 : high])
    if len(changes) == 0:
        return target
    return int(changes[np.argmin(np.abs(changes - target))])
