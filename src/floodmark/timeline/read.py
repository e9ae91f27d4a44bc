"""Read a timeline in event-time order, as record batches or as a Spark frame.

Each span is read with the late rows that overlap it; dead records are left out. If a file of the timeline is damaged,
the rows come from the ledger.
"""

from __future__ import annotations

import logging
import pickle
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.chain.ids import Multihash
from floodmark.engine.run import GeneratorThreads
from floodmark.engine.session import make_empty_frame, make_frame
from floodmark.errors import RecordsPurged, UnreadablePiece
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import quote_name
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.side_columns import SideColumnSet, append_columns
from floodmark.ledger.snapshot import load_snapshot
from floodmark.ledger.spark_read import BATCH_ROWS, LEAST_BYTES, LEAST_TASKS, TASK_BYTES
from floodmark.ledger.types import spark_ready, spark_schema
from floodmark.storage.arrays import I64, Mask
from floodmark.timeline.interleave import LazyOffsets, OrderedRows, OverlapCache, decode_dictionaries, interleave
from floodmark.timeline.manifest import PackedOffsets, TimelineObjects, pack_offsets, unpack_offsets
from floodmark.timeline.piece_files import PieceFiles, find_slice_pieces
from floodmark.timeline.pieces import Piece, live_mask, micros, time_column, time_points_of
from floodmark.timeline.sections import MOST_ROWS, Range, Span, groups, spans

UNIT_ROWS = 1 << 17
"""One thread reads consecutive spans up to this many rows, so that pieces of the same row group decode it once."""

READ_BATCH_ROWS = 1 << 14
"""Batches smaller than this are joined with the next ones."""

BATCH_BYTES = 16 << 20
"""Batches of this many bytes are large enough, however few rows they have."""

_THREADS = 2
_AHEAD = 3
"""The number of units to read ahead."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimelineScan:
    """Some columns of some spans, as of one snapshot. It can be pickled and read on any worker."""

    files: PieceFiles
    spans: tuple[Span, ...]
    columns: tuple[str, ...]
    side_columns: SideColumnSet | None = None
    dead: I64 = field(default_factory=lambda: NO_OFFSETS, compare=False)  # sorted offsets
    purged_before: int = 0
    fallback: LedgerFallback | None = field(default=None, compare=False, repr=False)
    """The same records, only from the ledger: used when a file of the timeline is damaged."""

    @property
    def schema(self) -> pa.Schema:
        known = [*self.files.layout.read_schema, *(() if self.side_columns is None else self.side_columns.schema)]
        fields = {f.name: f for f in known}
        return pa.schema([fields[name] for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The records as a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records, batch by batch. From the first damaged file of the timeline on, they come from the ledger."""
        for unit, reading in _read_ahead(_units(self.spans), _UnitReader(self).read):
            try:
                table = reading.result()
            except UnreadablePiece as error:
                if self.fallback is None:
                    raise
                rest = self.alone(self.fallback, Range(unit[0].lo, self.spans[-1].hi))
                _log.warning("a file of the timeline is damaged (%s); its rows are read from the ledger", error.message)
                break
            yield from _batches(table)
        else:
            return
        yield from rest.batches()

    def alone(self, ledger: LedgerFallback, within: Range) -> TimelineScan:
        """The records in a range, only from the ledger."""
        return replace(self, spans=ledger.spans(within, self.dead), fallback=None)

    def __reduce__(self) -> tuple[Any, ...]:
        others = (self.files, self.spans, self.columns, self.side_columns, self.purged_before, self.fallback)
        return _unpickled, (pack_offsets(self.dead), *others)


