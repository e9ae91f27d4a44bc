"""What a refresh keeps for operators of a query: the totals of an aggregate's groups, the first rows of an order.

A state is one file, which the commit of the refresh names, so it is always as old as the view's rows. Totals are of
exact types: they are kept up to date by adding changes, and no row below is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.ids import Multihash
from floodmark.errors import ObjectNotFound
from floodmark.ledger.objects import DatasetObjects
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64, Hashes, HashIndex, Mask
from floodmark.views.table_changes import WholeInstead, sum_weights

KEY = "floodmark_k"
"""The columns of a group, with their numbers."""

COUNT = "floodmark_n"
"""The number of rows of a group."""

FILLED = "floodmark_c"
"""For each total: the number of rows whose value is not null."""

SUM = "floodmark_s"
"""For each total: the sum of its values."""

COLUMN = "floodmark_o"
"""The columns of ordered rows, with their numbers."""

ORDER = "floodmark_place"
"""The number of a row that was handed to Spark to be sorted."""

_HIGH, _LOW = "floodmark_high", "floodmark_low"
_IS_COMPLETE = b"floodmark.complete"
_WIDE = 60  # digits: two decimals with 38 digits can be added


class StateLost(WholeInstead):
    """A state that the last refresh stored cannot be read."""


@dataclass(frozen=True)
class GroupChanges:
    """The groups that changed, as they were and as they are, and the totals of all groups."""

    before: pa.Table
    now: pa.Table
    totals: GroupTotals


@dataclass(frozen=True)
class GroupTotals:
    """The totals of all groups, sorted by the hashes of the groups."""

    table: pa.Table
    _hashes: Hashes = field(repr=False)

    @classmethod
    def of(cls, table: pa.Table) -> GroupTotals:
        """Totals as Spark computed them."""
        typed = _typed(table)
        hashes = _hashes_of(typed)
        order = np.lexsort((hashes.low, hashes.high))
        return cls(typed.take(pa.array(order)), hashes.take(order))

    def add(self, changes: pa.Table) -> GroupChanges:
        """Add the totals of changes, at most one row for each group."""
        given = GroupTotals.of(changes.filter(_has_effect(changes)))
        at = self._index.find(given._hashes)
        is_known = at >= 0
        known, new = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        before = self.table.take(pa.array(at[known]))
        after = pa.concat_tables([_sum(before, given.table.take(pa.array(known))), given.table.take(pa.array(new))])
        hashes = Hashes.joined([given._hashes.take(known), given._hashes.take(new)])
        rows = after.column(COUNT).to_numpy()
        is_left = rows > 0 if _key_names(self.table) else np.ones(len(rows), np.bool_)
        if (rows < 0).any():
            raise WholeInstead("its state has fewer rows of a group than were taken back")
        totals = self._replaced(at[known], after, hashes, is_left)
        return GroupChanges(before, after.filter(pa.array(is_left)), totals)

    def _replaced(self, gone: I64, rows: pa.Table, hashes: Hashes, is_left: Mask) -> GroupTotals:
        kept = np.ones(self.table.num_rows, np.bool_)
        kept[gone] = False
        left = np.flatnonzero(is_left)
        order = np.lexsort((hashes.low[left], hashes.high[left]))
        left = left[order]
        old, mine = Hashes(self._hashes.high[kept], self._hashes.low[kept]), hashes.take(left)
        places = np.searchsorted(old.high, mine.high)  # equal high halves are so rare that their order does not matter
        number = self.table.num_rows
        at = np.insert(np.flatnonzero(kept), places, number + left)
        together = Hashes(np.insert(old.high, places, mine.high), np.insert(old.low, places, mine.low))
        return GroupTotals(pa.concat_tables([self.table, rows]).take(pa.array(at)), together)

    @cached_property
    def _index(self) -> HashIndex:
        return HashIndex.of(self._hashes)

    def to_bytes(self) -> bytes:
        """The content of the state's file."""
        columns = {_HIGH: pa.array(self._hashes.high), _LOW: pa.array(self._hashes.low)}
        table = self.table
        for name, values in columns.items():
            table = table.append_column(name, values)
        return _encode(table)

    @classmethod
    def from_table(cls, table: pa.Table) -> GroupTotals:
        """Read what `to_bytes` wrote."""
        hashes = Hashes(table.column(_HIGH).to_numpy(), table.column(_LOW).to_numpy())
        return cls(table.drop_columns([_HIGH, _LOW]), hashes)


def _key_names(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(KEY)]


def _hashes_of(table: pa.Table) -> Hashes:
    names = _key_names(table)
    if names:
        return row_hash.hash_rows(table, names)
    return Hashes(np.zeros(table.num_rows, np.uint64), np.zeros(table.num_rows, np.uint64))


