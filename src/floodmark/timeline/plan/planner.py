"""The planner: which row groups late rows are merged into, which stay as they are, and which rows stand alone.

It is pure: bounds and sorted times in, actions out, in time order. A late row belongs to the row group whose closed
bounds hold its time. Rows in a gap go into a neighbour that is small, the previous one first, or become row groups of
their own. Of several row groups that share a boundary, the first takes the late rows at it; when a commit removes
duplicates, those are merged together, since the row to be replaced may be in any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from floodmark.timeline.order.pieces import Place

I64 = npt.NDArray[np.int64]

SMALL = 4096
NO_LIMIT = 2**31 - 1

_NEARBY = 8
"""A cut moves by at most this part of a chunk to a place where the time changes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A row group: its smallest and its largest time, both inclusive, and how many rows it has."""

    min: Any
    max: Any
    rows: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows [row_lo, row_hi) of the row groups first to last, one after the other, with late rows [late_lo, late_hi)."""

    first: int
    last: int  # inclusive
    row_lo: int
    row_hi: int
    late_lo: int
    late_hi: int


@dataclass(frozen=True, slots=True)
class CopyRowGroup:
    """Rows [row_lo, row_hi) of a row group as they are (the seed's COPY_ROW_GROUP_SLICE)."""

    index: int
    row_lo: int
    row_hi: int


@dataclass(frozen=True, slots=True)
class CopyLate:
    """Late rows [late_lo, late_hi) as a row group of their own (the seed's COPY_O3)."""

    late_lo: int
    late_hi: int


Action: TypeAlias = Merge | CopyRowGroup | CopyLate


@dataclass(slots=True)
class _Block:
    """Neighbouring row groups that are treated as one, and the late rows that they take."""

    first: int
    last: int
    rows: int
    lo: int
    hi: int

    def action(self) -> Action:
        if self.lo < self.hi:
            return Merge(self.first, self.last, 0, self.rows, self.lo, self.hi)
        return CopyRowGroup(self.first, 0, self.rows)


def plan(
    groups: Sequence[Bounds],
    late: npt.NDArray[Any],
    *,
    small: int = SMALL,
    most: int = NO_LIMIT,
    dedup: bool = False,
) -> list[Action]:
    """What becomes of row groups in time order, and of late rows in time order.

    A row group of fewer than `small` rows takes what lies in the gaps beside it. Late rows that stand alone are cut
    into chunks of `most` rows. `dedup` says that late rows may replace rows at the same time.
    """
    blocks = _blocks(groups, late, dedup)
    claimed = 0
    for i, block in enumerate(blocks):
        block.lo = max(block.lo, claimed)  # at a shared boundary the previous one has taken them
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
    """How many rows each row group of a merge result gets: all in one up to half as many again, else even chunks."""
    count = -(-total // _largest(most))
    if count == 0:
        return []
    even, over = divmod(total, count)
    return [even + 1] * over + [even] * (count - over)


def cuts(times: npt.NDArray[Any], most: int) -> list[int]:
    """The rows before which a merge result with these sorted times is cut, so that `split` holds but for ties.

    A cut moves to where the time changes if that is near and no chunk grows too large by it.
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
    groups: Sequence[tuple[Place, Place]], late_times: I64, late_offsets: I64
) -> tuple[list[tuple[int, int]], I64]:
    """Places as integers that `plan` can compare: the bounds of row groups, and the late rows in their order.

    Only comparisons with late rows count, so bounds between the same two late rows share a number.
    """
    bounds = [place for pair in groups for place in pair]
    times = np.array([p.time for p in bounds], np.int64)
    low = np.searchsorted(late_times, times, "left")
    high = np.searchsorted(late_times, times, "right")
    for i in np.flatnonzero(low < high).tolist():  # late rows at the very time of a bound: offsets decide
        low[i] += np.searchsorted(late_offsets[low[i] : high[i]], bounds[i].offset, "left")
    is_late = np.zeros(len(bounds), np.int64)
    inside = np.flatnonzero(low < high)
    is_late[inside] = late_offsets[low[inside]] == np.array([p.offset for p in bounds], np.int64)[inside]
    numbers = (2 * low + is_late).tolist()
    return list(zip(numbers[::2], numbers[1::2], strict=True)), 2 * np.arange(len(late_times), dtype=np.int64) + 1


def _blocks(groups: Sequence[Bounds], late: npt.NDArray[Any], dedup: bool) -> list[_Block]:
    """The row groups with the late rows within their bounds; those that must be merged together as one."""
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
    if not values or late.dtype.kind in "iu":  # signed and unsigned integers would meet as floats
        return np.array(values, late.dtype)
    return np.array(values)


def _alone(lo: int, hi: int, small: int, most: int) -> list[Action]:
    """Late rows [lo, hi) as chunks of `most`; the last takes along a remainder that would be small by itself."""
    at = list(range(lo, hi, most))
    remainder = hi - at[-1] if at else 0
    if len(at) > 1 and remainder < small and most + remainder <= _largest(most):
        at.pop()
    return [CopyLate(start, end) for start, end in pairwise([*at, hi])]


def _largest(most: int) -> int:
    """How many rows a row group may have: half as many again as it should."""
    return most + most // 2


def _nearest_change(times: npt.NDArray[Any], low: int, high: int, wanted: int) -> int:
    """The row in [low, high] nearest to the wanted one at which the time differs from the row before; else that one."""
    changes = low + np.flatnonzero(times[low : high + 1] != times[low - 1 : high])
    if len(changes) == 0:
        return wanted
    return int(changes[np.argmin(np.abs(changes - wanted))])
