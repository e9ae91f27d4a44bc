"""Finding many hashes among many: a table by their top bits instead of a search for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys.entries import Mask, stable_order
from floodmark.ledger.keys.records import I64, Hashes

FEW_VALUES = 1 << 16
"""So few values are looked for by the reader of files itself."""

_MANY_ROWS = 8 * FEW_VALUES
_MOST_BITS = 24


@dataclass(frozen=True)
class Among:
    """Hashes that are all different, to be found again. `starts` says where those with the same top bits begin."""

    hashes: Hashes  # sorted
    order: I64  # where each was
    starts: I64
    shift: np.uint64

    @staticmethod
    def of(hashes: Hashes) -> Among:
        order = stable_order([hashes.high, hashes.low])
        ordered = hashes.take(order)
        bits = min(_MOST_BITS, max(1, len(hashes).bit_length() + 1))
        shift = np.uint64(64 - bits)
        counts = np.bincount((ordered.high >> shift).astype(np.int64), minlength=1 << bits)
        return Among(ordered, order, np.concatenate([[0], np.cumsum(counts)]), shift)

    def find(self, wanted: Hashes) -> I64:
        """For each hash where it was among them, -1 when it is none of them."""
        found = np.full(len(wanted), -1, np.int64)
        top = (wanted.high >> self.shift).astype(np.int64)
        at, end = self.starts[top], self.starts[top + 1]
        open_ = np.flatnonzero(at < end)
        at, end = at[open_], end[open_]
        while len(open_):
            same = (self.hashes.high[at] == wanted.high[open_]) & (self.hashes.low[at] == wanted.low[open_])
            found[open_[same]] = self.order[at[same]]
            at = at + 1
            left = ~same & (at < end)
            open_, at, end = open_[left], at[left], end[left]
        return found

    def has(self, wanted: Hashes) -> Mask:
        """Which of the hashes are among them."""
        result: Mask = self.find(wanted) >= 0
        return result


def values_filter(values: pa.Table, schema: pa.Schema) -> pc.Expression | None:
    """A filter that lets the reader of files leave out most rows without these values; it may keep others.

    `values` has the columns under the names of the files, whose types `schema` says. None where it would not pay.
    """
    kept: pc.Expression | None = None
    if values.num_rows > _MANY_ROWS:
        return None
    for name in values.column_names:
        data_type = schema.field(name).type
        # Among floats 0.0 and -0.0 are one key, and NaN is one too, which Arrow does not know.
        if pa.types.is_floating(data_type) or not values.column(name).type.equals(data_type):
            continue
        distinct = values.column(name).unique()
        if len(distinct) > FEW_VALUES:
            continue
        field = pc.field(name)
        mine = field.isin(distinct.drop_null())
        mine = mine | field.is_null() if distinct.null_count else mine
        kept = mine if kept is None else kept & mine
    return kept
