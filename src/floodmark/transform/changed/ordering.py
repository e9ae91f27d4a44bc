"""The order of a changelist: by position, then by key, so that what is done first is what changed first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys import radix
from floodmark.ledger.keys.entries import stable_order
from floodmark.ledger.keys.records import I64
from floodmark.transform.changed.pending import Pending
from floodmark.transform.changed.shape import Shape


def in_order(shape: Shape, pending: Pending, order_by: Sequence[tuple[str, str]]) -> I64:
    """The positions that put pending keys in order; keys without a position, and null values, come last."""
    if not order_by:
        order = radix.stable_order(pending.position)
        ordered = pending.position[order]
        if len(order) < 2 or (ordered[1:] != ordered[:-1]).all():
            return order  # no two at one position: nothing else decides
    # Columns by number: a key may be called as it likes.
    columns = [*pending.keys.columns, pa.array(pending.position)]
    table = pa.Table.from_arrays(columns, names=[str(n) for n in range(len(columns))])
    numbers = {name: str(n) for n, name in enumerate(shape.names)}
    last = str(len(shape.names))
    wanted = [(numbers[name], how) for name, how in order_by]
    wanted += [(key, "ascending") for key in [last, *numbers.values()] if key not in dict(wanted)]
    try:
        found: I64 = pc.sort_indices(table, sort_keys=wanted).to_numpy().astype(np.int64)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # values that have no order: that of their hashes will do
        by_hash = stable_order([pending.hashes.high, pending.hashes.low])
        found = by_hash[radix.stable_order(pending.position[by_hash])]
    return found
