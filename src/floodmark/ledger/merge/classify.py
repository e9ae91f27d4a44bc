"""Classifying: what the rows of a batch become, given what the dataset holds. Pure; one function per strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from floodmark.ledger.attributes import Tally
from floodmark.ledger.keys.entries import order_columns
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.ledger.merge.batch import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, Ops
from floodmark.storage.arrays import I64, Hashes, stable_order, starts_of_groups

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Known:
    """What the dataset holds of some keys, position by position."""

    offset: I64  # of the current row, NOT_THERE if there is none
    row: Hashes
    seen: Mask  # whether there ever was one

    def take(self, at: npt.NDArray[np.int64] | Mask) -> Known:
        return Known(self.offset[at], self.row.take(at), self.seen[at])

    @property
    def current(self) -> Mask:
        result: Mask = self.offset != NOT_THERE
        return result


@dataclass(frozen=True)
class Changes:
    """The records that a batch becomes, before they have offsets; the records of one key are neighbours, in order.

    `source` is the row of the batch whose values a record has, or -1 when it repeats those of the record at `old`.
    """

    op: Ops
    source: I64
    old: I64  # the key's current row before the batch, NOT_THERE if there was none
    key: Hashes
    row: Hashes
    tally: Tally

    def __len__(self) -> int:
        return len(self.op)


class Conflict(Exception):
    """Rows that the strategy does not allow, by their positions in the batch."""

    def __init__(self, reason: str, rows: I64) -> None:
        super().__init__(reason)
        self.reason = reason
        self.rows = rows


@dataclass(frozen=True)
class Groups:
    """The rows of a batch by key: `order` puts the rows of one key next to each other, in the order they came."""

    order: I64
    first: Mask  # in that order: the first row of its key
    last: Mask

    @property
    def are_single(self) -> bool:
        return bool(self.first.all())


def group(key: Hashes) -> Groups:
    """Rows with one key, together."""
    columns = order_columns(key, None)
    order = stable_order(columns)
    first = starts_of_groups([column[order] for column in columns])
    return Groups(order, first, np.append(first[1:], np.True_)[: len(first)])


def ledger(key: Hashes, row: Hashes, known: Known) -> Changes:
    """Rows whose key was never seen are new; others are dropped."""
    _refuse_several(key)
    fresh = np.flatnonzero(~known.seen)
    tally = Tally(new=len(fresh), unchanged=len(key) - len(fresh))
    return _sourced(np.full(len(fresh), APPEND), fresh, known.offset[fresh], key, row, tally)


def snapshot(
    key: Hashes, row: Hashes, known: Known, missing: Known, missing_key: Hashes, differs: Differs | None
) -> Changes:
    """The batch is the whole state: what it lacks is retracted.

    `missing` are the current rows whose keys the batch does not have.
    """
    _refuse_several(key)
    changes = _replaced(key, row, known, np.arange(len(key)), differs)
    gone = len(missing_key)
    retracted = Changes(
        op=np.full(gone, RETRACT, np.int32),
        source=np.full(gone, NOT_THERE),
        old=missing.offset,
        key=missing_key,
        row=missing.row,
        tally=Tally(retracted=gone),
    )
    return _joined(changes, retracted)


def upsert(key: Hashes, row: Hashes, op: Ops | None, known: Known) -> Changes:
    """The last row of a key wins: new, changed, the same, or (op 1) gone."""
    groups = group(key)
    rows = np.arange(len(key), dtype=np.int64) if groups.are_single else np.sort(groups.order[groups.last])
    duplicates = len(key) - len(rows)
    if op is None:
        changes = _replaced(key, row, known, rows, None)
        retracted = _nothing(Tally(duplicates=duplicates))
    else:
        removing = op[rows] == RETRACT
        changes = _replaced(key, row, known, rows[~removing], None)
        asked = rows[removing]
        there = asked[known.current[asked]]
        tally = Tally(retracted=len(there), unknown=len(asked) - len(there), duplicates=duplicates)
        retracted = Changes(
            op=np.full(len(there), RETRACT, np.int32),
            source=np.full(len(there), NOT_THERE),
            old=known.offset[there],
            key=key.take(there),
            row=known.row.take(there),
            tally=tally,
        )
    return _joined(changes, retracted)


def changelog(key: Hashes, row: Hashes, op: Ops, known: Known) -> Changes:
    """Every row is a record, if it fits what was before it."""
    groups = group(key)
    order, first, last = groups.order, groups.first, groups.last
    ops, rows, before = op[order], row.take(order), known.take(order)
    previous_op = np.roll(ops, 1)
    follows_row = ~first & ((previous_op == APPEND) | (previous_op == CORRECT_TO))
    is_there = np.where(first, before.current, follows_row)
    previous = Hashes(np.roll(rows.high, 1), np.roll(rows.low, 1))
    same = np.where(first, rows.same(before.row), rows.same(previous))
    after_from = ~first & (previous_op == CORRECT_FROM)
    next_op = np.roll(ops, -1)
    ends = (ops == RETRACT) | (ops == CORRECT_FROM)
    _refuse(order, ends & ~is_there, "a retraction or correction of a row that is not there")
    _refuse(order, ends & ~same, "a retraction or correction whose values are not those of the current row")
    _refuse(order, (ops == APPEND) & is_there, "a new row (op 0) with a key that is there already")
    _refuse(order, (ops == CORRECT_TO) & ~after_from, "a row after a change (op 3) without the row before it (op 2)")
    _refuse(
        order,
        (ops == CORRECT_FROM) & (last | (next_op != CORRECT_TO)),
        "a row before a change (op 2) without the row after it (op 3)",
    )
    tally = Tally(
        new=int((ops == APPEND).sum()), changed=int((ops == CORRECT_TO).sum()), retracted=int((ops == RETRACT).sum())
    )
    return Changes(ops, order, before.offset, key.take(order), rows, tally)


Differs = Callable[[I64, I64], Mask]
"""Whether rows of the batch (first) differ from records (second) where it counts."""


def _replaced(key: Hashes, row: Hashes, known: Known, rows: I64, differs: Differs | None) -> Changes:
    """These rows of the batch, one per key, against what is there."""
    there = known.current[rows]
    other = ~row.take(rows).same(known.row.take(rows))
    changed_rows = rows[there & other]
    if differs is not None and len(changed_rows):
        changed_rows = changed_rows[differs(changed_rows, known.offset[changed_rows])]
    new_rows = rows[~there]
    tally = Tally(new=len(new_rows), changed=len(changed_rows), unchanged=len(rows) - len(new_rows) - len(changed_rows))
    if not len(changed_rows):
        return _sourced(np.full(len(new_rows), APPEND), new_rows, known.offset[new_rows], key, row, tally)
    pairs = np.repeat(changed_rows, 2)
    is_old = np.tile([True, False], len(changed_rows))
    old_row, new_row = known.row.take(pairs), row.take(pairs)
    corrections = Changes(
        op=np.where(is_old, CORRECT_FROM, CORRECT_TO).astype(np.int32),
        source=np.where(is_old, NOT_THERE, pairs),
        old=known.offset[pairs],
        key=key.take(pairs),
        row=Hashes(np.where(is_old, old_row.high, new_row.high), np.where(is_old, old_row.low, new_row.low)),
        tally=tally,
    )
    fresh = _sourced(np.full(len(new_rows), APPEND), new_rows, known.offset[new_rows], key, row, Tally())
    return _joined(fresh, corrections)


def _sourced(op: npt.NDArray[np.int64], rows: I64, old: I64, key: Hashes, row: Hashes, tally: Tally) -> Changes:
    return Changes(op.astype(np.int32), rows.astype(np.int64), old, key.take(rows), row.take(rows), tally)


def _nothing(tally: Tally) -> Changes:
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
    groups = group(key)
    if not groups.are_single:
        raise Conflict("several rows with one key", np.sort(groups.order[groups.first & ~groups.last]))


def _refuse(order: I64, wrong: Mask, reason: str) -> None:
    if wrong.any():
        raise Conflict(reason, np.sort(order[wrong]))
