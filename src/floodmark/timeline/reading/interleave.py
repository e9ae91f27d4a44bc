"""Interleaving: rows that lie over others are put between them, and only where they are anything is copied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import I64
from floodmark.timeline.order.pieces import Place
from floodmark.timeline.order.places import Mask, order, rows_before
from floodmark.timeline.reading.gathering import ROUND_BYTES, gathered

APART = 16_384
"""So many rows between two late ones are handed out as they are, not copied along with what is merged around them."""


@dataclass(frozen=True)
class Unread:
    """Offsets that are read when they are needed; none of them is larger than `last`."""

    last: int
    read: Callable[[], I64]


class Rows:
    """Records in the timeline's order, and their places."""

    def __init__(self, table: pa.Table, times: I64, offsets: I64 | Unread) -> None:
        self.table = table
        self.times = times
        self._offsets = offsets

    @property
    def offsets(self) -> I64:
        if isinstance(self._offsets, Unread):
            self._offsets = self._offsets.read()
        return self._offsets

    def after_all(self, offsets: I64) -> Mask | None:
        """Which of these offsets are known to be larger than all of its own; None when nothing is known."""
        return offsets > self._offsets.last if isinstance(self._offsets, Unread) else None

    def with_table(self, table: pa.Table) -> Rows:
        return Rows(table, self.times, self._offsets)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes + self.times.nbytes + self.offsets.nbytes)

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.table.slice(start, stop - start), self.times[start:stop], self.offsets[start:stop])

    def between(self, lo: Place, hi: Place) -> Rows:
        """Those in [lo, hi)."""
        start = self._before(lo)
        stop = max(start, self._before(hi))
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)

    def _before(self, place: Place) -> int:
        """How many come before a place. Hardly any has just its time: offsets are looked at where one has."""
        at = int(self.times.searchsorted(np.int64(place.time)))
        if at == len(self.times) or self.times[at] != place.time:
            return at
        return rows_before(self.times, self.offsets, place)

    def filter(self, kept: Mask | None) -> Rows:
        if kept is None:
            return self
        return Rows(self.table.filter(pa.array(kept)), self.times[kept], self.offsets[kept])

    def in_order(self) -> Rows:
        """The same records in order, whatever order they have."""
        positions = order(self.times, self.offsets)
        if positions is None:
            return self
        return Rows(gathered([self.table], positions), self.times[positions], self.offsets[positions])


def interleave(parts: Sequence[Rows]) -> list[pa.Table]:
    """The records of all parts in one order, as tables to be read one after the other."""
    parts = _alike([part for part in parts if len(part)])
    if len(parts) < 2:
        return [part.table for part in parts]
    largest = max(range(len(parts)), key=lambda i: len(parts[i]))
    return _between(parts[largest], [part for i, part in enumerate(parts) if i != largest])


def plain(table: pa.Table) -> pa.Table:
    """The same table without dictionaries: what they stand for."""
    for i, field in enumerate(table.schema):
        kind: Any = field.type
        if pa.types.is_dictionary(kind):
            chunks = [chunk.dictionary_decode() for chunk in table.column(i).chunks]
            table = table.set_column(i, field.with_type(kind.value_type), pa.chunked_array(chunks, kind.value_type))
    return table


def _alike(parts: list[Rows]) -> list[Rows]:
    """The same parts with the same types: a column is a dictionary in all of them or in none."""
    if all(part.table.schema.types == parts[0].table.schema.types for part in parts[1:]):
        return parts
    return [part.with_table(plain(part.table)) for part in parts]


def _between(base: Rows, parts: Sequence[Rows]) -> list[pa.Table]:
    times, offsets = np.concatenate([p.times for p in parts]), np.concatenate([p.offsets for p in parts])
    sequence = order(times, offsets)
    if sequence is not None:
        times, offsets = times[sequence], offsets[sequence]
    positions = positions_in(base, times, offsets)
    firsts = np.flatnonzero(np.diff(positions, prepend=np.int64(-APART - 1)) > APART)
    late = [part.table for part in parts]
    sequence = np.arange(len(times)) if sequence is None else sequence
    if len(firsts) == 1:
        return _around(base.table, late, sequence, positions)
    # Each part of the base takes a few of them only: these should lie together.
    together = gathered(late, sequence)
    tables: list[pa.Table] = []
    done = 0
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(times)], strict=True):
        high, count = int(positions[end - 1]), end - first
        some = [together.slice(first, count)]
        tables += _around(base.table.slice(done, high - done), some, np.arange(count), positions[first:end] - done)
        done = high
    return [*tables, base.table.slice(done)] if done < len(base) else tables


