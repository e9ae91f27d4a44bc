"""Units of work: ranges of records or lists of keys, which tasks read; and the scratch files that lists of keys need.

Units are small, and they can be pickled.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64
from floodmark.storage.scratch import explain_write_errors
from floodmark.storage.store import Store

BUCKETS = 256
"""Rows that a scan has found are in this many parts, by the top byte of their key's hash."""

KEYS_PART = 1 << 14
"""A file of keys has parts of this many keys, so that a unit reads few other keys."""


@dataclass(frozen=True)
class RangeUnit:
    """The current rows among the records [start, end) of a step's only input; each key has one row."""

    selection: Selection = field(repr=False)
    start: int
    end: int

    @property
    def rows(self) -> int:
        return max(1, self.end - self.start - len(self.selection.dead))

    def __str__(self) -> str:
        return f"records {self.start} to {self.end - 1}"

    def halves(self) -> tuple[RangeUnit, RangeUnit] | None:
        if self.end - self.start < 2:
            return None
        middle = (self.start + self.end) // 2
        return self._part(self.start, middle), self._part(middle, self.end)

    def _part(self, start: int, end: int) -> RangeUnit:
        files = tuple(f for f in self.selection.files if f.start < end and f.end > start)
        return RangeUnit(self.selection.of(files, start, end), start, end)


@dataclass(frozen=True)
class KeysUnit:
    """The keys [start, end) of a table."""

    keys: pa.Table | TableFile = field(repr=False)
    start: int
    end: int
    rows_each: float  # the approximate number of rows of a key
    sides: tuple[tuple[TableFile, ...] | None, ...] = field(repr=False)  # by input the row files; None: use the index

    @property
    def rows(self) -> int:
        return max(1, round((self.end - self.start) * max(self.rows_each, 1.0)))

    def __str__(self) -> str:
        return f"keys {self.start} to {self.end - 1}"

    def load(self) -> pa.Table:
        """The keys."""
        if isinstance(self.keys, pa.Table):
            return self.keys
        first, last = self.start // KEYS_PART, -(-self.end // KEYS_PART)
        return self.keys.read(first, last).slice(self.start - first * KEYS_PART, self.end - self.start)

    def halves(self) -> tuple[KeysUnit, KeysUnit] | None:
        if self.end - self.start < 2:
            return None
        middle = (self.start + self.end) // 2
        return self._part(self.start, middle), self._part(middle, self.end)

    def _part(self, start: int, end: int) -> KeysUnit:
        keys = self.keys
        if isinstance(keys, pa.Table):
            keys = keys.slice(start - self.start, end - start)
        return replace(self, keys=keys, start=start, end=end)


@dataclass(frozen=True)
class TableFile:
    """A table in a file with consecutive parts; a range of parts can be read without the others."""

    path: str  # the object key if there is a store
    store: Store | None  # None for a local file
    rows: tuple[int, ...]  # by part
    size: int

    def read(self, low: int, high: int) -> pa.Table:
        """The parts [low, high)."""
        source = pa.memory_map(self.path) if self.store is None else self.store.open(self.path)
        reader = pa.ipc.open_file(source)
        first = sum(1 for n in self.rows[:low] if n)
        count = sum(1 for n in self.rows[low:high] if n)
        return pa.Table.from_batches([reader.get_batch(i) for i in range(first, first + count)], reader.schema)

    def read_all(self) -> pa.Table:
        return self.read(0, len(self.rows))


@dataclass(frozen=True)
class ScratchDir:
    """The place for the scratch files of a run: a folder, or objects in a remote store, which `clear` removes."""

    folder: Path  # the staging area of the run
    objects: DatasetObjects

    @property
    def _prefix(self) -> str:
        return f"{self.objects.folder}/staging/{self.folder.name}"

    def put(self, table: pa.Table, rows: Sequence[int]) -> TableFile:
        """Write a table whose rows are sorted by part; `rows` has the number of rows of each part."""
        target = self.folder if self.objects.is_local else self.objects.store.staging()
        path = target / f"table-{uuid.uuid4().hex}"
        whole = table.combine_chunks()
        with (
            explain_write_errors(f"{table.num_rows:,} rows", target),
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            at = 0
            for count in rows:
                if count:
                    [batch] = whole.slice(at, count).combine_chunks().to_batches()
                    writer.write_batch(batch)
                    at += count
        size = path.stat().st_size
        if self.objects.is_local:
            return TableFile(str(path), None, tuple(rows), size)
        key = f"{self._prefix}/{path.name}"
        try:
            self.objects.store.put_file(key, path)
        finally:
            path.unlink(missing_ok=True)
        return TableFile(key, self.objects.store, tuple(rows), size)

    def put_parts(self, table: pa.Table, part: I64, parts: int) -> TableFile:
        """Write a table, sorted by the given part of each row."""
        order = np.argsort(part.astype(np.uint16), kind="stable")  # a counting sort for 16-bit integers
        return self.put(table.take(pa.array(order)), np.bincount(part, minlength=parts).tolist())

    def clear(self) -> None:
        """Remove the objects in a remote store; the staging area removes its folder itself."""
        if not self.objects.is_local:
            for info in list(self.objects.store.list(self._prefix)):
                self.objects.store.delete(info.key)