def _unpickled(
    dead: PackedOffsets,
    files: PieceFiles,
    spans: tuple[Span, ...],
    columns: tuple[str, ...],
    side_columns: SideColumnSet | None,
    purged_before: int,
    instead: LedgerFallback | None,
) -> TimelineScan:
    return TimelineScan(files, spans, columns, side_columns, unpack_offsets(dead), purged_before, instead)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """A table's batches. Consecutive small ones are joined, large ones stay unchanged."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in table.to_batches():
        if batch.num_rows >= READ_BATCH_ROWS:
            yield from _join_batches(small)
            yield batch
            small, rows, size = [], 0, 0
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= READ_BATCH_ROWS or size >= BATCH_BYTES:
            yield from _join_batches(small)
            small, rows, size = [], 0, 0
    yield from _join_batches(small)


def _join_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [pa.concat_batches(batches)] if len(batches) > 1 else batches


SpanUnit = Sequence[Span]


def _units(spans: Iterable[Span]) -> Iterator[SpanUnit]:
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


def _read_ahead(
    units: Iterator[SpanUnit], read: Callable[[SpanUnit], pa.Table]
) -> Iterator[tuple[SpanUnit, Future[pa.Table]]]:
    """Each unit and its future rows. Threads read a few units ahead."""
    with GeneratorThreads(_THREADS) as threads:
        reading: deque[tuple[SpanUnit, Future[pa.Table]]] = deque()
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
    """Reads units of spans. Threads may share it."""

    def __init__(self, reading: TimelineScan) -> None:
        self._reading = reading
        self._files = reading.files
        layout = reading.files.layout
        side_columns = reading.side_columns
        known = [] if side_columns is None else side_columns.schema.names
        self._side_names = [name for name in dict.fromkeys(reading.columns) if name in known]
        self._values = side_columns.open(self._side_names) if self._side_names and side_columns is not None else None
        self._turn = threading.Lock()  # for reading `_values`
        self._offset, self._time = layout.vocab.offset, time_column(layout)
        own = [name for name in dict.fromkeys(reading.columns) if name not in known]
        # A table without columns has no row count, so read at least the offsets.
        self._own = own if own and self._values is None else list(dict.fromkeys([*own, self._offset]))
        self._located = list(dict.fromkeys([*own, self._offset, self._time]))
        self._schema = reading.schema
        self._timed = list(dict.fromkeys([*own, self._time]))
        self._overlap_cache = OverlapCache(self._in_order, reading.files.objects.store.staging)

    def read(self, unit: SpanUnit) -> pa.Table:
        """The live records of a unit."""
        tables = [decode_dictionaries(table) for span in unit for table in self._tables(span)]
        table = pa.concat_tables(tables) if tables else self._empty()
        if self._values is not None:
            table = self._with_side_columns(table)
        table = table.select(list(self._reading.columns))
        return table if table.schema.equals(self._schema) else table.cast(self._schema)

    def _tables(self, span: Span) -> list[pa.Table]:
        if span.settled is not None and span.is_plain:
            return [self._whole(span.settled)]
        over = [rows for p in span.over if len(rows := self._over(p, span))]
        if span.settled is None:
            return interleave(over)
        is_inside = span.holds(span.settled)
        if not over and is_inside:
            return [self._whole(span.settled)]
        base = self._settled(span.settled)
        return interleave([base if is_inside else base.between(span.lo, span.hi), *over])

    def _whole(self, piece: Piece) -> pa.Table:
        """The live records of a whole settled piece. Offsets are read only if it may have dead rows, times never."""
        if not self._may_be_dead(piece):
            return self._files.read(piece, self._own)
        table = self._files.read(piece, list(dict.fromkeys([*self._own, self._offset])))
        kept = self._alive(table.column(self._offset).to_numpy())
        return (table if kept is None else table.filter(pa.array(kept))).select(self._own)

    def _settled(self, piece: Piece) -> OrderedRows:
        """The live records of a settled piece. Its offsets are read only for dead rows and for equal times."""
        if self._may_be_dead(piece) or self._offset in self._own:
            return self._live(piece)
        table = self._files.read_encoded(piece, self._timed)
        unread = LazyOffsets(piece.offset_max, lambda: self._files.places(piece)[1])
        return OrderedRows(table.select(self._own), micros(table.column(self._time)), unread)

    def _over(self, piece: Piece, span: Span) -> OrderedRows:
        """The live records of a piece that are in a span."""
        if span.holds(piece):
            return self._in_order(piece)
        return self._overlap_cache.rows(piece, span).between(span.lo, span.hi)

    def _live(self, piece: Piece) -> OrderedRows:
        """The live records of a piece, with their time points."""
        table = self._files.read_encoded(piece, self._located)
        rows = OrderedRows(table.select(self._own), *time_points_of(table, self._files.layout))
        return rows.filter(self._alive(rows.offsets)) if self._may_be_dead(piece) else rows

    def _in_order(self, piece: Piece) -> OrderedRows:
        """The live records of a piece, sorted. Only pieces of the ledger's tail, in no root yet, may be unsorted."""
        rows = self._live(piece)
        return rows if piece.since else rows.in_order()

    def _may_be_dead(self, piece: Piece) -> bool:
        if piece.offset_min < self._reading.purged_before:
            return True
        if len(self._reading.dead) == 0:
            return False
        low, high = np.searchsorted(self._reading.dead, [piece.offset_min, piece.offset_max + 1])
        return bool(low < high)

    def _alive(self, offsets: I64) -> Mask | None:
        return live_mask(offsets, self._reading.dead, self._reading.purged_before)

    def _with_side_columns(self, table: pa.Table) -> pa.Table:
        """The records with their side columns, whose values are read in offset order."""
        assert self._values is not None
        assert self._reading.side_columns is not None
        offsets = table.column(self._offset).to_numpy()
        positions = np.argsort(offsets, kind="stable")
        ranks = np.empty(len(positions), np.int64)
        ranks[positions] = np.arange(len(positions))
        with self._turn:
            found = self._values.take(offsets[positions])
        columns = [column.take(pa.array(ranks)) for column in found]
        schema = self._reading.side_columns.schema
        return append_columns(table, columns, pa.schema([schema.field(name) for name in self._side_names]))

    def _empty(self) -> pa.Table:
        schema = self._files.layout.slice_schema
        return pa.schema([schema.field(name) for name in self._own]).empty_table()