def _around(base: pa.Table, late: Sequence[pa.Table], sequence: I64, positions: I64) -> list[pa.Table]:
    """All of the base, and late rows in the midst of it; what is before the first and after the last is not copied."""
    low, high = int(positions[0]), int(positions[-1])
    merged = _merged(base.slice(low, high - low), late, sequence, positions - low)
    return [table for table in (base.slice(0, low), merged, base.slice(high)) if table.num_rows]


def _merged(base: pa.Table, late: Sequence[pa.Table], sequence: I64, positions: I64) -> pa.Table:
    """One table of all: late rows, in this sequence, each come before the base's row at its position."""
    tables = [base, *late] if base.num_rows else late
    wanted = _sources(base.num_rows, sequence, positions)
    if sum(table.get_total_buffer_size() for table in tables) > ROUND_BYTES:
        return gathered(tables, wanted.astype(np.int64))
    indices = pa.array(wanted)
    columns = [
        pc.take(pa.concat_arrays([chunk for column in parts for chunk in column.chunks]), indices, boundscheck=False)
        for parts in zip(*(table.columns for table in tables), strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=base.schema)


def _sources(base: int, sequence: I64, positions: I64) -> npt.NDArray[np.int32]:
    """Which row comes where: those of the base are 0, 1, 2, …, and the late ones follow, each put at its position.

    Good until the same thread asks again.
    """
    rows = base + len(positions)
    of_late = positions + np.arange(len(positions))
    found = _scratch.numbers(rows)
    found.fill(0)
    found[of_late] = 1
    np.cumsum(found, out=found)
    np.subtract(_scratch.ramp(rows), found, out=found)
    found[of_late] = sequence + base
    return found


class _Scratch(threading.local):
    """Room for numbers of one thread that is used again and again: new memory costs more than what is done in it."""

    def __init__(self) -> None:
        self._ramp = np.arange(0, dtype=np.int32)
        self._numbers = np.empty(0, np.int32)

    def ramp(self, count: int) -> npt.NDArray[np.int32]:
        """The numbers 0, 1, 2, …"""
        if len(self._ramp) < count:
            self._ramp = np.arange(count, dtype=np.int32)
        return self._ramp[:count]

    def numbers(self, count: int) -> npt.NDArray[np.int32]:
        """Any numbers, until the next call."""
        if len(self._numbers) < count:
            self._numbers = np.empty(count, np.int32)
        return self._numbers[:count]


_scratch = _Scratch()


def positions_in(base: Rows, times: I64, offsets: I64) -> I64:
    """For each late row, in order, how many rows of the base, which has some, come before it."""
    found: I64 = np.searchsorted(base.times, times, side="right").astype(np.int64, copy=False)
    # Most rows that are late by their time have the higher offsets, too. Where one has not, ties are looked into.
    tied = (found > 0) & (base.times[found - 1] == times)
    after = base.after_all(offsets)
    if after is not None:
        tied &= ~after
    if not tied.any():
        return found
    behind = np.flatnonzero(tied & (base.offsets[found - 1] > offsets))
    if len(behind):
        low = np.searchsorted(base.times, times[behind], side="left")
        found[behind] = _search(base.offsets, offsets[behind], low, found[behind])
    return found


def _search(values: I64, wanted: I64, low: I64, high: I64) -> I64:
    """Where each wanted value belongs among values[low:high], which ascend; all of them by one binary search."""
    low, high = low.astype(np.int64), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = values[np.minimum(middle, len(values) - 1)] < wanted
        low = np.where(open_ & less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low
