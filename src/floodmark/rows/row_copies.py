"""Rows by offset, read from an uncompressed copy of each slice: retractions and corrections repeat old rows.

To read a thousand scattered rows from Parquet, most row groups must be decoded. In a memory-mapped Arrow file the same
rows are a few pages. The copies are derived and may be damaged: callers compare the hashes of the values with the key
index, and read again with `from_slices` if they differ.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import BadIndex, StorageError, UnreadableSlice
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.unreadable import unreadable_records
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.page_checksums import check_slice
from floodmark.storage.parquet import open_slice

_log = logging.getLogger(__name__)

COPY_ROWS = 64
"""A missing copy is written when a read needs this many rows of its slice, or all rows of a smaller slice."""


OPEN_COPIES = 1024
"""The most copies that stay mapped. The files themselves are closed."""


@dataclass
class RowReader:
    """The rows of a dataset's slices, by offset. Opened copies can be shared between objects: they never change."""

    objects: DatasetObjects
    slices: pa.Table
    layout: Layout
    opened: dict[str, pa.RecordBatch] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self.objects, self.slices, self.layout)  # opened copies are not sent

    def copied(self, offsets: I64) -> pa.Table:
        """The rows at these offsets, in this order, from copies where they exist."""
        return self._read_by_slice(offsets, self._from_copy)

    def from_slices(self, offsets: I64) -> pa.Table:
        """The same rows, read from the slices."""
        return self._read_by_slice(offsets, self._from_slice)

    def verified(self, offsets: I64, expected: Hashes) -> pa.Table:
        """The rows at these offsets, checked against the hashes in the key index. Either of them may be damaged."""
        names = self.layout.data.names
        rows = self.copied(offsets)
        if row_hash.hash_rows(rows, names).same(expected).all():
            return rows
        rows = self.from_slices(offsets)
        wrong = np.flatnonzero(~row_hash.hash_rows(rows, names).same(expected))
        if len(wrong):
            raise BadIndex(f"the row at offset {offsets[wrong[0]]} differs between the key index and the ledger")
        return rows

    def only(self, columns: Sequence[str]) -> RowReader:
        """The same rows with fewer columns, for reads from slices."""
        data = pa.schema([self.layout.data.field(name) for name in columns])
        event_time = self.layout.event_time if self.layout.event_time in columns else None
        return RowReader(self.objects, self.slices, replace(self.layout, data=data, event_time=event_time))

    def _read_by_slice(self, offsets: I64, read: Callable[[int, I64], pa.Table]) -> pa.Table:
        """Read the rows of one slice after another, then restore the order of the offsets."""
        if len(offsets) == 0:
            return self._schema.empty_table()
        order = np.argsort(offsets, kind="stable")
        ascending = offsets[order]
        which = np.searchsorted(self.slices.column("start").to_numpy(), ascending, side="right") - 1
        cuts = np.flatnonzero(np.diff(which, prepend=-1))
        tables = []
        for first, end in zip(cuts, [*cuts[1:], len(which)], strict=True):
            number = int(which[first])
            start = self.slices.column("start")[number].as_py()
            tables.append(self._completed(read(number, ascending[first:end] - start)))
        rows = pa.concat_tables(tables)
        if (order[1:] > order[:-1]).all():
            return rows  # already in order; not combined, because large text would not fit into one array
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return rows.combine_chunks().take(pa.array(back))

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([f.with_nullable(True) for f in _data_fields(self.layout)])

    def _completed(self, rows: pa.Table) -> pa.Table:
        """The rows with nulls for columns that were added later."""
        schema, places = self._schema, {name: place for place, name in enumerate(rows.column_names)}
        columns = [rows.column(places[f.name]) if f.name in places else pa.nulls(rows.num_rows, f.type) for f in schema]
        return pa.table(columns, schema=schema)

    def _from_copy(self, number: int, at: I64) -> pa.Table:
        name = self._physical(number).text
        batch = self.opened.get(name)
        if batch is None:
            self._check_slice(number)
            batch = _mapped(self.objects, name)
            if batch is None or batch.num_rows != self._length(number):
                return self._from_slice_with_copy(number, at)
            if len(self.opened) >= OPEN_COPIES:
                for old in list(self.opened)[: OPEN_COPIES // 2]:  # a list, because other threads also open copies
                    self.opened.pop(old, None)
            self.opened[name] = batch
        if not _can_take(batch, at):
            self.opened.pop(name, None)
            return self._from_slice_with_copy(number, at)
        return pa.Table.from_batches([batch.take(pa.array(at))])

    def _from_slice_with_copy(self, number: int, at: I64) -> pa.Table:
        """Read from the slice, and write a copy if enough rows are read."""
        if len(at) < min(COPY_ROWS, self._length(number)):
            return self._from_slice(number, at)
        data = self._read(number, None)
        try:
            self._copy(number, data)
        except (OSError, StorageError) as error:
            _log.warning("the rows of a slice of %s could not be copied (%s)", self.objects.folder, error)
        return data.take(pa.array(at))

    def _copy(self, number: int, data: pa.Table) -> None:
        path = self.objects.store.staging() / f"rows-{uuid.uuid4().hex}"
        try:
            write_copy(path, data)
            store_copy(self.objects, self._physical(number), path)
        finally:
            path.unlink(missing_ok=True)

    def _from_slice(self, number: int, at: I64) -> pa.Table:
        self.opened.pop(self._physical(number).text, None)  # the copy may be damaged
        return self._read(number, at)

    def _read(self, number: int, at: I64 | None) -> pa.Table:
        """All rows of a slice, or the rows at some sorted positions. Reads only the row groups with these rows."""
        key = self.objects.data_key(self._physical(number))
        try:
            with open_slice(self.objects.store, key, self._size(number)) as file:
                in_file = set(file.schema_arrow.names)
                names = [f.name for f in _data_fields(self.layout) if f.name in in_file]
                return file.read(columns=names) if at is None else _rows_at(file, names, at)
        except (OSError, pa.ArrowException, StorageError) as error:
            raise self._unreadable(number, error) from error

    def _unreadable(self, number: int, error: Exception) -> UnreadableSlice:
        start = self.slices.column("start")[number].as_py()
        key = self.objects.data_key(self._physical(number))
        return unreadable_records(self.objects, start, start + self._length(number), error, [key])

    def _check_slice(self, number: int) -> None:
        """Refuse the copy of a local slice that is missing or damaged, as a read of the slice does."""
        key = self.objects.data_key(self._physical(number))
        if self.objects.store.local_path(key) is None:
            return
        try:
            check_slice(self.objects.store, key, self._size(number))
        except OSError as error:
            raise self._unreadable(number, error) from error

    def _size(self, number: int) -> int:
        return int(self.slices.column("size")[number].as_py())

    def _physical(self, number: int) -> Multihash:
        return Multihash(SHA3_256, self.slices.column("physical")[number].as_py())

    def _length(self, number: int) -> int:
        return int(self.slices.column("end")[number].as_py() - self.slices.column("start")[number].as_py())


def _rows_at(file: pq.ParquetFile, names: list[str], at: I64) -> pa.Table:
    ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)])
    starts = np.concatenate([[0], ends[:-1]])
    which = np.searchsorted(ends, at, side="right")
    groups = np.unique(which)
    read_starts = np.concatenate([[0], np.cumsum((ends - starts)[groups])[:-1]])
    positions = at - starts[which] + read_starts[np.searchsorted(groups, which)]
    return file.read_row_groups(groups.tolist(), columns=names).take(pa.array(positions))


