"""Interleaving: merge late rows into settled rows in time order, copying only the rows around each late row.

Also the cache of pieces that several spans share, and a function that takes rows from several tables.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import StorageError
from floodmark.storage.arrays import I64, Mask
from floodmark.timeline.pieces import Piece, TimePoint, rows_before, sort_positions
from floodmark.timeline.sections import Span

MIN_UNCOPIED_ROWS = 16_384
"""From this many rows between two late ones on, these rows are returned as a slice of their table, without a copy."""


@dataclass(frozen=True)
class LazyOffsets:
    """Offsets that are read only when needed. None of them is larger than `last`."""

    last: int
    read: Callable[[], I64]


class OrderedRows:
    """Records in timeline order, and their time points."""

    def __init__(self, table: pa.Table, times: I64, offsets: I64 | LazyOffsets) -> None:
        self.table = table
        self.times = times
        self._offsets = offsets

    @property
    def offsets(self) -> I64:
        if isinstance(self._offsets, LazyOffsets):
            self._offsets = self._offsets.read()
        return self._offsets

    def after_all(self, offsets: I64) -> Mask | None:
        """A mask of the offsets known to exceed all offsets of these rows; None if the rows' offsets are loaded."""
        return offsets > self._offsets.last if isinstance(self._offsets, LazyOffsets) else None

    def with_table(self, table: pa.Table) -> OrderedRows:
        return OrderedRows(table, self.times, self._offsets)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes + self.times.nbytes + self.offsets.nbytes)

    def slice(self, start: int, stop: int) -> OrderedRows:
        return OrderedRows(self.table.slice(start, stop - start), self.times[start:stop], self.offsets[start:stop])

    def between(self, lo: TimePoint, hi: TimePoint) -> OrderedRows:
        """The records in [lo, hi)."""
        start = self._before(lo)
        stop = max(start, self._before(hi))
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)

    def _before(self, place: TimePoint) -> int:
        """The number of records before a time point. Offsets are read only if a record has exactly its time: few do."""
        at = int(self.times.searchsorted(np.int64(place.time)))
        if at == len(self.times) or self.times[at] != place.time:
            return at
        return rows_before(self.times, self.offsets, place)

    def filter(self, kept: Mask | None) -> OrderedRows:
        if kept is None:
            return self
        return OrderedRows(self.table.filter(pa.array(kept)), self.times[kept], self.offsets[kept])

    def in_order(self) -> OrderedRows:
        """The same records, sorted."""
        positions = sort_positions(self.times, self.offsets)
        if positions is None:
            return self
        return OrderedRows(take_rows([self.table], positions), self.times[positions], self.offsets[positions])


def interleave(parts: Sequence[OrderedRows]) -> list[pa.Table]:
    """The records of all parts in time order, as consecutive tables."""
    parts = _unify_types([part for part in parts if len(part)])
    if len(parts) < 2:
        return [part.table for part in parts]
    largest = max(range(len(parts)), key=lambda i: len(parts[i]))
    return _merge_into(parts[largest], [part for i, part in enumerate(parts) if i != largest])


def decode_dictionaries(table: pa.Table) -> pa.Table:
    """The same table with dictionary columns decoded."""
    for i, field in enumerate(table.schema):
        kind: Any = field.type
        if pa.types.is_dictionary(kind):
            chunks = [chunk.dictionary_decode() for chunk in table.column(i).chunks]
            table = table.set_column(i, field.with_type(kind.value_type), pa.chunked_array(chunks, kind.value_type))
    return table


def _unify_types(parts: list[OrderedRows]) -> list[OrderedRows]:
    """The parts with equal types: if they differ, dictionaries are decoded in all of them."""
    if all(part.table.schema.types == parts[0].table.schema.types for part in parts[1:]):
        return parts
    return [part.with_table(decode_dictionaries(part.table)) for part in parts]


def _merge_into(base: OrderedRows, parts: Sequence[OrderedRows]) -> list[pa.Table]:
    times, offsets = np.concatenate([p.times for p in parts]), np.concatenate([p.offsets for p in parts])
    sequence = sort_positions(times, offsets)
    if sequence is not None:
        times, offsets = times[sequence], offsets[sequence]
    positions = positions_in(base, times, offsets)
    firsts = np.flatnonzero(np.diff(positions, prepend=np.int64(-MIN_UNCOPIED_ROWS - 1)) > MIN_UNCOPIED_ROWS)
    late = [part.table for part in parts]
    sequence = np.arange(len(times)) if sequence is None else sequence
    if len(firsts) == 1:
        return _merge_around(base.table, late, sequence, positions)
    # Each stretch of the base takes only a few late rows: make them contiguous first.
    together = take_rows(late, sequence)
    tables: list[pa.Table] = []
    done = 0
    for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(times)], strict=True):
        high, count = int(positions[end - 1]), end - first
        some = [together.slice(first, count)]
        tables += _merge_around(
            base.table.slice(done, high - done), some, np.arange(count), positions[first:end] - done
        )
        done = high
    return [*tables, base.table.slice(done)] if done < len(base) else tables


