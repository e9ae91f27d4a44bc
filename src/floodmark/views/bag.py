"""Applies weighted rows to the rows of a view: which keys of the view change, and which rows they have then.

A view is a bag: equal rows count as often as they occur. A view whose query gives it a key has one row for each key.
Other rows are identified by a hash and a number among the rows with this hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.row_search import SearchLimits, find_rows
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, HashIndex
from floodmark.views.analysis import COPY_COLUMN, COPY_TYPE, ROW_COLUMN, Analysis
from floodmark.views.table_changes import WholeInstead, cancel_equal, lookup_shape

_ANY = SearchLimits(1 << 62)


@dataclass(frozen=True)
class RowsOfKeys:
    """Keys of a view, and all rows that it has of them."""

    keys: pa.Table
    rows: pa.Table


def apply_changes(view: InputSnapshot, analysis: Analysis, rows: pa.Table, weights: I64) -> RowsOfKeys:
    """The changed keys of a view, and their rows after these changes; `WholeInstead` if the changes do not fit."""
    names = [name for name in analysis.stored.names if name != COPY_COLUMN]
    typed = rows.select(names).cast(pa.schema([analysis.stored.field(name) for name in names]))
    changed, total = cancel_equal(typed, weights)
    keys = _distinct(changed.select(list(analysis.lookup)))
    if analysis.identity:
        return RowsOfKeys(keys, _with_copies(_present_rows(view, names, keys), changed, total))
    added = changed.filter(pa.array(total > 0))
    if (total > 1).any() or _distinct(added.select(list(analysis.key))).num_rows < added.num_rows:
        raise WholeInstead("several rows have one key")
    return RowsOfKeys(keys, added)


def _distinct(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(row_hash.hash_rows(rows, rows.column_names).first_positions()))


def _present_rows(view: InputSnapshot, names: Sequence[str], keys: pa.Table) -> pa.Table:
    """The rows that a view has of these keys."""
    assert view.layout is not None
    shape = lookup_shape(view, keys.schema)
    return find_rows(view, shape, 0, keys, [*names, COPY_COLUMN], _ANY).rows


def _with_copies(present: pa.Table, changed: pa.Table, weights: I64) -> pa.Table:
    """The rows after the changes, equal ones as often as they occur, with their numbers among the rows of one hash."""
    present = present.take(pa.array(np.argsort(present.column(COPY_COLUMN).to_numpy(), kind="stable")))
    together = pa.concat_tables([present.drop_columns([COPY_COLUMN]).cast(changed.schema), changed])
    hashes = row_hash.hash_rows(together, together.column_names)
    total = np.zeros(together.num_rows, np.int64)
    each = np.concatenate([np.ones(present.num_rows, np.int64), weights])
    np.add.at(total, HashIndex.of(hashes).find(hashes), each)
    if (total < 0).any():
        raise WholeInstead("rows that are gone from the result are not in the view as they were computed again")
    at = np.repeat(np.arange(together.num_rows), total)
    groups = together.column(ROW_COLUMN).to_numpy()[at]
    order = np.argsort(groups, kind="stable")
    at, groups = at[order], groups[order]
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1 if len(groups) else 0))
    first = np.repeat(starts, np.diff(np.append(starts, len(groups))))
    copies = pa.array((np.arange(len(groups)) - first).astype(np.int32), COPY_TYPE)
    return together.take(pa.array(at)).append_column(COPY_COLUMN, copies)
