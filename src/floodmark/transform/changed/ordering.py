"""The order of a changelist: by position, then by key, so that what is done first is what changed first.

Keys that only failed come after those that changed, whatever the order is. A limited run leaves them a share, so that
a key that fails for ever holds up nobody, and one that would succeed now is tried again though there is always more to
do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.storage.arrays import I64, integer_order, stable_order
from floodmark.transform.changed.pending import Pending
from floodmark.transform.changed.shape import Shape

SHARE = 4
"""One of so many keys of a limited run is one that only failed, if there are more of both than it takes."""


def limited(pending: Pending, order: I64, most: int, turn: int) -> I64:
    """The first of the ordered keys, at most so many: the share of those that only failed are the longest untried.

    Where there is no room for both, they take turns.
    """
    if len(order) <= most:
        return order
    is_failed = pending.is_only_failed[order]
    changed, failed = order[~is_failed], order[is_failed]
    share = max(1, most // SHARE) if most > 1 else int(turn % SHARE == 0)
    count = min(len(failed), max(share, most - len(changed)))
    oldest = np.sort(np.argsort(pending.tried[failed], kind="stable")[:count])
    return np.concatenate([changed[: most - count], failed[oldest]])


def in_order(shape: Shape, pending: Pending, order_by: Sequence[tuple[str, str]]) -> I64:
    """The positions that put pending keys in order; those that only failed, and null values, come last."""
    if not order_by:
        order = integer_order(pending.position)
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
        found = by_hash[integer_order(pending.position[by_hash])]
    return found if not order_by else found[np.argsort(pending.is_only_failed[found], kind="stable")]
