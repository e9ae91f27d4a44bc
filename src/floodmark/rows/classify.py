"""Batches of rows with hashes and operations, and the rules that turn a batch into records for each merge strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadPrimaryKey
from floodmark.ledger.block_attributes import BatchTally
from floodmark.ledger.casting import cast_columns, check_event_times
from floodmark.ledger.schema import Layout
from floodmark.ledger.strategy import Strategy
from floodmark.rows import row_hash
from floodmark.rows.key_entries import NO_ROW, order_columns
from floodmark.storage.arrays import I64, Hashes, is_group_start, stable_order

APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = 0, 1, 2, 3

Ops = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Rows in their original order, with hashes of keys and values. `op` is None if no row has an operation."""

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
        """The hashes that decide into which bucket a row goes."""
        return self.key if self.lookup is None else self.lookup


@dataclass(frozen=True)
class RowsWithOps:
    """Rows for an upsert, and the operation of each. A retraction needs only the key; None: no row is one."""

    table: pa.Table
    op: Ops | None = None


def accepted_layout(layout: Layout, strategy: Strategy, schema: pa.Schema) -> Layout:
    """The layout to check incoming data against, with the op column if the strategy reads it."""
    if not strategy.takes_op:
        return layout
    op = layout.vocab.op
    if op not in schema.names:
        raise BadPrimaryKey(
            f"the data has no column {op!r}, which a changelog needs",
            hint="add it: 0 for a new row, 1 for a removed row, 2 and 3 for a row before and after a change",
        )
    return Layout(layout.vocab, layout.event_time, pa.schema([*layout.data, pa.field(op, pa.int32())]))


def make_batch(table: pa.Table, layout: Layout, strategy: Strategy, where: str, op: Ops | None = None) -> Batch:
    """Cast, check and hash incoming rows. Only a changelog reads `op` from a column of the rows."""
    if strategy.takes_op:
        op = _operations(table.column(layout.vocab.op), layout.vocab.op, where)
        table = table.drop_columns([layout.vocab.op])
    data = cast_columns(table, layout, where)
    check_key(data, layout, strategy, where)
    if layout.event_time is not None:
        times = data.column(layout.event_time)
        if op is not None and strategy.kind == "upsert":  # a retraction needs only its key
            times = times.filter(pa.array(op != RETRACT))
        check_event_times(times, layout.event_time, where)
    return hash_batch(data, layout, strategy, op)


def hash_batch(data: pa.Table, layout: Layout, strategy: Strategy, op: Ops | None) -> Batch:
    """A batch of rows that are already cast and checked."""
    key = row_hash.hash_rows(data, strategy.key)
    lookup = None if strategy.lookup == strategy.key else row_hash.hash_rows(data, strategy.lookup)
    return Batch(data, key, row_hash.hash_rows(data, layout.data.names), lookup, op)


def check_key(data: pa.Table, layout: Layout, strategy: Strategy, where: str) -> None:
    """Refuse nulls in key columns, except in nullable ones: columns that a derivative takes from its inputs."""
    for name in strategy.key:
        if not layout.data.field(name).nullable:
            _check_no_nulls(data.column(name), name, where)


