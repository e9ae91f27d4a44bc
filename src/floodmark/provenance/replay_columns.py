"""A computed column computed again: its function called for every row that has a value, and the values compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from floodmark.compute import addresses
from floodmark.compute.columns import errors_of, function_of
from floodmark.compute.errors import ComputeError
from floodmark.compute.functions.call import Caller
from floodmark.compute.functions.udf import Udf
from floodmark.compute.pinned import Pinned
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import Column
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.beside import joined
from floodmark.provenance.comparing import Compared, compare
from floodmark.provenance.opened import Opened
from floodmark.provenance.replay_steps import FailedAgain
from floodmark.provenance.replay_views import values_but, without_pauses
from floodmark.provenance.replayed import NotReplayable
from floodmark.storage.arrays import I64

BATCH_ROWS = 1 << 16
"""So many rows are computed again at a time."""


def pinned_columns(given: Opened) -> Pinned:
    """The current rows of a dataset and its computed columns."""
    now = given.as_of(given.snapshot.next_offset - 1)
    objects = ColumnObjects(given.snapshot.objects)
    rows, bounds = now.current_rows(), (now.purged_before, now.end)
    known = (catalogs.load(objects), given.snapshot)
    return Pinned(given.name, given.id, objects, given.layout, rows, now.dead, *bounds, *known)


def replay_column(given: Opened, pinned: Pinned, column: Column, udfs: Sequence[Udf]) -> Iterator[Compared]:
    """How the values compare, some rows at a time."""
    chosen = [udf for udf in udfs if (udf.name, udf.version) == (column.function.name, column.function.version)]
    try:
        udf = function_of(column, chosen[0] if chosen else None)
    except ComputeError as error:
        raise NotReplayable(f"its code is gone: {error.message}") from error
    caller = Caller(udf, column.field, column.inputs, sleep=without_pauses)
    failed = errors_of(pinned, column.name).column("offset").to_numpy()
    for offsets in _computed(pinned, column):
        yield _compared(given, pinned, column, caller, offsets, failed)


def _computed(pinned: Pinned, column: Column) -> Iterator[I64]:
    """The offsets of current rows that the column's present function was applied to."""
    for window in pinned.windows(column, None):
        done = pinned.computed(column, window.number) & window.live
        offsets = addresses.to_array(done).astype(np.int64) + window.base
        for at in range(0, len(offsets), BATCH_ROWS):
            yield offsets[at : at + BATCH_ROWS]


def _compared(given: Opened, pinned: Pinned, column: Column, caller: Caller, offsets: I64, failed: I64) -> Compared:
    names = list(dict.fromkeys(column.inputs))
    beside = pinned.beside
    assert beside is not None
    own = [name for name in names if name not in beside.schema.names]
    others = [name for name in names if name in beside.schema.names]
    rows = given.records(offsets).select(own) if own else pa.table({})
    if others:
        values = beside.open(others).take(offsets)
        rows = joined(rows, values, pa.schema([beside.schema.field(name) for name in others]))
    try:
        again = values_but(caller, rows.select(names), offsets, failed)
    except ComputeError as error:
        raise FailedAgain(error.message) from error
    [stored] = beside.open([column.name]).take(offsets)
    offset = given.layout.vocab.offset
    schema = pa.schema([pa.field(offset, pa.int64()), pa.field(column.name, column.type)])
    there = pa.table([pa.array(offsets), stored], schema=schema)
    return compare(there, pa.table([pa.array(offsets), again], schema=schema), [offset])
