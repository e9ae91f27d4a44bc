"""Entries of the key index: for each key the offset and the row hash of its newest record, sorted by hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.ledger.keys import radix
from floodmark.ledger.keys.records import I64, NOT_THERE, U64, Hashes
from floodmark.ledger.keys.search import compare

Mask = npt.NDArray[np.bool_]


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

    @staticmethod
    def joined(parts: Sequence[Entries]) -> Entries:
        """One after the other; there is at least one."""
        lookups = [p.lookup for p in parts if p.lookup is not None]
        return Entries(
            Hashes.joined([p.key for p in parts]),
            Hashes.joined([p.row for p in parts]),
            np.concatenate([p.offset for p in parts]),
            Hashes.joined(lookups) if lookups else None,
        )

    @staticmethod
    def none(lookup: Hashes | None) -> Entries:
        """No entries, with or without lookup hashes as the given ones."""
        empty = Hashes.joined([])
        return Entries(empty, empty, np.empty(0, np.int64), None if lookup is None else empty)


def order_columns(key: Hashes, lookup: Hashes | None) -> list[U64]:
    """The columns by which entries are sorted: the lookup hash, when it is not that of the key, then the key's."""
    prefix = [] if lookup is None else [lookup.high, lookup.low]
    return [*prefix, key.high, key.low]


def stable_order(columns: Sequence[U64]) -> I64:
    """The positions that sort hashes by these columns; equal ones stay in the order in which they are."""
    high = columns[::2]
    # The high halves alone decide but for one pair in 2^64: sorting by fewer columns is what makes this fast.
    order = radix.stable_order(high[0]) if len(high) == 1 else np.lexsort((high[1], high[0]))
    if _in_order([c[order] for c in columns]):
        return order
    return np.lexsort(list(columns)[::-1])


def starts_of_groups(columns: Sequence[U64]) -> Mask:
    """Which rows of sorted columns differ from the row before."""
    first = np.ones(len(columns[0]), np.bool_)
    if len(first) > 1:
        first[1:] = columns[0][1:] != columns[0][:-1]
        for column in columns[1:]:
            first[1:] |= column[1:] != column[:-1]
    return first


def newest(parts: Sequence[Entries]) -> Entries:
    """The entries of several sorted parts as one; of those with one key the first part that has it wins."""
    if len(parts) == 1:
        return parts[0]
    together = Entries.joined(parts)
    columns = together.order_columns
    order = stable_order(columns)
    first = starts_of_groups([c[order] for c in columns])
    return together.take(order[first])


def _in_order(columns: Sequence[U64]) -> bool:
    ties = np.flatnonzero(columns[0][1:] == columns[0][:-1])
    if len(columns) == 1 or len(ties) == 0:
        return True
    later = [c[ties + 1] for c in columns[1:]]
    return not bool(compare(later, np.arange(len(ties)), [c[ties] for c in columns[1:]], np.less).any())
