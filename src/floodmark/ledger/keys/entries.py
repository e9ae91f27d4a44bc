"""Entries of the key index: for each key the offset and the row hash of its newest record, sorted by hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from floodmark.ledger.keys.records import NOT_THERE
from floodmark.storage.arrays import I64, U64, Hashes, Mask
from floodmark.storage.sorted_runs import Columns, RunSpec

_KEY = ("key_high", "key_low")
_LOOKUP = ("lookup_high", "lookup_low")
_VALUES = {"row_high": np.uint64, "row_low": np.uint64, "offset": np.int64}
_BY_KEY = RunSpec("keys", _KEY, _VALUES)
_BY_PREFIX = RunSpec("keys", (*_LOOKUP, *_KEY), _VALUES)


def run_spec(has_prefix: bool) -> RunSpec:
    """The columns of the index's runs: with a lookup prefix, they are sorted by its hash first."""
    return _BY_PREFIX if has_prefix else _BY_KEY


@dataclass(frozen=True)
class Entries:
    """Keys with their newest rows; an offset of NOT_THERE marks a key whose row was retracted."""

    key: Hashes
    row: Hashes
    offset: I64
    lookup: Hashes | None = None

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, at: Any) -> Entries:
        """Those at these positions (indices, a mask or a slice)."""
        lookup = None if self.lookup is None else self.lookup.take(at)
        return Entries(self.key.take(at), self.row.take(at), self.offset[at], lookup)

    @property
    def order_columns(self) -> list[U64]:
        """What entries are sorted by, the most significant first."""
        return order_columns(self.key, self.lookup)

    @property
    def is_live(self) -> Mask:
        result: Mask = self.offset != NOT_THERE
        return result

    @property
    def columns(self) -> Columns:
        """The entries as a run has them."""
        order = run_spec(self.lookup is not None).order
        values = {"row_high": self.row.high, "row_low": self.row.low, "offset": self.offset}
        return {**dict(zip(order, self.order_columns, strict=True)), **values}

    @staticmethod
    def of(columns: Columns) -> Entries:
        """The entries that columns of a run are."""
        key, row = (Hashes(columns[f"{name}_high"], columns[f"{name}_low"]) for name in ("key", "row"))
        lookup = Hashes(*(columns[name] for name in _LOOKUP)) if _LOOKUP[0] in columns else None
        return Entries(key, row, columns["offset"], lookup)

    @staticmethod
    def none(lookup: Hashes | None) -> Entries:
        """No entries, with or without lookup hashes as the given ones."""
        empty = Hashes.joined([])
        return Entries(empty, empty, np.empty(0, np.int64), None if lookup is None else empty)


@dataclass(frozen=True)
class Found:
    """What the index knows of each key that was asked for."""

    offset: I64  # of the current row, NOT_THERE when the key has none
    row: Hashes  # of the current row, zeros when there is none
    seen: Mask  # whether there is an entry for the key, even if it only says that its row was retracted


def order_columns(key: Hashes, lookup: Hashes | None) -> list[U64]:
    """The columns by which entries are sorted: the lookup hash, when it is not that of the key, then the key's."""
    prefix = [] if lookup is None else [lookup.high, lookup.low]
    return [*prefix, key.high, key.low]
