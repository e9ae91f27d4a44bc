"""The input of a write cut into parts, one per future slice: ranges of a table, row groups of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.errors import UnreadableFile
from floodmark.storage.parquet import Digests
from floodmark.storage.store import Store

PART_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20
"""The size of the buffer for reading columns. Reading whole column chunks at once took five times as long."""


@dataclass(frozen=True)
class TablePart:
    """Rows in memory."""

    rows: int
    table: pa.Table = field(repr=False)
    where: str = "the data"

    def load(self) -> pa.Table:
        return self.table


@dataclass(frozen=True)
class RowGroups:
    """Some row groups of a Parquet file, and columns that have one value for the whole file."""

    path: str
    row_groups: tuple[int, ...]
    constants: pa.RecordBatch | None = None


@dataclass(frozen=True)
class ParquetPart:
    """Row groups of Parquet files, plain files or objects of a store."""

    rows: int
    groups: tuple[RowGroups, ...]
    store: Store | None = None
    origin: str | None = None  # the data that was staged as these files

    @property
    def where(self) -> str:
        if self.origin is not None:
            return self.origin
        first, more = self.groups[0].path, len({p.path for p in self.groups}) - 1
        return f"{first} and {more} more files" if more else first

    def load(self) -> pa.Table:
        table = pa.concat_tables([self._read(p) for p in self.groups], promote_options="default")
        if table.num_rows != self.rows:
            raise UnreadableFile(
                f"{self.where} changed while it was read: expected {self.rows} rows, read {table.num_rows}",
                hint="write it again when no other process changes the file",
                path=self.groups[0].path,
            )
        return table

    def _read(self, some: RowGroups) -> pa.Table:
        with open_parquet(some.path, self.store) as file:
            try:
                table = file.read_row_groups(list(some.row_groups), use_threads=False)
            except (OSError, pa.ArrowInvalid) as error:
                raise unreadable_file(some.path, error) from error
            return with_constants(_instants(table, file), some.constants)


@dataclass(frozen=True)
class SlicePart:
    """The data columns of a slice that was finalised for other offsets."""

    rows: int
    path: Path
    columns: tuple[str, ...]
    digests: Digests = field(repr=False)
    where: str = "a finished slice"

    def load(self) -> pa.Table:
        with pq.ParquetFile(self.path) as file:
            return file.read(columns=list(self.columns), use_threads=False)


Part = TablePart | ParquetPart | SlicePart


def table_parts(table: pa.Table, row_group_size: int | None = None) -> list[TablePart]:
    """Cut a table into parts of bounded size, at multiples of `row_group_size` if such row groups fit."""
    rows = max(1, int(table.num_rows * PART_BYTES / max(table.nbytes, 1)))
    if row_group_size is not None and rows > row_group_size:
        rows -= rows % row_group_size
    cuts = range(0, table.num_rows, rows)
    return [TablePart(min(rows, table.num_rows - at), table.slice(at, rows)) for at in cuts]


def with_constants(table: pa.Table, constants: pa.RecordBatch | None) -> pa.Table:
    """The table with the columns of `constants`, which has one row, except those that it has itself."""
    if constants is None:
        return table
    first = pa.array(np.zeros(table.num_rows, np.int64))
    for name in constants.schema.names:
        if name not in table.column_names:
            table = table.append_column(constants.schema.field(name), constants.column(name).take(first))
    return table


def parquet_parts(
    paths: Sequence[str],
    store: Store | None = None,
    origin: str | None = None,
    constants: Sequence[pa.RecordBatch] = (),
) -> Iterator[ParquetPart]:
    """Cut and join files at row groups into parts of bounded size, in order. Each part has one set of columns.

    `constants` has a row for each file with columns to add to it.
    """
    chosen: list[RowGroups] = []
    rows = size = 0
    columns: list[tuple[str, pa.DataType]] = []
    for number, path in enumerate(paths):
        groups: list[int] = []
        added = constants[number] if constants else None
        with open_parquet(path, store) as file:
            metadata = file.metadata
            width = _row_width(file.schema_arrow)
            mine = [(f.name, f.type) for f in [*file.schema_arrow, *([] if added is None else added.schema)]]
            if rows and mine != columns:
                yield ParquetPart(rows, tuple(chosen), store, origin)
                chosen, rows, size = [], 0, 0
            columns = mine
            for i in range(metadata.num_row_groups):
                group = metadata.row_group(i)
                if group.num_rows == 0:
                    continue
                weight = max(group.total_byte_size, group.num_rows * width)
                if rows and size + weight > PART_BYTES:
                    chosen += [RowGroups(path, tuple(groups), added)] if groups else []
                    yield ParquetPart(rows, tuple(chosen), store, origin)
                    chosen, groups, rows, size = [], [], 0, 0
                groups.append(i)
                rows, size = rows + group.num_rows, size + weight
        if groups:
            chosen.append(RowGroups(path, tuple(groups), added))
    if rows:
        yield ParquetPart(rows, tuple(chosen), store, origin)


def parquet_schema(path: str, store: Store | None = None) -> pa.Schema:
    """The Arrow schema of a Parquet file, with INT96 columns as timestamps in UTC."""
    with open_parquet(path, store) as file:
        schema: pa.Schema = file.schema_arrow.remove_metadata()
        for i, field_ in enumerate(schema):
            if field_.name in _int96_columns(file):
                schema = schema.set(i, pa.field(field_.name, pa.timestamp("us", "UTC")))
        return schema


def open_parquet(path: str, store: Store | None = None) -> pq.ParquetFile:
    """Open a Parquet file, or raise an error that names it."""
    try:
        source: Any = path if store is None else store.open(path)
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES)
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable_file(path, error) from error


def unreadable_file(path: str, error: BaseException, kind: str = "Parquet") -> UnreadableFile:
    """The error for a file that cannot be read in its format."""
    guessed = "" if kind == "Parquet" else "; if a type was guessed wrong, create the dataset with schema="
    return UnreadableFile(
        f"{path} cannot be read as {kind}: {error}",
        hint=f"leave the file out or repair it (nothing was written){guessed}",
        path=path,
    )


def _instants(table: pa.Table, file: pq.ParquetFile) -> pa.Table:
    """The table with INT96 columns as timestamps in UTC: Arrow reads them without a time zone."""
    for name in _int96_columns(file):
        i = table.schema.get_field_index(name)
        table = table.set_column(i, name, table.column(name).cast(pa.timestamp("us", "UTC")))
    return table


def _int96_columns(file: pq.ParquetFile) -> list[str]:
    columns: Iterable[int] = range(len(file.schema))
    flat = [file.schema.column(i) for i in columns]
    return [c.name for c in flat if c.physical_type == "INT96" and c.path == c.name]


def _row_width(schema: pa.Schema) -> int:
    """An estimate of the bytes per row in memory: sizes in Parquet metadata are too small with dictionaries."""
    return sum(t.bit_width // 8 if _has_width(t) else 16 for t in schema.types)


def _has_width(t: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(t) and not pa.types.is_boolean(t))
