"""Interleaving: rows that lie over others are put between them, and only where they are anything is copied."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys.records import I64
from floodmark.timeline.gathering import ROUND_BYTES, gathered
from floodmark.timeline.pieces import Place
from floodmark.timeline.places import Mask, order, rows_between

APART = 16_384
"""So many rows between two late ones are handed out as they are, not copied along with what is merged around them."""


@dataclass(frozen=True)
class Rows:
    """Records in the timeline's order, and their places."""

    table: pa.Table
    times: I64
    offsets: I64

    def __len__(self) -> int:
        return len(self.times)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes + self.times.nbytes + self.offsets.nbytes)

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.table.slice(start, stop - start), self.times[start:stop], self.offsets[start:stop])

    def between(self, lo: Place, hi: Place) -> Rows:
        """Those in [lo, hi)."""
        start, stop = rows_between(self.times, self.offsets, lo, hi)
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)

    def filter(self, kept: Mask | None) -> Rows:
        if kept is None:
            return self
        return Rows(self.table.filter(pa.array(kept)), self.times[kept], self.offsets[kept])

    def in_order(self) -> Rows:
        """The same records in order, whatever order they have."""
        return _ordered([self.table], self.times, self.offsets)


def interleave(parts: Sequence[Rows]) -> list[pa.Table]:
    """The records of all parts in one order, as tables to be read one after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return [part.table for part in parts]
    largest = max(range(len(parts)), key=lambda i: len(parts[i]))
    base = parts[largest]
    return _between(base, together([part for i, part in enumerate(parts) if i != largest]))


def together(parts: Sequence[Rows]) -> Rows:
    """All of the records, in order."""
    if len(parts) == 1:
        return parts[0]
    times, offsets = (np.concatenate(arrays) for arrays in zip(*((p.times, p.offsets) for p in parts), strict=True))
    return _ordered([part.table for part in parts], times, offsets)


def _ordered(tables: Sequence[pa.Table], times: I64, offsets: I64) -> Rows:
    """The records of tables that follow each other, in order, given their places."""
    positions = order(times, offsets)
    if positions is None:
        return Rows(pa.concat_tables(tables), times, offsets)
    return Rows(gathered(tables, positions), times[positions], offsets[positions])


def _between(base: Rows, late: Rows) -> list[pa.Table]:
    positions = positions_in(base, late)
    firsts = np.flatnonzero(np.diff(positions, prepend=np.int64(-APART - 1)) > APART)
    ends = [*firsts[1:].tolist(), len(late)]
    tables: list[pa.Table] = []
    done = 0
    for first, end in zip(firsts.tolist(), ends, strict=True):
        low, high = int(positions[first]), int(positions[end - 1])
        tables.append(base.table.slice(done, low - done))
        tables.append(
            _merged(base.table.slice(low, high - low), late.table.slice(first, end - first), positions[first:end] - low)
        )
        done = high
    tables.append(base.table.slice(done))
    return [table for table in tables if table.num_rows]


def _merged(base: pa.Table, late: pa.Table, positions: I64) -> pa.Table:
    """One table of both; each late row comes before the base's row at its position."""
    if base.num_rows == 0:
        return late
    if base.nbytes + late.nbytes > ROUND_BYTES:
        return gathered([base, late], _sources(base.num_rows, positions).astype(np.int64))
    wanted = pa.array(_sources(base.num_rows, positions))
    columns = [
        pc.take(pa.concat_arrays([*b.chunks, *a.chunks]), wanted, boundscheck=False)
        for b, a in zip(base.columns, late.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=base.schema)


def _sources(base: int, positions: I64) -> npt.NDArray[np.int32]:
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
    found[of_late] = np.arange(base, rows, dtype=np.int32)
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


def positions_in(base: Rows, late: Rows) -> I64:
    """For each late row, in order, how many rows of the base, which has some, come before it."""
    found: I64 = np.searchsorted(base.times, late.times, side="right").astype(np.int64, copy=False)
    # Most rows that are late by their time have the higher offsets, too. Where one has not, ties are looked into.
    behind = np.flatnonzero(
        (found > 0) & (base.times[found - 1] == late.times) & (base.offsets[found - 1] > late.offsets)
    )
    if len(behind):
        low = np.searchsorted(base.times, late.times[behind], side="left")
        found[behind] = _search(base.offsets, late.offsets[behind], low, found[behind])
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
