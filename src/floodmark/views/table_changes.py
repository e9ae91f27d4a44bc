"""The changes of a view's inputs since its last refresh, and their rows as they are and as they were.

A record that adds a row has the weight 1, one that takes a row back -1. A row that was added and taken back since then
is left out, and so is one that changed only in columns that the view does not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.key_shape import InputShape, KeyShape, cast_with_mask
from floodmark.derive.row_search import SearchLimits, find_rows
from floodmark.ledger.scan import Scan
from floodmark.rows import row_hash
from floodmark.rows.classify import APPEND, CORRECT_TO
from floodmark.storage.arrays import I64, Hashes, HashIndex, Mask, is_group_start, stable_order
from floodmark.views.sources import ViewInputSnapshot


class WholeInstead(Exception):
    """The changes cannot be carried through the query this time, or not at less cost; the text is the reason."""


@dataclass(frozen=True)
class SplitRows:
    """Rows of an input that have some values, as they are now and as they were."""

    now: pa.Table
    before: pa.Table


@dataclass(frozen=True)
class TableChanges:
    """The changes of one input after a position."""

    source: ViewInputSnapshot
    position: int

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the view reads."""
        return self.source.columns

    @property
    def is_unchanged(self) -> bool:
        """Whether there are no new records."""
        return self.source.given.unread(self.position) == 0

    @cached_property
    def _records(self) -> tuple[pa.Table, Mask, Mask]:
        """The new records, which of them added a row that is there, and which took back a row that was there."""
        given = self.source.given
        assert given.layout is not None
        op, key = given.layout.vocab.op, given.strategy.key
        names = tuple(dict.fromkeys([*self.columns, *key, op]))
        scan = Scan(given.snapshot.objects, given.layout, given.records(self.position + 1), names)
        with given.raise_if_input_moved():
            records = _nullable(scan.to_table())
        added = np.isin(records.column(op).to_numpy(), (APPEND, CORRECT_TO))
        if not key and not added.all():
            raise WholeInstead(f"{self.source.name!r} has no key, and has records that take rows back")
        if not key:
            return records, added, ~added
        first, last = _ends(row_hash.hash_rows(records, key))
        return records, added & last, ~added & first

    @property
    def _added(self) -> pa.Table:
        records, added, _ = self._records
        return records.select(list(self.columns)).filter(pa.array(added))

    @cached_property
    def _removed(self) -> pa.Table:
        records, _, removed = self._records
        return records.select(list(self.columns)).filter(pa.array(removed))

    @cached_property
    def weighed(self) -> tuple[pa.Table, I64]:
        """The rows that were added and those that were taken back, and the weight of each; equal rows cancel."""
        rows = pa.concat_tables([self._added, self._removed])
        weights = np.repeat([1, -1], [self._added.num_rows, self._removed.num_rows])
        return cancel_equal(rows, weights)

    def before(self, now: pa.Table, offsets: I64, values: pa.Table | None) -> pa.Table:
        """The rows as they were, from those that are there now; `values` are those by which these were found."""
        old = now.filter(pa.array(self.source.given.seen_at(offsets) <= self.position))
        removed = self._removed if values is None else _among(self._removed, values)
        return pa.concat_tables([old, removed])

    def rows_among(self, values: pa.Table, limits: SearchLimits) -> SplitRows:
        """The rows whose columns have one of these tuples of values; the columns have the input's names."""
        given = self.source.given
        assert given.layout is not None
        fields = [given.layout.data.field(name) for name in values.column_names]
        cast, fits = cast_with_mask(values.columns, fields)
        typed = pa.table(cast, schema=pa.schema(fields)).filter(pa.array(fits))
        distinct = typed.take(pa.array(row_hash.hash_rows(typed, typed.column_names).first_positions()))
        found = find_rows(given, lookup_shape(given, distinct.schema), 0, distinct, self.columns, limits)
        now = _nullable(found.rows)
        return SplitRows(now, self.before(now, found.offsets, distinct))

    @property
    def source_before(self) -> ViewInputSnapshot:
        """The input as it was."""
        return replace(self.source, given=replace(self.source.given, stop=self.position + 1))


def _nullable(rows: pa.Table) -> pa.Table:
    """The rows as if every column could be null, as rows that were found in different ways are put together."""
    return rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))


def cancel_equal(rows: pa.Table, weights: I64) -> tuple[pa.Table, I64]:
    """Each row once, with the sum of its weights; rows whose weights cancel are left out."""
    distinct, total = sum_weights(rows, weights)
    kept = np.flatnonzero(total)
    return distinct.take(pa.array(kept)), total[kept]


def sum_weights(rows: pa.Table, weights: I64) -> tuple[pa.Table, I64]:
    """Each row once, where it occurs first, with the sum of its weights."""
    if not rows.num_rows:
        return rows, weights
    hashes = row_hash.hash_rows(rows, rows.column_names)
    index = HashIndex.of(hashes)
    total = np.zeros(rows.num_rows, np.int64)
    np.add.at(total, index.find(hashes), weights)
    first = np.sort(index.places)
    return rows.take(pa.array(first)), total[first]


def repeat_rows(rows: pa.Table, weights: I64) -> tuple[pa.Table, I64]:
    """Each row as often as its weight says, with weights of 1 and -1."""
    if (np.abs(weights) == 1).all():
        return rows, weights
    at = np.repeat(np.arange(rows.num_rows), np.abs(weights))
    return rows.take(pa.array(at)), np.sign(weights)[at]


def _ends(hashes: Hashes) -> tuple[Mask, Mask]:
    """Which records are the first and which the last of their key."""
    order = stable_order([hashes.high, hashes.low])
    start = is_group_start([hashes.high[order], hashes.low[order]])
    end = np.append(start[1:], True)[: len(start)]
    first: Mask = np.zeros(len(order), np.bool_)
    last: Mask = np.zeros(len(order), np.bool_)
    first[order[start]] = True
    last[order[end]] = True
    return first, last


def _among(rows: pa.Table, values: pa.Table) -> pa.Table:
    names = values.column_names
    return rows.filter(pa.array(row_hash.hash_rows(rows, names).among(row_hash.hash_rows(values, names))))


def lookup_shape(given: InputSnapshot, values: pa.Schema) -> KeyShape:
    """The key shape for finding rows by columns, which are named like the input's."""
    assert given.layout is not None
    keys = pa.schema([pa.field(f.name, f.type) for f in values])
    strategy = given.strategy
    names = {name: name for name in keys.names}
    shape = InputShape(
        given.name,
        given.dataset_id,
        names,
        strategy.key,
        strategy.lookup,
        given.layout.data,
        required=False,
        is_full=True,
    )
    return KeyShape(keys, (shape,), "keyed")
