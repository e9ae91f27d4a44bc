"""Columns beside the records: values that belong to offsets and lie in files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import pyarrow as pa

from floodmark.engine.threads import Threads
from floodmark.ledger.errors import DuplicateColumns
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64

Column: TypeAlias = "pa.Array | pa.ChunkedArray"

Offsets: TypeAlias = I64 | range
"""Offsets in ascending order, each once; a range where they follow each other without a gap."""

BATCH_ROWS = 1 << 17
"""How many records come at once when only columns beside them are asked for."""

_CUT = 1 << 20


class Values(Protocol):
    """Some columns, opened to be read once from the first offset to the last."""

    def take(self, offsets: Offsets) -> Sequence[Column]:
        """The values at these offsets, a column each; null where there is none."""
        ...


class Beside(Protocol):
    """Columns whose values are found by offset. It travels to tasks, so it can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The columns: all of them take nulls, and none has metadata."""
        ...

    def open(self, names: Sequence[str]) -> Values:
        """Some of the columns, to be read in this process by one thread at a time."""
        ...


@dataclass(frozen=True)
class Located:
    """Records, and the offset of each."""

    offsets: Offsets
    records: pa.RecordBatch


def side_by_side(located: Iterable[Located], values: Values, schema: pa.Schema) -> Iterator[pa.Table]:
    """Each batch with its columns beside it, which `schema` names. A thread reads those of the next batch ahead."""
    with Threads(1) as ahead:
        waiting: tuple[Located, Future[Sequence[Column]]] | None = None
        for each in located:
            reading = ahead.submit(values.take, each.offsets)
            if waiting is not None:
                yield joined(waiting[0].records, waiting[1].result(), schema)
            waiting = each, reading
        if waiting is not None:
            yield joined(waiting[0].records, waiting[1].result(), schema)


def joined(records: pa.RecordBatch | pa.Table, columns: Sequence[Column], schema: pa.Schema) -> pa.Table:
    """The records with more columns after their own."""
    return pa.Table.from_arrays([*records.columns, *columns], schema=pa.schema([*records.schema, *schema]))


class WholeColumns:
    """All values of some columns between two offsets, read by several threads while the caller does something else."""

    def __init__(self, beside: Beside, names: Sequence[str], offsets: range) -> None:
        self._types = [beside.schema.field(name).type for name in names]
        stretches = list(_stretches(offsets, pa.cpu_count()))
        threads = ThreadPoolExecutor(pa.cpu_count())
        self._reading = [[threads.submit(beside.open([name]).take, some) for some in stretches] for name in names]
        threads.shutdown(wait=False)  # what was handed in is still done

    def result(self) -> list[Column]:
        """A column each, when all are there."""
        columns: list[Column] = []
        for data_type, stretches in zip(self._types, self._reading, strict=True):
            found = [column for some in stretches for column in some.result()]
            columns.append(pa.chunked_array([c for f in found for c in _chunks(f)], data_type))
        return columns


def _chunks(column: Column) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _stretches(offsets: range, most: int) -> Iterator[range]:
    """A few ranges of about one length, cut where files of values are likely to be."""
    step = -(-len(offsets) // most)
    step = -(-step // _CUT) * _CUT
    start = offsets.start
    while start < offsets.stop:
        end = min((start // _CUT) * _CUT + step, offsets.stop)
        yield range(start, end)
        start = end


def is_dense(selection: Selection) -> bool:
    """Whether the selection is all records from its start to its end, so that counting them gives their offsets."""
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


def counted(start: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Located]:
    """Batches of records that follow each other without a gap, located by counting."""
    for batch in batches:
        yield Located(range(start, start + batch.num_rows), batch)
        start += batch.num_rows


def no_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """So many records of which nothing is read."""
    for at in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - at)
        yield pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), count, [None]))


def check_apart(records: pa.Schema, beside: Beside, name: str) -> None:
    """Refuse to read a dataset in which a column beside the records has the name of one of theirs."""
    taken = {column.lower() for column in records.names}
    for column in beside.schema.names:
        if column.lower() in taken:
            raise DuplicateColumns(
                f"dataset {name!r} has a column and a computed column {column!r} (capitals do not count)",
                hint=f"drop_column({column!r}) removes the computed one, and add_column() makes it under another name",
                columns=[column],
            )
