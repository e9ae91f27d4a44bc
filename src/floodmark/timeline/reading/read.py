"""Reading a timeline: span by span in event-time order, what lies over a span merged with it, the dead left out."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.engine.threads import Threads
from floodmark.ledger.beside import Beside, joined
from floodmark.ledger.selection import NOBODY
from floodmark.storage.arrays import I64
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.order.pieces import Piece
from floodmark.timeline.order.places import Mask, alive, micros, places_of, time_column
from floodmark.timeline.order.ranges import Range
from floodmark.timeline.order.spans import Span
from floodmark.timeline.reading.instead import LedgerAlone
from floodmark.timeline.reading.interleave import Rows, Unread, interleave, plain
from floodmark.timeline.reading.lying import LyingOver
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.stored.packed_offsets import Packed, packed, unpacked

UNIT_ROWS = 1 << 17
"""Consecutive spans up to so many rows are read by one thread: what a row group was cut into is decoded once then."""

BATCH_ROWS = 1 << 14
"""Batches smaller than this are handed out together with those that follow."""

BATCH_BYTES = 16 << 20
"""So many bytes are not too small for a batch, whatever number of rows they are."""

_THREADS = 2
_AHEAD = 3
"""So many units are read before they are asked for."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """Some columns of some spans, as of one snapshot. It can be pickled, and read wherever it arrives."""

    files: PieceFiles
    spans: tuple[Span, ...]
    columns: tuple[str, ...]
    beside: Beside | None = None
    dead: I64 = field(default_factory=lambda: NOBODY, compare=False)  # sorted offsets
    purged_before: int = 0
    instead: LedgerAlone | None = field(default=None, compare=False, repr=False)
    """The same records from the ledger alone, for when a file is damaged."""

    @property
    def schema(self) -> pa.Schema:
        known = [*self.files.layout.read_schema, *(() if self.beside is None else self.beside.schema)]
        fields = {f.name: f for f in known}
        return pa.schema([fields[name] for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The records as a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records batch by batch; those that a damaged file of the timeline holds come from the ledger."""
        for unit, reading in _ahead(_units(self.spans), _UnitReader(self).read):
            try:
                table = reading.result()
            except UnreadablePiece as error:
                if self.instead is None:
                    raise
                rest = self.alone(self.instead, Range(unit[0].lo, self.spans[-1].hi))
                _log.warning("a file of the timeline is damaged (%s): its rows are read from the ledger", error.message)
                break
            yield from _batches(table)
        else:
            return
        yield from rest.batches()

    def alone(self, ledger: LedgerAlone, within: Range) -> Reading:
        """What there is in a range, from the ledger alone."""
        return replace(self, spans=ledger.spans(within, self.dead), instead=None)

    def __reduce__(self) -> tuple[Any, ...]:
        others = (self.files, self.spans, self.columns, self.beside, self.purged_before, self.instead)
        return _unpickled, (packed(self.dead), *others)


def _unpickled(
    dead: Packed,
    files: PieceFiles,
    spans: tuple[Span, ...],
    columns: tuple[str, ...],
    beside: Beside | None,
    purged_before: int,
    instead: LedgerAlone | None,
) -> Reading:
    return Reading(files, spans, columns, beside, unpacked(dead), purged_before, instead)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table's rows: large batches as they are, small ones that follow each other put together."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in table.to_batches():
        if batch.num_rows >= BATCH_ROWS:
            yield from _one(small)
            yield batch
            small, rows, size = [], 0, 0
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _one(small)
            small, rows, size = [], 0, 0
    yield from _one(small)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [pa.concat_batches(batches)] if len(batches) > 1 else batches


Unit = Sequence[Span]


def _units(spans: Iterable[Span]) -> Iterator[Unit]:
    unit: list[Span] = []
    rows = 0
    for span in spans:
        if unit and rows + span.rows > UNIT_ROWS:
            yield unit
            unit, rows = [], 0
        unit.append(span)
        rows += span.rows
    if unit:
        yield unit


def _ahead(units: Iterator[Unit], read: Callable[[Unit], pa.Table]) -> Iterator[tuple[Unit, Future[pa.Table]]]:
    """Each unit and what it holds; threads read the next ones meanwhile."""
    with Threads(_THREADS) as threads:
        reading: deque[tuple[Unit, Future[pa.Table]]] = deque()
        try:
            for unit in units:
                reading.append((unit, threads.submit(read, unit)))
                if len(reading) > _AHEAD:
                    yield reading.popleft()
            while reading:
                yield reading.popleft()
        finally:
            for _, future in reading:
                future.cancel()


