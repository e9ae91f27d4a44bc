"""Gathering rows of several tables by position, as if they were one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from floodmark.storage.arrays import I64

ROUND_BYTES = 256 << 20
"""How much is gathered at a time: more text than 2 GiB does not fit into one array."""


def gathered(tables: Sequence[pa.Table], positions: I64) -> pa.Table:
    """The rows at these positions, in this order, counted from the first row of the first table on."""
    starts = np.cumsum([0, *(t.num_rows for t in tables)], dtype=np.int64)
    total = int(starts[-1])
    width = sum(t.nbytes for t in tables) // max(total, 1) + 1
    rows = max(1, ROUND_BYTES // width)
    if len(positions) <= rows and total <= min(4 * len(positions), rows):
        return pa.concat_tables(tables).combine_chunks().take(pa.array(positions))
    rounds = [_round(tables, starts, positions[at : at + rows]) for at in range(0, len(positions), rows)]
    return pa.concat_tables(rounds) if rounds else tables[0].slice(0, 0)


def _round(tables: Sequence[pa.Table], starts: I64, positions: I64) -> pa.Table:
    """The same for few of many rows: no table is copied as a whole."""
    which = np.searchsorted(starts, positions, side="right") - 1
    by_table: I64 = np.argsort(which, kind="stable")
    back = np.empty_like(by_table)
    back[by_table] = np.arange(len(by_table))
    parts = pa.concat_tables(_parts(tables, starts, positions[by_table], which[by_table]))
    return parts.combine_chunks().take(pa.array(back))


def _parts(tables: Sequence[pa.Table], starts: I64, positions: I64, which: I64) -> Iterator[pa.Table]:
    first = np.flatnonzero(np.diff(which, prepend=-1))
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(which)], strict=True):
        number = int(which[low])
        yield tables[number].take(pa.array(positions[low:high] - starts[number]))
