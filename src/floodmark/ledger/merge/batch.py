"""A batch: rows cast to a dataset's columns, with their operations and the hashes of their keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.conform import cast_columns, check_event_times
from floodmark.ledger.errors import BadOperation, NullKey
from floodmark.ledger.keys import hashing
from floodmark.ledger.layout import Layout
from floodmark.ledger.strategy import Strategy
from floodmark.storage.arrays import I64, Hashes

APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = 0, 1, 2, 3

Ops = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Rows in the order in which they came. `op` is None where every row simply is."""

    table: pa.Table
    key: Hashes
    row: Hashes
    lookup: Hashes | None
    op: Ops | None

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: I64) -> Batch:
        """Some of the rows."""
        return Batch(
            self.table.take(pa.array(rows)),
            self.key.take(rows),
            self.row.take(rows),
            None if self.lookup is None else self.lookup.take(rows),
            None if self.op is None else self.op[rows],
        )

    @property
    def place(self) -> Hashes:
        """What decides into which bucket a row goes."""
        return self.key if self.lookup is None else self.lookup


def accepting(layout: Layout, strategy: Strategy, schema: pa.Schema) -> Layout:
    """The layout that incoming data is held against: with the operation, where the data has one and may."""
    op = layout.vocab.op
    if op not in schema.names or not strategy.takes_op:
        if strategy.kind == "changelog":
            raise BadOperation(
                f"the data has no column {op!r}, which a changelog needs",
                hint="add it: 0 for a new row, 1 for one that is gone, 2 and 3 for a row before and after its change",
            )
        return layout
    return Layout(layout.vocab, layout.event_time, pa.schema([*layout.data, pa.field(op, pa.int32())]))


def make_batch(table: pa.Table, layout: Layout, strategy: Strategy, where: str) -> Batch:
    """Cast, check and hash incoming rows."""
    op = None
    if layout.vocab.op in table.column_names and strategy.takes_op:
        op = _operations(table.column(layout.vocab.op), layout.vocab.op, where)
        table = table.drop_columns([layout.vocab.op])
        if strategy.kind == "upsert" and (op == CORRECT_FROM).any():
            kept = op != CORRECT_FROM  # they only repeat what was there; the row after the change says it all
            table, op = table.filter(pa.array(kept)), op[kept]
    data = cast_columns(table, layout, where)
    check_key(data, layout, strategy, where)
    if layout.event_time is not None:
        times = data.column(layout.event_time)
        if op is not None and strategy.kind == "upsert":  # a retraction needs no more than its key
            times = times.filter(pa.array(op != RETRACT))
        check_event_times(times, layout.event_time, where)
    return hashed(data, layout, strategy, op)


def hashed(data: pa.Table, layout: Layout, strategy: Strategy, op: Ops | None) -> Batch:
    """A batch of rows that are cast and checked already."""
    key = hashing.hash_rows(data, strategy.key)
    lookup = None if strategy.lookup == strategy.key else hashing.hash_rows(data, strategy.lookup)
    return Batch(data, key, hashing.hash_rows(data, layout.data.names), lookup, op)


def check_key(data: pa.Table, layout: Layout, strategy: Strategy, where: str) -> None:
    """Refuse rows without a value in a key column that needs one: all do, but what a derivative has from its inputs."""
    for name in strategy.key:
        if not layout.data.field(name).nullable:
            _check_no_nulls(data.column(name), name, where)


def _operations(column: Any, name: str, where: str) -> Ops:
    if column.null_count or not pa.types.is_integer(column.type):
        what = f"{column.null_count} rows without a value" if column.null_count else f"type {column.type}"
        raise BadOperation(
            f"column {name!r} of {where} has {what}", hint="an operation is an integer from 0 to 3 in every row"
        )
    values: Any = column.to_numpy()
    wrong = np.flatnonzero((values < 0) | (values > CORRECT_TO))
    if len(wrong):
        raise BadOperation(
            f"column {name!r} of {where} has the operation {values[wrong[0]]} "
            f"(first at row {wrong[0]}, {len(wrong)} rows in all)",
            hint="operations are 0 (new), 1 (gone), 2 (before a change) and 3 (after it)",
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _check_no_nulls(column: Any, name: str, where: str) -> None:
    if column.null_count:
        first: Any = pc.index(column.is_null(), True)
        rows = "1 row has" if column.null_count == 1 else f"{column.null_count} rows have"
        raise NullKey(
            f"{rows} no value in the key column {name!r} of {where} (first at row {first.as_py()})",
            hint="fill or drop them: every part of a key needs a value",
            column=name,
        )