def write_copy(path: Path, data: pa.Table) -> None:
    """Write the data columns of a slice as one uncompressed Arrow file."""
    data = data.combine_chunks()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        for batch in data.to_batches():
            writer.write_batch(batch)


def store_copy(objects: DatasetObjects, physical_hash: Multihash, path: Path) -> None:
    """Store the copy of a slice. Copies are derived and can be lost at any time."""
    objects.store.put_derived_file(objects.rows_key(physical_hash.text), path)


def remove_dead_copies(objects: DatasetObjects, slices: pa.Table, dead: I64) -> None:
    """Remove the copies of slices without current records: their rows are not read again."""
    starts, ends = (slices.column(name).to_numpy() for name in ("start", "end"))
    lifeless = np.searchsorted(dead, ends) - np.searchsorted(dead, starts) == ends - starts
    digests = slices.column("physical").filter(pa.array(lifeless)).to_pylist()
    keys = {objects.rows_key(Multihash(SHA3_256, digest).text) for digest in digests}
    for info in list(objects.store.list(objects.rows_key("").removesuffix("/"))) if keys else ():
        if info.key in keys:
            objects.store.delete(info.key)


def _mapped(objects: DatasetObjects, name: str) -> pa.RecordBatch | None:
    path = objects.store.local_path(objects.rows_key(name))
    try:
        source = pa.memory_map(str(path)) if path is not None else objects.store.open(objects.rows_key(name))
        reader = pa.ipc.open_file(source)
        if reader.num_record_batches != 1:
            return None
        batch = reader.get_batch(0)
        batch.validate()
        for column in batch.columns:
            if pa.types.is_nested(column.type):
                column.validate(full=True)  # once, on opening; text is checked on each read, in `_can_take`
    except (OSError, pa.ArrowException, StorageError):
        return None
    return batch


def _can_take(batch: pa.RecordBatch, at: I64) -> bool:
    """Whether the values at these positions are inside the file. A damaged copy may be wrong, but must not crash."""
    if len(at) and int(at[-1]) >= batch.num_rows:
        return False
    return all(_is_within(column, at) for column in batch.columns)


def _is_within(column: pa.Array, at: I64) -> bool:
    t = column.type
    if pa.types.is_string(t) or pa.types.is_binary(t):
        _, offsets, values = column.buffers()
        if offsets is None or values is None:
            return True
        bounds = np.frombuffer(offsets, np.int32)[column.offset :]
        low, high = bounds[at], bounds[at + 1]
        return bool(((low >= 0) & (low <= high) & (high <= values.size)).all())
    return True


def _data_fields(layout: Layout) -> list[pa.Field]:
    data = set(layout.data.names)
    return [f for f in layout.payload_schema if f.name in data]
