"""Retracting by key: batches that say which rows are gone, as deletes and chunks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.conform import cast_columns
from floodmark.ledger.errors import ReadOnlyDataset
from floodmark.ledger.keys import hashing
from floodmark.ledger.keys.index import KeyIndex
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import APPEND, RETRACT
from floodmark.ledger.merge.lookup import current_rows, distinct, given_keys, require_key
from floodmark.ledger.snapshot import Snapshot


def check_can_retract(snapshot: Snapshot, name: str, doing: str, kinds: tuple[str, ...]) -> None:
    """Refuse to retract rows of a dataset whose strategy never does."""
    strategy = require_key(snapshot, name)
    if strategy.kind not in kinds:
        raise ReadOnlyDataset(
            f"{doing} does not go with {strategy} (dataset {name!r})",
            hint="it keeps every row it has seen" if strategy.kind == "ledger" else "use write()",
        )


def deletion(keys: Any, name: str, snapshot: Snapshot, index: KeyIndex, layout: Layout) -> pa.Table:
    """The batch that retracts the rows with these keys; keys that name only some columns match several rows."""
    strategy = require_key(snapshot, name)
    wanted = given_keys(keys, snapshot, name)
    if tuple(wanted.column_names) == strategy.key:
        wanted = distinct(wanted)
    else:
        wanted = _matching(wanted, snapshot, index, strategy.key)
    return _gone(wanted, layout)


def chunk(data: pa.Table, processed: Any, name: str, snapshot: Snapshot, index: KeyIndex, layout: Layout) -> pa.Table:
    """The rows of a chunk, and retractions of the rows that `processed` names and the chunk lacks."""
    strategy = require_key(snapshot, name)
    op = layout.vocab.op
    ops = data.column(op) if op in data.column_names else pa.array(np.full(len(data), APPEND, np.int32))
    rows = data.drop_columns([op]) if op in data.column_names else data
    # A dataset without columns has no rows to retract; operations that are no numbers are refused with the batch.
    if processed is None or snapshot.layout is None or not pa.types.is_integer(ops.type):
        return rows.append_column(op, ops)
    rows = cast_columns(rows, layout, "the data")
    found = _matching(given_keys(processed, snapshot, name), snapshot, index, strategy.key)
    absent = ~hashing.hash_rows(found, strategy.key).among(hashing.hash_rows(rows, strategy.key))
    gone = _gone(found.filter(pa.array(absent)), layout)
    return pa.concat_tables([gone, rows.append_column(op, ops).select(gone.column_names).cast(gone.schema)])


def _matching(wanted: pa.Table, snapshot: Snapshot, index: KeyIndex, key: tuple[str, ...]) -> pa.Table:
    """The keys of the current rows that match."""
    return current_rows(snapshot, wanted, index).select(list(key))


def _gone(keys: pa.Table, layout: Layout) -> pa.Table:
    columns = {
        f.name: keys.column(f.name) if f.name in keys.column_names else pa.nulls(keys.num_rows, f.type)
        for f in layout.data
    }
    return pa.table({**columns, layout.vocab.op: pa.array(np.full(keys.num_rows, RETRACT, np.int32))})
