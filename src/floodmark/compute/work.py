"""What all tasks of a backfill share, and what one of them is to do. Both travel to workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from floodmark.compute.checkpoints.keys import Prefix
from floodmark.compute.functions.call import Caller
from floodmark.compute.functions.udf import Udf
from floodmark.compute.plan import Share
from floodmark.compute.stored.manifest import Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.beside import Beside
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.scan import Scan
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64

SPARSE = 16
"""Where fewer than one record of so many is wanted, looking each up costs less than reading all."""


@dataclass(frozen=True)
class Sizes:
    """How large checkpoints may be and how long one should take."""

    minimum: int
    maximum: int
    start: int
    target_seconds: float


@dataclass(frozen=True)
class Work:
    """One column of one dataset, as of one snapshot."""

    objects: ColumnObjects  # where results are kept
    records: DatasetObjects  # whose records are read: of the same dataset, but for views
    fragment_rows: int
    layout: Layout
    beside: Beside | None  # the computed columns that are inputs
    column: pa.Field
    field_id: int
    inputs: tuple[str, ...]
    prefix: Prefix
    run: str  # names this backfill, so that it knows its own checkpoints
    sources: str  # what the inputs are, for whoever reads a data checkpoint
    udf: Udf

    @property
    def offset_name(self) -> str:
        return self.layout.vocab.offset

    def caller(self) -> Caller:
        return Caller(self.udf, self.column, self.inputs)

    def read(self, selection: Selection, wanted: I64) -> Iterator[pa.RecordBatch]:
        """The inputs of the records of a selection, with their offsets, in offset order.

        When few of them are wanted, files and row groups without any are left alone; others may come along.
        """
        columns = tuple(dict.fromkeys([*self.inputs, self.offset_name]))
        where = None
        if len(wanted) * SPARSE < selection.end - selection.start:
            selection = _with(selection, wanted)
            where = pc.field(self.offset_name).isin(pa.array(wanted))
        scan = Scan(self.records, self.layout, selection, columns, self.beside)
        with scan.readable():
            yield from scan.batches(where)


def _with(selection: Selection, wanted: I64) -> Selection:
    """A selection without the files that hold none of these offsets, which ascend."""
    places = np.searchsorted(wanted, [(file.start, file.end) for file in selection.files])
    files = tuple(file for file, (low, high) in zip(selection.files, places, strict=True) if low < high)
    return selection.of(files, selection.start, selection.end)


@dataclass(frozen=True)
class RangeTask:
    """Compute the rows of one share, whose records are in the selection."""

    share: Share
    base: int  # the offset of its fragment's address 0
    selection: Selection
    sizes: Sizes
    call_rows: int  # how many rows the function is handed at once at most
    patience: float  # seconds after which a task that will not end soon gives the rest back
    again: BitMap  # rows to compute though a checkpoint has them: there they failed
    direct: tuple[int, int] | None = None  # the offsets of the segment that it may write by itself

    @property
    def rows(self) -> int:
        return len(self.share.rows)

    def __str__(self) -> str:
        first, last = self.base + self.share.rows.min(), self.base + self.share.rows.max()
        which = f"record {first}" if first == last else f"records {first} to {last}"
        return f"to compute {which}"


@dataclass(frozen=True)
class MapBatchCheckpoint:
    """One stored batch: where it begins, how many rows it has, how far it reaches, and how many were computed."""

    key: str
    offset: int
    num_rows: int
    span: int
    udf_rows: int


@dataclass(frozen=True)
class Applied:
    """What came of a share. `rest` was not begun; `written` is a file that needs no assembling."""

    share: Share
    checkpoints: tuple[MapBatchCheckpoint, ...]
    computed: int
    failed: int
    called: int
    seconds: float
    rest: BitMap
    written: Written | None = None

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
class Written:
    """A finished file that no manifest names yet, and the rows of it that were skipped."""

    segment: Segment
    errors: pa.Table
