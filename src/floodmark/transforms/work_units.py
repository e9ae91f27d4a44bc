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
from floodmark.storage.scratch import SortedFile, upload, write_sorted_file

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

    keys: pa.Table | SortedFile = field(repr=False)
    start: int
    end: int
    rows_each: float  # the approximate number of rows of a key
    sides: tuple[tuple[SortedFile, ...] | None, ...] = field(repr=False)  # by input the row files; None: use the index

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
class ScratchDir:
    """The place for the scratch files of a run: a folder, or objects in a remote store, which `clear` removes."""

    folder: Path  # the staging area of the run
    objects: DatasetObjects

    @property
    def _prefix(self) -> str:
        return f"{self.objects.folder}/staging/{self.folder.name}"

    def put(self, table: pa.Table, rows: Sequence[int]) -> SortedFile:
        """Write a table whose rows are sorted by part; `rows` has the number of rows of each part."""
        name, what = f"table-{uuid.uuid4().hex}", f"{table.num_rows:,} rows"
        if self.objects.is_local:
            return write_sorted_file(table, rows, self.folder / name, what)
        file = write_sorted_file(table, rows, self.objects.store.staging() / name, what)
        return upload(file, self.objects.store, f"{self._prefix}/{name}")

    def put_parts(self, table: pa.Table, part: I64, parts: int) -> SortedFile:
        """Write a table, sorted by the given part of each row."""
        order = np.argsort(part.astype(np.uint16), kind="stable")  # a counting sort for 16-bit integers
        return self.put(table.take(pa.array(order)), np.bincount(part, minlength=parts).tolist())

    def clear(self) -> None:
        """Remove the objects in a remote store; the staging area removes its folder itself."""
        if not self.objects.is_local:
            for info in list(self.objects.store.list(self._prefix)):
                self.objects.store.delete(info.key)
