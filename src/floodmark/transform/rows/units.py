"""Units of work: ranges of records, or lists of keys, whose rows one task reads. Small, and they can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from floodmark.ledger.selection import Selection
from floodmark.transform.rows.room import FiledTable

BUCKETS = 256
"""Rows that were looked for among all lie in so many parts, by the top byte of their key's hash."""

KEYS_PART = 1 << 14
"""Keys in a file lie in parts of so many each, so that a unit reads little beyond its own."""


@dataclass(frozen=True)
class RangeUnit:
    """The current rows among the records [start, end) of a step's only input; each is the only one of its key."""

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
    """Keys number [start, end) of a table. Where rows were looked for among all, `sides` says which files have them."""

    keys: pa.Table | FiledTable = field(repr=False)
    start: int
    end: int
    rows_each: float  # about how many rows a key has
    sides: tuple[tuple[FiledTable, ...] | None, ...] = field(repr=False)  # by input; None: found by the key index

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