def _merge_around(base: pa.Table, late: Sequence[pa.Table], sequence: I64, positions: I64) -> list[pa.Table]:
    """The base with late rows merged into it. Base rows before the first and after the last late row are not copied."""
    low, high = int(positions[0]), int(positions[-1])
    merged = _merge_tables(base.slice(low, high - low), late, sequence, positions - low)
    return [table for table in (base.slice(0, low), merged, base.slice(high)) if table.num_rows]


def _merge_tables(base: pa.Table, late: Sequence[pa.Table], sequence: I64, positions: I64) -> pa.Table:
    """One table of all rows: each late row, in this sequence, comes before the base row at its position."""
    tables = [base, *late] if base.num_rows else late
    sources = _merged_order(base.num_rows, sequence, positions)
    if sum(table.get_total_buffer_size() for table in tables) > ROUND_BYTES:
        return take_rows(tables, sources.astype(np.int64))
    indices = pa.array(sources)
    columns = [
        pc.take(pa.concat_arrays([chunk for column in parts for chunk in column.chunks]), indices, boundscheck=False)
        for parts in zip(*(table.columns for table in tables), strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=base.schema)


def _merged_order(base: int, sequence: I64, positions: I64) -> npt.NDArray[np.int32]:
    """The merged order as row numbers: base rows are 0, 1, 2, …, late rows follow, each inserted at its position.

    The array is valid until the next call in the same thread.
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
    """Reusable arrays of one thread: allocating new ones costs more than the work in them."""

    def __init__(self) -> None:
        self._ramp = np.arange(0, dtype=np.int32)
        self._numbers = np.empty(0, np.int32)

    def ramp(self, count: int) -> npt.NDArray[np.int32]:
        """An array of 0, 1, 2, …"""
        if len(self._ramp) < count:
            self._ramp = np.arange(count, dtype=np.int32)
        return self._ramp[:count]

    def numbers(self, count: int) -> npt.NDArray[np.int32]:
        """An uninitialized array, valid until the next call."""
        if len(self._numbers) < count:
            self._numbers = np.empty(count, np.int32)
        return self._numbers[:count]


_scratch = _Scratch()


def positions_in(base: OrderedRows, times: I64, offsets: I64) -> I64:
    """For each late row, in order, the number of base rows before it. The base is not empty."""
    found: I64 = np.searchsorted(base.times, times, side="right").astype(np.int64, copy=False)
    # Late rows usually have higher offsets than base rows of the same time. Ties matter only where this does not hold.
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


def _search(values: I64, targets: I64, low: I64, high: I64) -> I64:
    """The insertion point of each target in its own ascending values[low:high], in one vectorized binary search."""
    low, high = low.astype(np.int64), high.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        less = values[np.minimum(middle, len(values) - 1)] < targets
        low = np.where(open_ & less, middle + 1, low)
        high = np.where(open_ & ~less, middle, high)
    return low


# Pieces that several spans share

OVERLAP_CACHE_BYTES = 512 << 20
"""The memory limit of shared pieces. Beyond it, sorted rows go to disk until all their spans were read."""

_log = logging.getLogger(__name__)


class OverlapCache:
    """The rows of pieces that several spans share. Several threads may use it; they read spans roughly in order.

    `scratch` returns a folder for rows that do not fit into memory.
    """

    def __init__(self, load: Callable[[Piece], OrderedRows], scratch: Callable[[], Path]) -> None:
        self._load = load
        self._scratch_folder: Callable[[], Path] | None = scratch
        self._most = OVERLAP_CACHE_BYTES
        self._kept: dict[Piece, Future[OrderedRows]] = {}
        self._weights: dict[Piece, int] = {}  # those in memory
        self._bytes = 0
        self._lock = threading.Lock()

    def rows(self, piece: Piece, span: Span) -> OrderedRows:
        """All rows of a piece that overlaps a span. If another thread is already reading them, wait for it."""
        if span.hi > piece.last and piece not in self._kept:
            return self._load(piece)  # no later span needs it
        with self._lock:
            found = self._kept.get(piece)
            if found is None:
                loading = self._kept[piece] = Future()
        return self._loaded(piece, span, loading) if found is None else found.result()

    def _loaded(self, piece: Piece, span: Span, loading: Future[OrderedRows]) -> OrderedRows:
        try:
            rows = self._load(piece)
            if not self._fits(piece, rows.nbytes, span):
                rows = self._on_disk(piece, rows)
        except BaseException as error:
            with self._lock:
                self._kept.pop(piece, None)
            loading.set_exception(error)
            raise
        loading.set_result(rows)
        return rows

    def _fits(self, piece: Piece, size: int, span: Span) -> bool:
        """Whether the rows fit into memory, after pieces before this span were dropped.

        The next span needs all pieces that overlap this one, so no other piece is dropped.
        """
        with self._lock:
            if self._bytes + size > self._most:
                for passed in [p for p, rows in self._kept.items() if p.last < span.lo and rows.done()]:
                    del self._kept[passed]
                    self._bytes -= self._weights.pop(passed, 0)
            if self._bytes + size > self._most:
                return False
            self._weights[piece] = size
            self._bytes += size
            return True

    def _on_disk(self, piece: Piece, rows: OrderedRows) -> OrderedRows:
        """The same rows in a file. If no file can be written, they are read again for each span."""
        if self._scratch_folder is not None:
            try:
                return spill(rows, self._scratch_folder())
            except (OSError, StorageError) as error:
                self._scratch_folder = None
                _log.warning(
                    "late rows that do not fit into memory are read once per span: no scratch file (%s)", error
                )
        with self._lock:
            self._kept.pop(piece, None)
        return rows


def spill(rows: OrderedRows, folder: Path) -> OrderedRows:
    """The rows, memory-mapped from a file in this folder. The file has no name; its space is freed with the rows."""
    table = decode_dictionaries(rows.table)  # a file has one dictionary per column, a table may have several
    columns = [*table.columns, pa.chunked_array([rows.times]), pa.chunked_array([rows.offsets])]
    schema = pa.schema([pa.field(str(i), column.type) for i, column in enumerate(columns)])
    path = folder / f"timeline-rows-{uuid.uuid4().hex}"
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        with pa.memory_map(str(path)) as source:
            *found, times, offsets = pa.ipc.open_file(source).read_all().columns
    finally:
        path.unlink(missing_ok=True)
    return OrderedRows(pa.Table.from_arrays(found, schema=table.schema), _numbers(times), _numbers(offsets))


def _numbers(column: pa.ChunkedArray) -> I64:
    """A column as an array, without a copy if it is one chunk."""
    found: I64 = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
    return found


# Rows from several tables

ROUND_BYTES = 256 << 20
"""The bytes to take at a time: an Arrow string array holds at most 2 GiB."""


def take_rows(tables: Sequence[pa.Table], positions: I64) -> pa.Table:
    """The rows at these positions, in this order. Positions count through all tables."""
    starts = np.cumsum([0, *(t.num_rows for t in tables)], dtype=np.int64)
    total = int(starts[-1])
    width = sum(t.nbytes for t in tables) // max(total, 1) + 1
    rows = max(1, ROUND_BYTES // width)
    if len(positions) <= rows and total <= min(4 * len(positions), rows):
        return pa.concat_tables(tables).combine_chunks().take(pa.array(positions))
    rounds = [_take_few(tables, starts, positions[at : at + rows]) for at in range(0, len(positions), rows)]
    return pa.concat_tables(rounds) if rounds else tables[0].slice(0, 0)


def _take_few(tables: Sequence[pa.Table], starts: I64, positions: I64) -> pa.Table:
    """The same for a few of many rows, without a copy of whole tables."""
    which = np.searchsorted(starts, positions, side="right") - 1
    by_table: I64 = np.argsort(which, kind="stable")
    back = np.empty_like(by_table)
    back[by_table] = np.arange(len(by_table))
    parts = pa.concat_tables(_parts(tables, starts, positions[by_table], which[by_table]))
    return parts.combine_chunks().take(pa.array(back))


def _parts(tables: Sequence[pa.Table], starts: I64, positions: I64, which: I64) -> Iterator[pa.Table]:
    first = np.flatnonzero(np.diff(which, prepend=-1))
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(which)], strict=True):
        number = int(which[low])
        yield tables[number].take(pa.array(positions[low:high] - starts[number]))
