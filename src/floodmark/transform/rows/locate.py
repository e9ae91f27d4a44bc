"""Which rows belong to keys: through an input's key index, or from files into which all wanted rows were sorted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.ledger.keys.records import NOT_THERE
from floodmark.storage.arrays import I64, U64, Hashes
from floodmark.transform.changed.changes import Groups
from floodmark.transform.changed.inputs import TaskInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.rows.units import KeysUnit

_TOP = np.uint64(56)

Read = Callable[[I64], pa.Table]
"""Gives the rows at these positions, in this order, with the columns that the function gets."""


@dataclass(frozen=True)
class Located:
    """The rows of one input for some keys: sorted by part, then by offset."""

    part: I64  # per key: the number of its part
    starts: I64  # per part: where its rows begin, and after the last where they end
    offsets: I64
    read: Read

    @property
    def counts(self) -> I64:
        """Per key how many rows it has."""
        result: I64 = np.diff(self.starts)[self.part]
        return result


def locate(unit: KeysUnit, keys: pa.Table, shape: Shape, number: int, given: TaskInput) -> Located:
    """The rows of an input that belong to keys."""
    part, parts = _parts(shape, number, keys)
    files = unit.sides[number]
    if given.layout is None:
        nothing = np.empty(0, np.int64)
        return Located(part, np.zeros(parts.num_rows + 1, np.int64), nothing, lambda at: _nothing(shape, number, at))
    if files is not None:
        wanted = shape.hash_part(number, parts)
        table = _filed(unit, keys, shape, number)
        at = Hashes(*_hashes(table)).positions_in(wanted)
        there = np.flatnonzero(at >= 0)
        offsets = table.column(table.num_columns - 3).to_numpy()
        if not shape.inputs[number].is_full:
            _, once = np.unique(offsets[there], return_index=True)  # a row is in every bucket that has a key of it
            there = there[once]
        rows = pa.Table.from_arrays(table.columns[:-3], schema=shape.inputs[number].columns)
        return _located(part, parts.num_rows, at[there], offsets[there], _from_table(rows, there))
    owner, offsets, hashes = by_index(shape, number, parts, given)
    return _located(part, parts.num_rows, owner, offsets, _from_slices(shape, number, given, offsets, hashes))


def _nothing(shape: Shape, number: int, at: I64) -> pa.Table:
    assert len(at) == 0
    return shape.inputs[number].columns.empty_table()


def _parts(shape: Shape, number: int, keys: pa.Table) -> tuple[I64, pa.Table]:
    """What the keys have of an input's part: for each its number, and the distinct ones."""
    if shape.inputs[number].is_full:
        return np.arange(keys.num_rows, dtype=np.int64), keys
    groups = Groups.of(shape.hash_part(number, keys))
    return groups.number, keys.take(pa.array(groups.first))


def _located(part: I64, parts: int, owner: I64, offsets: I64, read: Read) -> Located:
    order = np.lexsort((offsets, owner))
    starts = np.searchsorted(owner[order], np.arange(parts + 1))
    return Located(part, starts.astype(np.int64), offsets[order], lambda at: read(order[at]))


def by_index(shape: Shape, number: int, parts: pa.Table, given: TaskInput) -> tuple[I64, I64, Hashes]:
    """By the key index: for each row the number of its part, its offset and its hash."""
    assert given.layout is not None
    assert given.index is not None
    whole, prefix, fits = shape.own_hashes(number, parts, given.layout.data)
    can_be = np.flatnonzero(fits)
    whole = whole.take(can_be)
    with given.steady():
        if shape.inputs[number].found_by == "key":
            found = given.index.find(whole, None if prefix is None else prefix.take(can_be))
            which, offsets, rows = np.arange(len(can_be)), found.offset, found.row
        else:
            which, entries = given.index.find_prefix(whole)
            offsets, rows = entries.offset, entries.row
    there = np.flatnonzero((offsets != NOT_THERE) & (offsets >= given.purged_before))
    return can_be[which[there]], offsets[there], rows.take(there)


def _from_slices(shape: Shape, number: int, given: TaskInput, offsets: I64, hashes: Hashes) -> Read:
    columns = shape.inputs[number].columns

    def read(at: I64) -> pa.Table:
        with given.steady():
            return given.rows.verified(offsets[at], hashes.take(at)).select(columns.names).cast(columns)

    return read


def _filed(unit: KeysUnit, keys: pa.Table, shape: Shape, number: int) -> pa.Table:
    """The rows of all buckets in which the unit's keys can be."""
    files = unit.sides[number]
    assert files
    top = shape.hash_place(number, keys).high >> _TOP
    low, high = int(top.min()), int(top.max()) + 1
    return pa.concat_tables([file.read(low, high) for file in files])


def _hashes(table: pa.Table) -> tuple[U64, U64]:
    return table.column(table.num_columns - 2).to_numpy(), table.column(table.num_columns - 1).to_numpy()


def _from_table(rows: pa.Table, there: I64) -> Read:
    return lambda at: rows.take(pa.array(there[at]))
