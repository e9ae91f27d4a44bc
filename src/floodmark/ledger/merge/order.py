"""The order of records inside a slice: by event time in a ledger, by key where rows can change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys import radix
from floodmark.ledger.keys.records import I64
from floodmark.ledger.layout import Layout
from floodmark.ledger.strategy import Strategy


def slice_order(data: pa.Table, layout: Layout, strategy: Strategy) -> I64 | None:
    """What puts records in order, those that are equal in it staying as they are; None if they are in order."""
    if strategy.kind == "ledger":
        return None if layout.event_time is None else _order(data, (layout.event_time,))
    return _order(data, strategy.key)


def _order(data: pa.Table, columns: tuple[str, ...]) -> I64 | None:
    if len(columns) == 1 and (values := _as_integers(data.column(columns[0]).combine_chunks())) is not None:
        return None if (values[1:] >= values[:-1]).all() else radix.stable_order(values)
    arrival = pa.array(np.arange(data.num_rows, dtype=np.int64))
    # Arrow's sort is not stable on its own: where a record stood is the last key.
    table = pa.table({**{f"k{i}": data.column(name) for i, name in enumerate(columns)}, "arrival": arrival})
    order: Any = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _as_integers(column: Any) -> Any:
    """The values of a column whose order is that of integers, else None."""
    if column.null_count:
        return None
    if pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(column.type):
        wide = pa.int64() if column.type.bit_width == 64 else pa.int32()
        return column.view(wide).to_numpy(zero_copy_only=False)
    return None
