"""What the key index knows of records: hashes of their keys and rows, their operations, and which offsets they end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floodmark.storage.arrays import I64, Hashes

NOT_THERE = -1
"""Stands for the offset of a key that has no current row."""


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
