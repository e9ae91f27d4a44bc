"""Pieces and partitions, and timeline order. Pure.

A piece is a range of rows of a row group. A timeline is in the order of (event time, offset). No two records share such
a time point, so records of equal time keep their arrival order, and neighbouring pieces never touch. Times are
microseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from floodmark.errors import BadEventTime
from floodmark.ledger.schema import Layout
from floodmark.storage.arrays import I64, Mask, integer_order


class TimePoint(NamedTuple):
    """The time point of a record: its event time in microseconds, then its offset."""

    time: int
    offset: int


MIN_POINT = TimePoint(-(2**63), -1)
MAX_POINT = TimePoint(2**63 - 1, 2**63 - 1)


class PieceOrigin(IntEnum):
    """The origin of a piece."""

    SLICE = 0  # rows of a ledger slice, by reference
    SORTED = 1  # a copy of a slice in time order
    MERGED = 2  # late rows merged with settled rows or with each other
    FOLDED = 3
    SHARED = 4  # merged or folded, in a row group with rows of other partitions


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows [row_lo, row_hi) of one row group of a file, in timeline order."""

    file: str  # relative to the dataset's folder
    row_group: int
    row_lo: int
    row_hi: int
    group_rows: int  # the number of rows of the whole row group
    first: TimePoint
    last: TimePoint
    offset_min: int
    offset_max: int
    size: int  # bytes of these rows in the file, in proportion to the row group's
    how: PieceOrigin
    since: int  # the version of the root that first named it
    dead: int = 0  # known dead rows in its span, including those of waiting pieces

    @property
    def rows(self) -> int:
        return self.row_hi - self.row_lo

    @property
    def is_whole(self) -> bool:
        """Whether it is its whole row group."""
        return self.row_hi - self.row_lo == self.group_rows


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """Late rows that wait until merging them into settled pieces pays: pieces in order that do not overlap."""

    id: int
    tier: int  # how many times its rows were merged with other runs
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)


@dataclass(frozen=True)
class Partition:
    """One time interval: settled pieces, in order and not overlapping, and the runs that overlap them."""

    start: int  # microseconds
    settled: tuple[Piece, ...] = ()
    waiting: tuple[WaitingRun, ...] = ()
    rows_in: int = 0  # all records that ever came in
    bytes_in: int = 0  # their bytes in the ledger's slices
    bytes_written: int = 0  # bytes that the timeline has written for them

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All pieces; settled ones come first."""
        return tuple(chain(self.settled, *[run.pieces for run in self.waiting]))

    @property
    def rows(self) -> int:
        """The number of rows in its pieces, including dead ones."""
        return sum([p.row_hi - p.row_lo for p in self.pieces])

    @property
    def dead(self) -> int:
        return sum(p.dead for p in self.settled)


@dataclass(frozen=True)
class Bundle:
    """Partitions that share a manifest."""

    partitions: tuple[Partition, ...] = field(default=())


# Timeline order

TimePoints = tuple[I64, I64]
"""The time points of several records: event times in microseconds, and offsets."""

_FEW_RUNS = 256
"""Fewer consecutive sorted runs than this are faster to merge (stable sort) than to sort."""

_TABLE = 1 << 20
"""Offsets within a range smaller than this are looked up in a table of the whole range, even if there are few."""


def time_column(layout: Layout) -> str:
    """The column with the event time."""
    return str(layout.payload_schema.field(0).name)


def time_points_of(table: pa.Table, layout: Layout) -> TimePoints:
    """The event times and offsets of a table's records."""
    offsets = table.column(layout.vocab.offset)
    return micros(table.column(time_column(layout))), _numbers(offsets, pa.int64())


def micros(column: pa.ChunkedArray | pa.Array) -> I64:
    """Event times of any supported type, as microseconds since the epoch, UTC."""
    if column.null_count:
        raise BadEventTime(
            "a record has no event time", hint="give every record an event time: a timeline is sorted by it"
        )
    t: Any = column.type
    if pa.types.is_timestamp(t) and t.unit == "us":
        return _numbers(column, t)
    if pa.types.is_timestamp(t) and t.unit == "ns":  # in chains of other engines; Arrow would round towards 1970
        return _numbers(column, t) // 1000
    try:
        wide = column.cast(pa.timestamp("us", t.tz if pa.types.is_timestamp(t) else None))
    except pa.ArrowInvalid as error:
        raise BadEventTime(
            f"an event time does not fit into microseconds since 1970: {error}",
            hint="correct the record: event times must be between the years -290307 and 294246",
        ) from error
    return _numbers(wide, wide.type)


def _numbers(column: pa.ChunkedArray | pa.Array, expected: pa.DataType) -> I64:
    """A column of 64-bit values as integers, without a copy if it is one chunk."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.type != expected:
        column = column.cast(expected)
    found: I64 = column.view(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def in_order(times: I64, offsets: I64) -> bool:
    """Whether time points ascend."""
    if (times[1:] < times[:-1]).any():
        return False
    ties = np.flatnonzero(times[1:] == times[:-1])
    return bool((offsets[ties] < offsets[ties + 1]).all())


def sort_positions(times: I64, offsets: I64) -> I64 | None:
    """The positions that sort time points; None if they are sorted. Concatenated sorted runs sort fast."""
    back = int(np.count_nonzero(times[1:] < times[:-1]))
    if back == 0 and in_order(times, offsets):
        return None
    positions: I64 = np.argsort(times, kind="stable") if back < _FEW_RUNS else integer_order(times)
    sorted_times = times[positions]
    tied = np.zeros(len(times), np.bool_)
    same = sorted_times[1:] == sorted_times[:-1]
    tied[1:] = same
    tied[:-1] |= same
    among = np.flatnonzero(tied)
    some = positions[among]
    # Equal times are rare, and usually already in the order of their offsets. Sort them only if they are not.
    if not in_order(sorted_times[among], offsets[some]):
        positions[among] = some[np.lexsort((offsets[some], times[some]))]
    return positions


def rows_before(times: I64, offsets: I64, place: TimePoint) -> int:
    """The number of these sorted time points that come before `place`."""
    low, high = (int(np.searchsorted(times, np.int64(place.time), side)) for side in ("left", "right"))
    return low + int(np.searchsorted(offsets[low:high], np.int64(place.offset)))


def rows_between(times: I64, offsets: I64, lo: TimePoint, hi: TimePoint) -> tuple[int, int]:
    """The positions [start, stop) of these sorted time points that are in [lo, hi)."""
    start = rows_before(times, offsets, lo)
    return start, max(start, rows_before(times, offsets, hi))


def live_mask(offsets: I64, dead: I64, purged_before: int) -> Mask | None:
    """A mask of the offsets that are neither dead nor purged; None if all are live. `dead` must be sorted."""
    if len(offsets) == 0:
        return None
    low, high = int(offsets.min()), int(offsets.max())
    first, last = np.searchsorted(dead, [low, high + 1])
    near = dead[first:last]
    kept = None if low >= purged_before else offsets >= purged_before
    if len(near) == 0:
        return kept
    if high - low < max(16 * len(offsets), _TABLE):
        table = np.ones(high - low + 1, np.bool_)
        table[near - low] = False
        live = table[offsets - low]
    else:
        live = near[np.minimum(np.searchsorted(near, offsets), len(near) - 1)] != offsets
    if kept is not None:
        live &= kept
    return None if live.all() else live
