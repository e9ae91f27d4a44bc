"""What the key index knows of records: hashes of their keys and rows, their operations, and which offsets they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NOT_THERE = -1
"""Stands for the offset of a key that has no current row."""


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes, as the two halves of each."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, at: Any) -> Hashes:
        """Those at these positions (indices, a mask or a slice)."""
        return Hashes(self.high[at], self.low[at])

    def same(self, other: Hashes) -> npt.NDArray[np.bool_]:
        """Which of them are equal, position by position."""
        result: npt.NDArray[np.bool_] = (self.high == other.high) & (self.low == other.low)
        return result

    def among(self, others: Hashes) -> npt.NDArray[np.bool_]:
        """Which of them are among the others."""
        return np.isin(self._pairs, others._pairs)

    def first_of_each(self) -> I64:
        """The positions at which each hash stands for the first time, ascending."""
        _, first = np.unique(self._pairs, return_index=True)
        return np.sort(first)

    @property
    def _pairs(self) -> npt.NDArray[np.void]:
        both = np.empty(len(self), np.dtype([("high", np.uint64), ("low", np.uint64)]))
        both["high"], both["low"] = self.high, self.low
        return both

    @staticmethod
    def joined(parts: list[Hashes]) -> Hashes:
        if not parts:
            return Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
        return Hashes(np.concatenate([p.high for p in parts]), np.concatenate([p.low for p in parts]))


@dataclass(frozen=True)
class Records:
    """Consecutive records from offset `start` on, in offset order, as the key index sees them."""

    start: int
    key: Hashes
    row: Hashes  # over all data columns
    op: npt.NDArray[np.int32]
    old: I64  # the offset before `start` that was this key's current row when the batch began, else NOT_THERE
    lookup: Hashes | None = None  # over the declared prefix of the key; None when that is the key itself

    def __len__(self) -> int:
        return len(self.op)

    @property
    def end(self) -> int:
        return self.start + len(self)
