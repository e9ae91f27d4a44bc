"""Reading a timeline: span by span in event-time order, what lies over a span merged with it, the dead left out."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.beside import Beside, joined
from floodmark.ledger.keys.records import I64
from floodmark.ledger.selection import NOBODY
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.interleave import Rows, interleave
from floodmark.timeline.lying import LyingOver
from floodmark.timeline.pieces import Piece, Place
from floodmark.timeline.places import Mask, alive, places_of, time_column
from floodmark.timeline.sources import PieceFiles
from floodmark.timeline.spans import Span, shares

UNIT_ROWS = 1 << 17
"""Consecutive spans up to so many rows are read by one thread: what a row group was cut into is decoded once then."""

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
    instead: Callable[[Place], Reading] | None = field(default=None, compare=False, repr=False)
    """From a place on the same records from the ledger alone, for when a file is damaged. It does not travel."""

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
                instead = self.instead(unit[0].lo)
                _log.warning("a file of the timeline is damaged (%s): its rows are read from the ledger", error.message)
                break
            yield from table.to_batches()
        else:
            return
        yield from instead.batches()

    def part(self, spans: Iterable[Span]) -> Reading:
        """Some of its spans, with only those of the dead that may be in them."""
        some = tuple(spans)
        pieces = [piece for span in some for piece in span.pieces]
        low, high = min(p.offset_min for p in pieces), max(p.offset_max for p in pieces)
        first, last = np.searchsorted(self.dead, [low, high + 1])
        return Reading(self.files, some, self.columns, self.beside, self.dead[first:last], self.purged_before)

    def __reduce__(self) -> tuple[Any, ...]:
        return Reading, (self.files, self.spans, self.columns, self.beside, self.dead, self.purged_before)


Unit = Sequence[Span]


def _units(spans: Iterable[Span]) -> Iterator[Unit]:
    unit: list[Span] = []
    rows = 0.0
    for span in spans:
        more = sum(part * piece.rows for part, piece in shares(span))
        if unit and rows + more > UNIT_ROWS:
            yield unit
            unit, rows = [], 0.0
        unit.append(span)
        rows += more
    if unit:
        yield unit


def _ahead(units: Iterator[Unit], read: Callable[[Unit], pa.Table]) -> Iterator[tuple[Unit, Future[pa.Table]]]:
    """Each unit and what it holds; threads read the next ones meanwhile."""
    with ThreadPoolExecutor(_THREADS) as threads:
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
        self._lying = LyingOver(self._in_order)

    def read(self, unit: Unit) -> pa.Table:
        """The current records of a few spans."""
        tables = [table for span in unit for table in self._tables(span)]
        table = pa.concat_tables(tables) if tables else self._empty()
        if self._values is not None:
            table = self._with_beside(table)
        table = table.select(list(self._reading.columns))
        return table if table.schema.equals(self._schema) else table.cast(self._schema)

    def _tables(self, span: Span) -> list[pa.Table]:
        if span.settled is not None and span.is_plain:
            return [self._whole(span.settled)]
        over = [rows for p in span.over if len(rows := self._lying.rows(p, span).between(span.lo, span.hi))]
        if span.settled is None:
            return interleave(over)
        if not over and span.holds(span.settled):
            return [self._whole(span.settled)]
        return interleave([self._living(span.settled).between(span.lo, span.hi), *over])

    def _whole(self, piece: Piece) -> pa.Table:
        """All of a settled piece: its places are not even read, and its offsets only when there may be dead."""
        if not self._may_be_dead(piece):
            return self._files.read(piece, self._own)
        table = self._files.read(piece, list(dict.fromkeys([*self._own, self._offset])))
        kept = self._alive(table.column(self._offset).to_numpy())
        return (table if kept is None else table.filter(pa.array(kept))).select(self._own)

    def _living(self, piece: Piece) -> Rows:
        """The current records of a piece, with their places."""
        table = self._files.read(piece, self._located)
        rows = Rows(table.select(self._own), *places_of(table, self._files.layout))
        return rows.filter(self._alive(rows.offsets)) if self._may_be_dead(piece) else rows

    def _in_order(self, piece: Piece) -> Rows:
        """The same in order: pieces of the tail need not be."""
        return self._living(piece).in_order()

    def _may_be_dead(self, piece: Piece) -> bool:
        low, high = np.searchsorted(self._reading.dead, [piece.offset_min, piece.offset_max + 1])
        return bool(low < high) or piece.offset_min < self._reading.purged_before

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
