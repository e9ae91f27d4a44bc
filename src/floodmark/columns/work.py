"""What the tasks of a backfill share, one task, and its result. All are sent between the driver and workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.manifest import ColumnSegment
from floodmark.columns.plan import Share
from floodmark.derive.checkpoint_key import CheckpointPrefix
from floodmark.engine.call_size import CallTimes
from floodmark.functions.column_call import ColumnCaller
from floodmark.functions.udf import Udf
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position
from floodmark.ledger.scan import Scan
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import Selection
from floodmark.ledger.side_columns import SideColumnSet
from floodmark.storage.arrays import I64

SPARSE = 16
"""If less than one record in this many is wanted, looking up each one costs less than reading all."""


@dataclass(frozen=True)
class CheckpointSizes:
    """The allowed sizes of checkpoints in rows, and how long one should take."""

    minimum: int
    maximum: int
    start: int
    target_seconds: float


@dataclass(frozen=True)
class ColumnJob:
    """The computation of one column of one dataset as of one snapshot: what all of its tasks share."""

    objects: ColumnObjects  # where results are stored
    records: DatasetObjects  # the dataset whose records are read: the same one, except for views
    fragment_rows: int
    layout: Layout
    beside: SideColumnSet | None  # the computed columns that are inputs
    column: pa.Field
    field_id: int
    inputs: tuple[str, ...]
    prefix: CheckpointPrefix
    run: str  # the id of this backfill, by which it recognizes its own checkpoints
    sources: str  # the hash of the inputs, stored in data checkpoints
    udf: Udf
    newest: Position | None = None  # the newest record of the dataset

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints, for tasks: the driver has removed those of records that the dataset lost."""
        return self.objects.checkpoints.bound_to(self.newest)

    @property
    def offset_name(self) -> str:
        return self.layout.vocab.offset

    def caller(self) -> ColumnCaller:
        return ColumnCaller(self.udf, self.column, self.inputs)

    def read(self, selection: Selection, wanted: I64) -> Iterator[pa.RecordBatch]:
        """The inputs of the records of a selection, with their offsets, in offset order.

        If few records are wanted, files and row groups without any are not read. Unwanted records may be included.
        """
        yield from read_records(self.records, self.layout, selection, self.inputs, wanted, self.beside)


def read_records(
    objects: DatasetObjects,
    layout: Layout,
    selection: Selection,
    columns: Sequence[str],
    wanted: I64,
    beside: SideColumnSet | None = None,
) -> Iterator[pa.RecordBatch]:
    """Some columns of the records of a selection, with their offsets, in offset order. See `ColumnJob.read`."""
    offset = layout.vocab.offset
    where = None
    if len(wanted) * SPARSE < selection.end - selection.start:
        selection = _select_files(selection, wanted)
        where = pc.field(offset).isin(pa.array(wanted))
    scan = Scan(objects, layout, selection, tuple(dict.fromkeys([*columns, offset])), beside)
    with scan.readable():
        yield from scan.batches(where)


def _select_files(selection: Selection, wanted: I64) -> Selection:
    """A selection without the files that have none of these ascending offsets."""
    bounds = np.searchsorted(wanted, [(file.start, file.end) for file in selection.files])
    files = tuple(file for file, (low, high) in zip(selection.files, bounds, strict=True) if low < high)
    return selection.of(files, selection.start, selection.end)


@dataclass(frozen=True)
class RangeTask:
    """A task that computes the rows of one share. The selection has their records."""

    share: Share
    base: int  # the offset of its fragment's address 0
    selection: Selection
    sizes: CheckpointSizes
    call_rows: int  # maximum number of rows per call
    patience: float  # seconds after which a task that will not end soon returns the remaining rows
    again: BitMap  # rows to compute although a checkpoint has them, since they failed there
    direct: tuple[int, int] | None = None  # the offsets of the segment that it may write directly
    times: CallTimes = field(default_factory=CallTimes)  # of calls in earlier rounds

    @property
    def rows(self) -> int:
        return len(self.share.rows)

    def __str__(self) -> str:
        first, last = self.base + self.share.rows.min(), self.base + self.share.rows.max()
        which = f"record {first}" if first == last else f"records {first} to {last}"
        return f"to compute {which}"


@dataclass(frozen=True)
class MapBatchCheckpoint:
    """One stored batch: its first address, its rows, the number of addresses it covers, and how many were computed."""

    key: str
    offset: int
    num_rows: int
    span: int
    udf_rows: int


@dataclass(frozen=True)
class RangeResult:
    """The result of a task. `rest` are rows that it did not start; `written` is a file that needs no assembling."""

    share: Share
    checkpoints: tuple[MapBatchCheckpoint, ...]
    computed: int
    failed: int
    called: int
    seconds: float
    rest: BitMap
    written: WrittenSegment | None = None
    times: CallTimes = field(default_factory=CallTimes)

    @property
    def left(self) -> list[tuple[int, BitMap]]:
        return [(self.share.fragment, self.rest)] if self.rest else []

    @property
    def done(self) -> int:
        return self.computed + self.failed

    @property
    def rows(self) -> int:
        return self.done


@dataclass(frozen=True)
class WrittenSegment:
    """A finished file that no manifest names yet, and the errors of its skipped rows."""

    segment: ColumnSegment
    errors: pa.Table
