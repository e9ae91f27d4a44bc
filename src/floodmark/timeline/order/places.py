"""Places: where records lie in a timeline's order, as two arrays of event times and offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.ledger.errors import BadEventTime
from floodmark.ledger.layout import Layout
from floodmark.storage.arrays import I64, integer_order
from floodmark.timeline.order.pieces import Place

Mask = npt.NDArray[np.bool_]
Places = tuple[I64, I64]
"""Times in microseconds, and offsets."""

_FEW_RUNS = 256
"""No more sorted runs than these, one after the other, are merged faster than they are sorted."""

_TABLE = 1 << 20
"""So many offsets are looked up in a table of all offsets between the first and the last, however few are asked for."""


def time_column(layout: Layout) -> str:
    """The column that files have the event time in."""
    return str(layout.payload_schema.field(0).name)


def places_of(table: pa.Table, layout: Layout) -> Places:
    """The places of records, from their event times and offsets."""
    offsets = table.column(layout.vocab.offset)
    return micros(table.column(time_column(layout))), _numbers(offsets, pa.int64())


def micros(column: pa.ChunkedArray | pa.Array) -> I64:
    """Event times of any type a dataset can have, as microseconds since the epoch, UTC."""
    if column.null_count:
        raise BadEventTime(
            "a record has no event time", hint="give every record an event time: it says where it belongs"
        )
    t: Any = column.type
    if pa.types.is_timestamp(t) and t.unit == "us":
        return _numbers(column, t)
    if pa.types.is_timestamp(t) and t.unit == "ns":  # in chains from elsewhere; Arrow would round towards 1970
        return _numbers(column, t) // 1000
    try:
        wide = column.cast(pa.timestamp("us", t.tz if pa.types.is_timestamp(t) else None))
    except pa.ArrowInvalid as error:
        raise BadEventTime(
            f"an event time does not fit into microseconds since 1970: {error}",
            hint="times lie between the years -290307 and 294246: correct the record that has another",
        ) from error
    return _numbers(wide, wide.type)


def _numbers(column: pa.ChunkedArray | pa.Array, expected: pa.DataType) -> I64:
    """A column of 64-bit values as they are in memory, without a copy when it is one chunk."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.type != expected:
        column = column.cast(expected)
    found: I64 = column.view(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def in_order(times: I64, offsets: I64) -> bool:
    """Whether places ascend."""
    if (times[1:] < times[:-1]).any():
        return False
    ties = np.flatnonzero(times[1:] == times[:-1])
    return bool((offsets[ties] < offsets[ties + 1]).all())


def order(times: I64, offsets: I64) -> I64 | None:
    """The positions that put places in order; None when they are. Sorted runs one after the other are merged fast."""
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
    # Equal times are rare, or came in the order of their offsets: only where neither holds are they sorted.
    if not in_order(sorted_times[among], offsets[some]):
        positions[among] = some[np.lexsort((offsets[some], times[some]))]
    return positions


def rows_before(times: I64, offsets: I64, place: Place) -> int:
    """How many of these places, which are in order, come before one."""
    low, high = (int(np.searchsorted(times, np.int64(place.time), side)) for side in ("left", "right"))
    return low + int(np.searchsorted(offsets[low:high], np.int64(place.offset)))


def rows_between(times: I64, offsets: I64, lo: Place, hi: Place) -> tuple[int, int]:
    """Which of these places, which are in order, lie in [lo, hi): the first position and the one after the last."""
    start = rows_before(times, offsets, lo)
    return start, max(start, rows_before(times, offsets, hi))


def alive(offsets: I64, dead: I64, purged_before: int) -> Mask | None:
    """Which of these offsets, in any order, are neither dead (given sorted) nor purged; None when all are alive."""
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
        living = table[offsets - low]
    else:
        living = near[np.minimum(np.searchsorted(near, offsets), len(near) - 1)] != offsets
    if kept is not None:
        living &= kept
    return None if living.all() else living
