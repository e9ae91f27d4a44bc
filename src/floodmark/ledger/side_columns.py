"""Side columns: values that belong to offsets and are stored in separate files, not in the slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import pyarrow as pa

from floodmark.engine.run import GeneratorThreads
from floodmark.errors import BadColumnName
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64

ColumnArray: TypeAlias = "pa.Array | pa.ChunkedArray"

Offsets: TypeAlias = I64 | range
"""Offsets in ascending order, each once; a range if they have no gaps."""

BATCH_ROWS = 1 << 17
"""Records per batch if only side columns are read."""

_CUT = 1 << 20


class SideValues(Protocol):
    """Some open side columns, read once from the first offset to the last."""

    def take(self, offsets: Offsets) -> Sequence[ColumnArray]:
        """The values at these offsets, one array per column; null where a record has no value."""
        ...


class SideColumnSet(Protocol):
    """Columns whose values are looked up by offset. They are sent to tasks, so they can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, all nullable and without metadata."""
        ...

    def open(self, names: Sequence[str]) -> SideValues:
        """Open some of the columns for reads in this process, by one thread at a time."""
        ...


@dataclass(frozen=True)
class OffsetBatch:
    """Records and their offsets."""

    offsets: Offsets
    records: pa.RecordBatch


def with_side_columns(located: Iterable[OffsetBatch], values: SideValues, schema: pa.Schema) -> Iterator[pa.Table]:
    """Each batch with its side columns, which have this schema. A thread reads the values of the next batch ahead."""
    with GeneratorThreads(1) as ahead:
        waiting: tuple[OffsetBatch, Future[Sequence[ColumnArray]]] | None = None
        for batch in located:
            reading = ahead.submit(values.take, batch.offsets)
            if waiting is not None:
                yield append_columns(waiting[0].records, waiting[1].result(), schema)
            waiting = batch, reading
        if waiting is not None:
            yield append_columns(waiting[0].records, waiting[1].result(), schema)


def append_columns(records: pa.RecordBatch | pa.Table, columns: Sequence[ColumnArray], schema: pa.Schema) -> pa.Table:
    """The records with side columns after their own columns."""
    return pa.Table.from_arrays([*records.columns, *columns], schema=pa.schema([*records.schema, *schema]))


class BackgroundRead:
    """All values of some side columns in a range of offsets, read by several threads in the background."""

    def __init__(self, side_columns: SideColumnSet, names: Sequence[str], offsets: range) -> None:
        self._types = [side_columns.schema.field(name).type for name in names]
        ranges = list(_cut(offsets, pa.cpu_count()))
        threads = ThreadPoolExecutor(pa.cpu_count())
        self._reading = [[threads.submit(side_columns.open([name]).take, some) for some in ranges] for name in names]
        threads.shutdown(wait=False)  # submitted reads still run

    def result(self) -> list[ColumnArray]:
        """Wait for all values; one array per column."""
        columns: list[ColumnArray] = []
        for data_type, reads in zip(self._types, self._reading, strict=True):
            arrays = [column for read in reads for column in read.result()]
            columns.append(pa.chunked_array([chunk for array in arrays for chunk in _chunks(array)], data_type))
        return columns


def _chunks(column: ColumnArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _cut(offsets: range, most: int) -> Iterator[range]:
    """Cut a range into at most `most` ranges of similar length, at offsets where value files usually end."""
    stride = -(-len(offsets) // most)
    stride = -(-stride // _CUT) * _CUT
    start = offsets.start
    while start < offsets.stop:
        end = min((start // _CUT) * _CUT + stride, offsets.stop)
        yield range(start, end)
        start = end


def is_dense(selection: Selection) -> bool:
    """Whether the selection has all records from its start to its end, so that offsets can be counted."""
    files = selection.files
    if not files:
        return selection.start == selection.end
    return (
        not selection.has_dead
        and not any(f.absent for f in files)
        and all(a.end == b.start for a, b in pairwise(files))
        and files[0].start <= selection.start
        and files[-1].end >= selection.end
    )


def count_offsets(start: int, batches: Iterable[pa.RecordBatch]) -> Iterator[OffsetBatch]:
    """Batches of consecutive records with their offsets, found by counting."""
    for batch in batches:
        yield OffsetBatch(range(start, start + batch.num_rows), batch)
        start += batch.num_rows


def batches_without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches without columns, with this many rows in total."""
    for at in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - at)
        yield pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), count, [None]))


def check_side_names(records: pa.Schema, side_columns: SideColumnSet, name: str) -> None:
    """Refuse to read a dataset if a side column has the same name as a column of the records."""
    names = {column.lower() for column in records.names}
    for column in side_columns.schema.names:
        if column.lower() in names:
            raise BadColumnName(
                f"dataset {name!r} has both a data column and a computed column {column!r} (case is ignored)",
                hint=f"remove the computed one with drop_column({column!r}), then add_column() with another name",
                columns=[column],
            )
