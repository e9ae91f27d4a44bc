"""Rows by offset: what retractions and corrections repeat, from an uncompressed copy beside each slice.

Decoding Parquet row groups for a thousand scattered rows reads most of a dataset; in a memory-mapped Arrow file the
same rows are a few pages. The copies are derived: whoever takes values from here compares their hash with the key
index, and asks again with `from_slices` when they differ.
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

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.errors import BadIndex, UnreadableSlice
from floodmark.ledger.keys import hashing
from floodmark.ledger.layout import Layout
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.errors import StorageError

_log = logging.getLogger(__name__)

COPY_ROWS = 64
"""A missing copy is written when so many rows of its slice are wanted at once, or all of a smaller one."""


OPEN_COPIES = 1024
"""How many copies stay mapped at most; the files themselves are closed."""


@dataclass
class Rows:
    """The rows of a dataset's slices, by offset. Copies that were opened before may be handed on: they never change."""

    objects: DatasetObjects
    slices: pa.Table
    layout: Layout
    opened: dict[str, pa.RecordBatch] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.objects, self.slices, self.layout)  # open files stay here

    def copied(self, offsets: I64) -> pa.Table:
        """The rows at these offsets, in this order, from the copies where there are any."""
        return self._gathered(offsets, self._from_copy)

    def from_slices(self, offsets: I64) -> pa.Table:
        """The same from the ledger itself."""
        return self._gathered(offsets, self._from_slice)

    def verified(self, offsets: I64, expected: Hashes) -> pa.Table:
        """The rows at these offsets, which must have these hashes: neither a copy nor the index is believed alone."""
        names = self.layout.data.names
        found = self.copied(offsets)
        if hashing.hash_rows(found, names).same(expected).all():
            return found
        found = self.from_slices(offsets)
        wrong = np.flatnonzero(~hashing.hash_rows(found, names).same(expected))
        if len(wrong):
            raise BadIndex(f"the key index has another row at offset {offsets[wrong[0]]} than the ledger")
        return found

    def only(self, columns: Sequence[str]) -> Rows:
        """The same rows with fewer columns, for reading from slices."""
        data = pa.schema([self.layout.data.field(name) for name in columns])
        event_time = self.layout.event_time if self.layout.event_time in columns else None
        return Rows(self.objects, self.slices, replace(self.layout, data=data, event_time=event_time))

    def _gathered(self, offsets: I64, read: Callable[[int, I64], pa.Table]) -> pa.Table:
        if len(offsets) == 0:
            return self._schema.empty_table()
        order = np.argsort(offsets, kind="stable")
        wanted = offsets[order]
        which = np.searchsorted(self.slices.column("start").to_numpy(), wanted, side="right") - 1
        cuts = np.flatnonzero(np.diff(which, prepend=-1))
        tables = []
        for first, end in zip(cuts, [*cuts[1:], len(which)], strict=True):
            number = int(which[first])
            start = self.slices.column("start")[number].as_py()
            tables.append(self._completed(read(number, wanted[first:end] - start)))
        found = pa.concat_tables(tables)
        if (order[1:] > order[:-1]).all():
            return found  # in order already; put together, much text would not fit into one array
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.combine_chunks().take(pa.array(back))

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([f.with_nullable(True) for f in _data_fields(self.layout)])

    def _completed(self, rows: pa.Table) -> pa.Table:
        """With nulls for columns that came later."""
        columns = [
            rows.column(f.name) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
            for f in self._schema
        ]
        return pa.table(columns, schema=self._schema)

    def _from_copy(self, number: int, at: I64) -> pa.Table:
        name = self._physical(number).text
        batch = self.opened.get(name)
        if batch is None:
            batch = _mapped(self.objects, name)
            if batch is None or batch.num_rows != self._length(number):
                return self._copying(number, at)
            if len(self.opened) >= OPEN_COPIES:
                for old in list(self.opened)[: OPEN_COPIES // 2]:  # a list: other threads open copies too
                    self.opened.pop(old, None)
            self.opened[name] = batch
        if not _can_take(batch, at):
            self.opened.pop(name, None)
            return self._copying(number, at)
        return pa.Table.from_batches([batch.take(pa.array(at))])

    def _copying(self, number: int, at: I64) -> pa.Table:
        """From the slice, leaving a copy for the next time when that pays."""
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
            keep_copy(self.objects, self._physical(number), path)
        finally:
            path.unlink(missing_ok=True)

    def _from_slice(self, number: int, at: I64) -> pa.Table:
        self.opened.pop(self._physical(number).text, None)  # who comes here may not have liked what it said
        return self._read(number, at)

    def _read(self, number: int, at: I64 | None) -> pa.Table:
        """All rows of a slice, or those at some sorted positions: only the row groups that hold them are read."""
        try:
            with pq.ParquetFile(self.objects.store.open(self.objects.data_key(self._physical(number)))) as file:
                names = [f.name for f in _data_fields(self.layout) if f.name in file.schema_arrow.names]
                return file.read(columns=names) if at is None else _rows_at(file, names, at)
        except (OSError, pa.ArrowException, StorageError) as error:
            start = self.slices.column("start")[number].as_py()
            raise UnreadableSlice(
                f"records {start} to {start + self._length(number) - 1} cannot be read: {error}",
                hint="a file of the dataset is missing or damaged: verify says which",
            ) from error

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


def keep_copy(objects: DatasetObjects, physical_hash: Multihash, path: Path) -> None:
    """Put a copy beside its slice; it can be lost at any time."""
    objects.store.put_derived_file(objects.rows_key(physical_hash.text), path)


def drop_lifeless(objects: DatasetObjects, slices: pa.Table, dead: I64) -> None:
    """Remove the copies of slices none of whose records is current: nobody will ask for their rows."""
    starts, ends = (slices.column(name).to_numpy() for name in ("start", "end"))
    lifeless = np.searchsorted(dead, ends) - np.searchsorted(dead, starts) == ends - starts
    gone = slices.column("physical").filter(pa.array(lifeless)).to_pylist()
    keys = {objects.rows_key(Multihash(SHA3_256, digest).text) for digest in gone}
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
                column.validate(full=True)  # once, when it is opened; text is checked where it is taken from
    except (OSError, pa.ArrowException, StorageError):
        return None
    return batch


def _can_take(batch: pa.RecordBatch, at: I64) -> bool:
    """Whether what is at these positions lies inside the file: a damaged copy must not crash us, only be wrong."""
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
    return [f for f in layout.payload_schema if f.name in layout.data.names]
