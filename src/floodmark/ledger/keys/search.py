"""Bisecting sorted columns of hashes for many hashes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.ledger.keys.records import I64, U64

BEFORE: Any = np.less
"""Search for the first row that is not less than the query."""

UP_TO: Any = np.less_equal
"""Search for the first row that is greater than the query."""


@dataclass
class Probes:
    """What lookups have looked at: for benchmarks."""

    values: int = 0  # compared with a query
    pages: int = 0  # of a column, that had to be checked against their checksums first
    page_bytes: int = 0


def compare(columns: Sequence[U64], at: I64, queries: Sequence[U64], last: Any) -> npt.NDArray[np.bool_]:
    """Whether the rows at these positions are less than the queries, column by column.

    When all columns but the last are equal, `last` decides: `BEFORE` or `UP_TO`.
    """
    values = columns[0][at]
    if len(columns) == 1:
        alone: npt.NDArray[np.bool_] = last(values, queries[0])
        return alone
    result: npt.NDArray[np.bool_] = values < queries[0]
    ties = np.flatnonzero(values == queries[0])
    if len(ties):
        result[ties] = compare(columns[1:], at[ties], [q[ties] for q in queries[1:]], last)
    return result


def bisect(columns: Sequence[U64], queries: Sequence[U64], low: I64, high: I64, last: Any) -> tuple[I64, int]:
    """For each query the first row in [low, high) that `last` does not put before it, and how many values were seen."""
    low, high = low.copy(), high.copy()
    seen = 0
    while True:
        narrowing = np.flatnonzero(low < high)
        if len(narrowing) == 0:
            return low, seen
        middle = (low[narrowing] + high[narrowing]) >> 1
        right = compare(columns, middle, [q[narrowing] for q in queries], last)
        low[narrowing[right]] = middle[right] + 1
        high[narrowing[~right]] = middle[~right]
        seen += len(narrowing)


def bound(columns: Sequence[U64], queries: Sequence[U64], last: Any) -> tuple[I64, int]:
    """For each query its place among all rows of in-memory columns, and how many values were seen."""
    steps = len(queries[0]) * max(1, len(columns[0]).bit_length())
    if len(columns) == 1:
        side: Any = "left" if last is BEFORE else "right"
        return np.searchsorted(columns[0], queries[0], side).astype(np.int64), steps
    low = np.searchsorted(columns[0], queries[0], "left").astype(np.int64)
    high = np.searchsorted(columns[0], queries[0], "right").astype(np.int64)
    found, seen = bisect(columns[1:], queries[1:], low, high, last)
    return found, steps + seen