def _operations(column: Any, name: str, where: str) -> Ops:
    if len(column) == 0:
        return np.empty(0, np.int32)
    if column.null_count or not pa.types.is_integer(column.type):
        what = f"{column.null_count} rows without a value" if column.null_count else f"type {column.type}"
        raise BadPrimaryKey(
            f"column {name!r} of {where} has {what}", hint="give an integer from 0 to 3 as operation in every row"
        )
    values: Any = column.to_numpy()
    wrong = np.flatnonzero((values < 0) | (values > CORRECT_TO))
    if len(wrong):
        raise BadPrimaryKey(
            f"column {name!r} of {where} has the operation {values[wrong[0]]} "
            f"(first at row {wrong[0]}, {len(wrong)} rows in all)",
            hint="use the operations 0 (new), 1 (removed), 2 (before a change) and 3 (after a change)",
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _check_no_nulls(column: Any, name: str, where: str) -> None:
    if column.null_count:
        first: Any = pc.index(column.is_null(), True)
        rows = "1 row has" if column.null_count == 1 else f"{column.null_count} rows have"
        raise BadPrimaryKey(
            f"{rows} no value in the key column {name!r} of {where} (first at row {first.as_py()})",
            hint="fill or drop them: every column of a key needs a value",
            column=name,
        )


# Classification

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeyStates:
    """The current rows of some keys in the dataset, position by position."""

    offset: I64  # of the current row, NO_ROW without one
    row: Hashes
    seen: Mask  # whether the key ever had a row

    def take(self, at: npt.NDArray[np.int64] | Mask) -> KeyStates:
        return KeyStates(self.offset[at], self.row.take(at), self.seen[at])

    @property
    def current(self) -> Mask:
        result: Mask = self.offset != NO_ROW
        return result


@dataclass(frozen=True)
class Changes:
    """The records that a batch becomes, before they have offsets. Records of one key are adjacent and in order.

    `source` is the row of the batch with the values of a record, or -1 if it repeats the values of the record at `old`.
    """

    op: Ops
    source: I64
    old: I64  # the key's current row before the batch, NO_ROW without one
    key: Hashes
    row: Hashes
    tally: BatchTally

    def __len__(self) -> int:
        return len(self.op)


class MergeConflict(Exception):
    """Raised for rows that the strategy does not allow; `rows` are their positions in the batch."""

    def __init__(self, reason: str, rows: I64) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rows = rows


@dataclass(frozen=True)
class KeyGroups:
    """The rows of a batch grouped by key: `order` makes the rows of a key adjacent, in their original order."""

    order: I64
    first: Mask  # in that order: the first row of its key
    last: Mask

    @property
    def are_single(self) -> bool:
        return bool(self.first.all())


def group_by_key(key: Hashes) -> KeyGroups:
    """Group rows by key."""
    columns = order_columns(key, None)
    order = stable_order(columns)
    first = is_group_start([column[order] for column in columns])
    return KeyGroups(order, first, np.append(first[1:], np.True_)[: len(first)])


def ledger(key: Hashes, row: Hashes, known: KeyStates) -> Changes:
    """Rows whose key was never seen are new; other rows are dropped."""
    _refuse_several(key)
    fresh = np.flatnonzero(~known.seen)
    tally = BatchTally(new=len(fresh), unchanged=len(key) - len(fresh))
    return _sourced(np.full(len(fresh), APPEND), fresh, known.offset[fresh], key, row, tally)


def snapshot(
    key: Hashes, row: Hashes, known: KeyStates, missing: KeyStates, missing_key: Hashes, differs: RowComparison | None
) -> Changes:
    """The batch is the whole state: current rows that it lacks are retracted.

    `missing` are the current rows whose keys are not in the batch.
    """
    _refuse_several(key)
    changes = _replaced(key, row, known, np.arange(len(key)), differs)
    count = len(missing_key)
    retracted = Changes(
        op=np.full(count, RETRACT, np.int32),
        source=np.full(count, NO_ROW),
        old=missing.offset,
        key=missing_key,
        row=missing.row,
        tally=BatchTally(retracted=count),
    )
    return _joined(changes, retracted)


def upsert(key: Hashes, row: Hashes, op: Ops | None, known: KeyStates) -> Changes:
    """The last row of a key wins: it is new, changed, unchanged or (op 1) a retraction."""
    groups = group_by_key(key)
    rows = np.arange(len(key), dtype=np.int64) if groups.are_single else np.sort(groups.order[groups.last])
    duplicates = len(key) - len(rows)
    if op is None:
        changes = _replaced(key, row, known, rows, None)
        retracted = _nothing(BatchTally(duplicates=duplicates))
    else:
        removing = op[rows] == RETRACT
        changes = _replaced(key, row, known, rows[~removing], None)
        removed = rows[removing]
        existing = removed[known.current[removed]]
        tally = BatchTally(retracted=len(existing), unknown=len(removed) - len(existing), duplicates=duplicates)
        retracted = Changes(
            op=np.full(len(existing), RETRACT, np.int32),
            source=np.full(len(existing), NO_ROW),
            old=known.offset[existing],
            key=key.take(existing),
            row=known.row.take(existing),
            tally=tally,
        )
    return _joined(changes, retracted)


def changelog(key: Hashes, row: Hashes, op: Ops, known: KeyStates) -> Changes:
    """Every row is a record. Rows that do not continue the current state of their key are refused."""
    groups = group_by_key(key)
    order, first, last = groups.order, groups.first, groups.last
    ops, rows, before = op[order], row.take(order), known.take(order)
    previous_op = np.roll(ops, 1)
    follows_row = ~first & ((previous_op == APPEND) | (previous_op == CORRECT_TO))
    exists = np.where(first, before.current, follows_row)
    previous = Hashes(np.roll(rows.high, 1), np.roll(rows.low, 1))
    same = np.where(first, rows.same(before.row), rows.same(previous))
    after_from = ~first & (previous_op == CORRECT_FROM)
    next_op = np.roll(ops, -1)
    ends = (ops == RETRACT) | (ops == CORRECT_FROM)
    _refuse(order, ends & ~exists, "a retraction or correction of a row that does not exist")
    _refuse(order, ends & ~same, "a retraction or correction with other values than the current row")
    _refuse(order, (ops == APPEND) & exists, "a new row (op 0) with a key that already has a row")
    _refuse(order, (ops == CORRECT_TO) & ~after_from, "a row after a change (op 3) without the row before it (op 2)")
    _refuse(
        order,
        (ops == CORRECT_FROM) & (last | (next_op != CORRECT_TO)),
        "a row before a change (op 2) without the row after it (op 3)",
    )
    tally = BatchTally(
        new=int((ops == APPEND).sum()), changed=int((ops == CORRECT_TO).sum()), retracted=int((ops == RETRACT).sum())
    )
    return Changes(ops, order, before.offset, key.take(order), rows, tally)


RowComparison = Callable[[I64, I64], Mask]
"""Whether rows of the batch (first) differ from records (second) in the compared columns."""


def _replaced(key: Hashes, row: Hashes, known: KeyStates, rows: I64, differs: RowComparison | None) -> Changes:
    """Compare these rows of the batch, one per key, with the current rows."""
    exists = known.current[rows]
    other = ~row.take(rows).same(known.row.take(rows))
    changed_rows = rows[exists & other]
    if differs is not None and len(changed_rows):
        changed_rows = changed_rows[differs(changed_rows, known.offset[changed_rows])]
    new_rows = rows[~exists]
    tally = BatchTally(
        new=len(new_rows), changed=len(changed_rows), unchanged=len(rows) - len(new_rows) - len(changed_rows)
    )
    if not len(changed_rows):
        return _sourced(np.full(len(new_rows), APPEND), new_rows, known.offset[new_rows], key, row, tally)
    pairs = np.repeat(changed_rows, 2)
    is_old = np.tile([True, False], len(changed_rows))
    old_row, new_row = known.row.take(pairs), row.take(pairs)
    corrections = Changes(
        op=np.where(is_old, CORRECT_FROM, CORRECT_TO).astype(np.int32),
        source=np.where(is_old, NO_ROW, pairs),
        old=known.offset[pairs],
        key=key.take(pairs),
        row=Hashes(np.where(is_old, old_row.high, new_row.high), np.where(is_old, old_row.low, new_row.low)),
        tally=tally,
    )
    fresh = _sourced(np.full(len(new_rows), APPEND), new_rows, known.offset[new_rows], key, row, BatchTally())
    return _joined(fresh, corrections)


def _sourced(op: npt.NDArray[np.int64], rows: I64, old: I64, key: Hashes, row: Hashes, tally: BatchTally) -> Changes:
    return Changes(op.astype(np.int32), rows.astype(np.int64), old, key.take(rows), row.take(rows), tally)


def _nothing(tally: BatchTally) -> Changes:
    none = Hashes.joined([])
    empty = np.empty(0, np.int64)
    return Changes(np.empty(0, np.int32), empty, empty, none, none, tally)


def _joined(one: Changes, other: Changes) -> Changes:
    if not len(other):
        return Changes(one.op, one.source, one.old, one.key, one.row, one.tally + other.tally)
    return Changes(
        op=np.concatenate([one.op, other.op]),
        source=np.concatenate([one.source, other.source]),
        old=np.concatenate([one.old, other.old]),
        key=Hashes.joined([one.key, other.key]),
        row=Hashes.joined([one.row, other.row]),
        tally=one.tally + other.tally,
    )


def _refuse_several(key: Hashes) -> None:
    groups = group_by_key(key)
    if not groups.are_single:
        raise MergeConflict("several rows with the same key", np.sort(groups.order[groups.first & ~groups.last]))


def _refuse(order: I64, wrong: Mask, reason: str) -> None:
    if wrong.any():
        raise MergeConflict(reason, np.sort(order[wrong]))
