"""How many rows fit into so many bytes: wide values are worked on by their size, not by their number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

Rows: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch


def fitting(values: Rows, size: int) -> int:
    """How many of the first rows have at most so many bytes; one at least, if there are any."""
    return most_rows(len(values), size, lambda rows: int(values.slice(0, rows).nbytes))


def most_rows(rows: int, size: int, bytes_of: Callable[[int], int]) -> int:
    """The same for anything that can tell the bytes of its first rows."""
    if rows <= 1 or bytes_of(rows) <= size:
        return rows
    return max(1, bisect_right(range(1, rows), size, key=bytes_of))