# Spark

MAX_REREADS = 4
"""Each task reads all pieces that overlap its spans. If they read more than 4 times the bytes, Spark sorts the rows."""


def spark_frame(reading: TimelineScan, spark: Any) -> Any:
    """The rows of a reading as a Spark frame, in its order."""
    if not reading.spans:
        return make_empty_frame(spark, spark_schema(reading.schema))
    grouped = _groups(reading.spans)
    if _bytes_read(grouped) > MAX_REREADS * _bytes_read([reading.spans]):
        return _sorted_frame(reading, spark)
    return _frame(reading, grouped, spark)


def _groups(spans: Sequence[Span]) -> list[list[Span]]:
    most = min(TASK_BYTES, max(LEAST_BYTES, sum(span.size for span in spans) // LEAST_TASKS))
    return groups(spans, most)


def _bytes_read(grouped: Sequence[Sequence[Span]]) -> int:
    """The bytes that tasks read for these groups of spans: each task reads the whole of every piece that it needs."""
    return sum(sum(piece.size for piece in {p for span in group for p in span.pieces}) for group in grouped)


def _sorted_frame(reading: TimelineScan, spark: Any) -> Any:
    """The frame of a mostly unsorted timeline: every piece is read once, and Spark sorts the rows.

    Since the order of pieces does not matter, the slices of the ledger are read: the timeline's files may be damaged.
    """
    layout = reading.files.layout
    order = (time_column(layout), layout.vocab.offset)
    lo, hi = reading.spans[0].lo, reading.spans[-1].hi
    source = reading if reading.fallback is None else reading.alone(reading.fallback, Range(lo, hi))
    pieces = dict.fromkeys(piece for span in source.spans for piece in span.pieces)
    alone = [Span(lo, hi, None, (piece,), piece.rows, piece.size) for piece in pieces]
    unsorted = replace(source, columns=tuple(dict.fromkeys([*reading.columns, *order])))
    frame = _frame(unsorted, _groups(alone), spark)
    columns = [frame[quote_name(name)] for name in reading.columns]
    return frame.sort(*[frame[quote_name(name)] for name in order]).select(*columns)


def _frame(reading: TimelineScan, grouped: Sequence[Sequence[Span]], spark: Any) -> Any:
    """A frame with one task per group of spans. Shared data, such as the dead offsets, is sent once.

    Each group of spans is a row in a separate partition of the input frame, so a task receives only its own spans.
    """
    described = [_packed(group) for group in grouped]
    numbers = pa.array(range(len(described)), pa.int32())
    frame = make_frame(spark, pa.table({"task": numbers, "spans": pa.array(described, pa.binary())}))
    apart = frame.repartitionById(len(described), "task")
    return apart.mapInArrow(partial(_read_parts, replace(reading, spans=())), spark_schema(reading.schema))


def _read_parts(shared: TimelineScan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    ready = spark_ready(shared.schema)
    for batch in batches:
        for described in batch.column(1).to_pylist():
            for records in replace(shared, spans=_unpacked(described)).batches():
                fitting = records.cast(ready)
                for first in range(0, fitting.num_rows, BATCH_ROWS):
                    yield fitting.slice(first, BATCH_ROWS)


def _packed(spans: Sequence[Span]) -> bytes:
    return zlib.compress(pickle.dumps(tuple(spans)))


def _unpacked(described: bytes) -> tuple[Span, ...]:
    found: tuple[Span, ...] = pickle.loads(zlib.decompress(described))  # noqa: S301  our own bytes, sent by the driver
    return found


# The fallback to the ledger


@dataclass(frozen=True)
class LedgerFallback:
    """Finds the records of a dataset as of a head, only in the ledger. It is small, so it can be sent to tasks."""

    name: str
    objects: DatasetObjects
    head: Multihash

    def spans(self, within: Range, dead: I64) -> tuple[Span, ...]:
        """All records in a range, only from slices. Raises `RecordsPurged` after a purge since the head was read."""
        snapshot = load_snapshot(self.objects, self.head, {})
        purged = self._purged()
        if purged > snapshot.purged_before:
            raise RecordsPurged(
                f"records before offset {purged} of {self.name!r} were purged while they were read",
                hint="repeat the read",
                purged_before=purged,
            )
        layout = snapshot.require_layout(self.name)
        pieces = find_slice_pieces(snapshot, layout, dead, within)
        files = PieceFiles(TimelineObjects(self.objects), layout)
        return tuple(spans((), pieces, within, MOST_ROWS, files.places))

    def _purged(self) -> int:
        """The offset before which everything is purged now."""
        head = self.objects.read_head()
        return 0 if head is None or head == self.head else load_snapshot(self.objects, head, {}).purged_before
