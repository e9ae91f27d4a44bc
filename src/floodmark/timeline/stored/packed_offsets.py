"""Packed offsets: how sorted ones travel to tasks, in a fraction of their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.storage.arrays import I64

Packed = tuple[list[int], npt.NDArray[Any]]
"""The first one, if there is any, and the distances from each to the next: these are small numbers."""


def packed(offsets: I64) -> Packed:
    """Ascending offsets, packed."""
    gaps = np.diff(offsets)
    return offsets[:1].tolist(), gaps.astype(np.min_scalar_type(gaps.max(initial=0)))


def unpacked(found: Packed) -> I64:
    """The offsets that were packed."""
    first, gaps = found
    offsets: I64 = np.cumsum(np.concatenate([np.array(first, np.int64), gaps.astype(np.int64)]))
    return offsets