class _UnitReader:
    """Reads spans; threads may share it."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._files = reading.files
        layout = reading.files.layout
        beside = [] if reading.beside is None else [n for n in reading.columns if n in reading.beside.schema.names]
        self._beside = list(dict.fromkeys(beside))
        self._values = reading.beside.open(self._beside) if beside and reading.beside is not None else None
        self._turn = threading.Lock()  # to read those values
        self._offset, self._time = layout.vocab.offset, time_column(layout)
        own = [name for name in dict.fromkeys(reading.columns) if name not in beside]
        # A table without columns does not know how many rows it has.
        self._own = own if own and self._values is None else list(dict.fromkeys([*own, self._offset]))
        self._located = list(dict.fromkeys([*own, self._offset, self._time]))
        self._schema = reading.schema
        self._timed = list(dict.fromkeys([*own, self._time]))
        self._lying = LyingOver(self._in_order, reading.files.objects.store.staging)

    def read(self, unit: Unit) -> pa.Table:
        """The current records of a few spans."""
        tables = [plain(table) for span in unit for table in self._tables(span)]
        table = pa.concat_tables(tables) if tables else self._empty()
        if self._values is not None:
            table = self._with_beside(table)
        table = table.select(list(self._reading.columns))
        return table if table.schema.equals(self._schema) else table.cast(self._schema)

    def _tables(self, span: Span) -> list[pa.Table]:
        if span.settled is not None and span.is_plain:
            return [self._whole(span.settled)]
        over = [rows for p in span.over if len(rows := self._over(p, span))]
        if span.settled is None:
            return interleave(over)
        is_held = span.holds(span.settled)
        if not over and is_held:
            return [self._whole(span.settled)]
        base = self._settled(span.settled)
        return interleave([base if is_held else base.between(span.lo, span.hi), *over])

    def _whole(self, piece: Piece) -> pa.Table:
        """All of a settled piece: its places are not even read, and its offsets only when there may be dead."""
        if not self._may_be_dead(piece):
            return self._files.read(piece, self._own)
        table = self._files.read(piece, list(dict.fromkeys([*self._own, self._offset])))
        kept = self._alive(table.column(self._offset).to_numpy())
        return (table if kept is None else table.filter(pa.array(kept))).select(self._own)

    def _settled(self, piece: Piece) -> Rows:
        """The current records of a settled piece. Its offsets are needed only for the dead and for equal times."""
        if self._may_be_dead(piece) or self._offset in self._own:
            return self._living(piece)
        table = self._files.read_encoded(piece, self._timed)
        unread = Unread(piece.offset_max, lambda: self._files.places(piece)[1])
        return Rows(table.select(self._own), micros(table.column(self._time)), unread)

    def _over(self, piece: Piece, span: Span) -> Rows:
        """The current records of a piece that lie in a span."""
        if span.holds(piece):
            return self._in_order(piece)
        return self._lying.rows(piece, span).between(span.lo, span.hi)

    def _living(self, piece: Piece) -> Rows:
        """The current records of a piece, with their places."""
        table = self._files.read_encoded(piece, self._located)
        rows = Rows(table.select(self._own), *places_of(table, self._files.layout))
        return rows.filter(self._alive(rows.offsets)) if self._may_be_dead(piece) else rows

    def _in_order(self, piece: Piece) -> Rows:
        """The same in order: pieces of the tail, which no root has named yet, need not be."""
        rows = self._living(piece)
        return rows if piece.since else rows.in_order()

    def _may_be_dead(self, piece: Piece) -> bool:
        if piece.offset_min < self._reading.purged_before:
            return True
        if len(self._reading.dead) == 0:
            return False
        low, high = np.searchsorted(self._reading.dead, [piece.offset_min, piece.offset_max + 1])
        return bool(low < high)

    def _alive(self, offsets: I64) -> Mask | None:
        return alive(offsets, self._reading.dead, self._reading.purged_before)

    def _with_beside(self, table: pa.Table) -> pa.Table:
        """The records with their columns beside them, which are asked for in the order of offsets."""
        assert self._values is not None
        assert self._reading.beside is not None
        offsets = table.column(self._offset).to_numpy()
        positions = np.argsort(offsets, kind="stable")
        ranks = np.empty(len(positions), np.int64)
        ranks[positions] = np.arange(len(positions))
        with self._turn:
            found = self._values.take(offsets[positions])
        columns = [column.take(pa.array(ranks)) for column in found]
        return joined(table, columns, pa.schema([self._reading.beside.schema.field(n) for n in self._beside]))

    def _empty(self) -> pa.Table:
        schema = self._files.layout.slice_schema
        return pa.schema([schema.field(name) for name in self._own]).empty_table()