def _typed(table: pa.Table) -> pa.Table:
    """Totals with the widest decimals, and 0 for a sum of no values."""
    columns, fields = [], []
    for at, one in enumerate(table.schema):
        values, kind = table.column(at), one.type
        if not one.name.startswith(KEY):
            kind = pa.decimal128(38, kind.scale) if pa.types.is_decimal(kind) else pa.int64()
            values = pc.fill_null(values.cast(kind), _zero(kind))
        columns.append(values)
        fields.append(pa.field(one.name, kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(Decimal(0) if pa.types.is_decimal(kind) else 0, kind)


def _has_effect(changes: pa.Table) -> pa.Array:
    """Whether the changes of a group do not cancel."""
    some = np.zeros(changes.num_rows, np.bool_)
    for name in changes.column_names:
        if not name.startswith(KEY):
            values = changes.column(name)
            is_zero = pc.equal(values, _zero(values.type))
            some |= ~pc.fill_null(is_zero, True).to_numpy()
    return pa.array(some)


def _sum(one: pa.Table, other: pa.Table) -> pa.Table:
    """Row by row the sums of two tables of totals for the same groups."""
    columns = []
    for at, named in enumerate(one.schema):
        values = one.column(at)
        if not named.name.startswith(KEY):
            try:
                values = _added(values, other.column(at), named.type)
            except pa.ArrowInvalid as error:
                raise WholeInstead("a total does not fit its type") from error
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=one.schema)


def _added(one: pa.ChunkedArray, other: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_decimal(kind):
        return pc.add_checked(one, other)
    wide = pa.decimal256(_WIDE, kind.scale)
    return pc.add(one.cast(wide), other.cast(wide)).cast(kind)


@dataclass(frozen=True)
class FirstRows:
    """The first rows of an order, and whether there are no others. Equal rows occur as often as they do below."""

    table: pa.Table
    is_complete: bool

    def candidates(self, rows: pa.Table, weights: I64) -> tuple[pa.Table, I64]:
        """The distinct rows to sort with their weights: those kept, and those that were added.

        A row that was taken back and is not kept comes after all kept ones.
        """
        together = pa.concat_tables([self.table, rows.cast(self.table.schema)])
        each = np.concatenate([np.ones(self.table.num_rows, np.int64), weights])
        distinct, totals = sum_weights(together, each)
        is_kept = row_hash.hash_rows(distinct, distinct.column_names).among(
            row_hash.hash_rows(self.table, self.table.column_names)
        )
        if ((totals < 0) & is_kept).any() or (self.is_complete and (totals < 0).any()):
            raise WholeInstead("its state has fewer of a row than were taken back")
        needed = is_kept | (totals > 0)
        return distinct.filter(pa.array(needed)), totals[needed]

    def updated(self, ordered: pa.Table, weights: I64, needed: int, kept: int) -> FirstRows:
        """The first rows after changes: `ordered` has the candidates in order, with their weights.

        Only rows up to the last one that was kept are known to have no others between them.
        """
        end = ordered.num_rows
        if not self.is_complete:
            mine = row_hash.hash_rows(self.table, self.table.column_names)
            is_mine = row_hash.hash_rows(ordered, ordered.column_names).among(mine)
            end = int(np.flatnonzero(is_mine).max(initial=-1)) + 1
        counts = np.maximum(weights[:end], 0)
        if not self.is_complete and counts.sum() < needed:
            raise WholeInstead(f"fewer than {needed:,} of the kept rows are left")
        at = np.repeat(np.arange(end), counts)
        is_complete = self.is_complete and len(at) <= kept
        return FirstRows(ordered.take(pa.array(at[:kept])), is_complete)

    def to_bytes(self) -> bytes:
        """The content of the state's file."""
        return _encode(self.table.replace_schema_metadata({_IS_COMPLETE: b"1" if self.is_complete else b"0"}))

    @classmethod
    def from_table(cls, table: pa.Table) -> FirstRows:
        """Read what `to_bytes` wrote."""
        known = table.schema.metadata or {}
        return cls(table.replace_schema_metadata(None), known.get(_IS_COMPLETE) == b"1")


State = GroupTotals | FirstRows


def _encode(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


@dataclass(frozen=True)
class StateFiles:
    """The states of a refresh as files, by operator, and the files of states that did not change; None: not kept."""

    content: Mapping[str, bytes] = field(default_factory=dict)
    others: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Mapping[str, State], others: Mapping[str, str | None]) -> StateFiles:
        return cls({name: state.to_bytes() for name, state in states.items()}, others)

    @cached_property
    def names(self) -> dict[str, str | None]:
        """The name of each operator's file."""
        return {**self.others, **{operator: name.text for operator, name in self._own.items()}}

    @cached_property
    def _own(self) -> dict[str, Multihash]:
        return {operator: Multihash.sha3_256(data) for operator, data in self.content.items()}

    def put(self, objects: DatasetObjects) -> None:
        """Store the new files durably."""
        for operator, name in self._own.items():
            objects.store.put_if_absent(objects.checkpoint_key(name), self.content[operator])


def load_state(name: str, objects: DatasetObjects) -> pa.Table:
    """The content of a state's file; `StateLost` if it is missing or damaged."""
    digest = Multihash.parse(name)
    try:
        data = objects.store.get(objects.checkpoint_key(digest))
    except ObjectNotFound as error:
        raise StateLost("its state is missing") from error
    if Multihash.sha3_256(data) != digest:
        raise StateLost("its state was changed or damaged")
    return pa.ipc.open_stream(data).read_all()
