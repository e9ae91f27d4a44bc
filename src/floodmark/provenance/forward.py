"""What was computed from a record: the trace of `Lake.why` in the other direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import LakeLike
from floodmark.derive.key_shape import cast_with_mask
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.provenance.origin import (
    ColumnPairs,
    InputLink,
    Origin,
    list_column_pairs,
    list_linked_inputs,
)
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets, Transaction
from floodmark.provenance.tree import (
    DerivedRecord,
    ForwardProvenance,
    WholeDataset,
)
from floodmark.provenance.why import (
    ProvenanceTracer,
    RecordSelector,
    block_of,
    maker_of,
    read_computed_values,
    read_records,
    resolve_offset,
)
from floodmark.rows import row_hash
from floodmark.rows.classify import APPEND, CORRECT_TO
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.lookup import history_filter
from floodmark.storage.arrays import I64

_NEVER = 1 << 62


def forward(lake: LakeLike, name: str, selector: RecordSelector) -> ForwardProvenance:
    """Trace a record of a dataset forward to the records that were made from it."""
    following = _ForwardTracer(ProvenanceTracer(OpenedDatasets(lake)))
    given = following.datasets.named(name)
    offset = resolve_offset(given, selector)
    [record] = read_records(given, [offset])
    direct = following.of(given, offset)
    block = block_of(given.transaction_at(offset))
    doubts = tuple(dict.fromkeys(doubt for found in direct for doubt in found.doubts))
    derived, wholes = following.derived(direct), following.wholes(given, offset)
    waiting, computed = following.waiting(given, offset), read_computed_values(given, record)
    return ForwardProvenance(record, block, derived, wholes, waiting, computed, doubts)


@dataclass(frozen=True)
class _DerivedRows:
    """Records of a derived dataset that one transaction wrote and that were made from a given record."""

    output: OpenedDataset
    transaction: Transaction
    origin: Origin
    offsets: I64

    @property
    def doubts(self) -> tuple[str, ...]:
        return self.origin.doubts


@dataclass(frozen=True)
class _ForwardTracer:
    looking: ProvenanceTracer
    _derived: dict[tuple[str, int], tuple[DerivedRecord, ...]] = field(default_factory=dict, repr=False)

    @property
    def datasets(self) -> OpenedDatasets:
        return self.looking.datasets

    def waiting(self, given: OpenedDataset, offset: int) -> tuple[str, ...]:
        """The derived datasets that are made from this dataset and have not read this record yet."""
        return tuple(output.name for output in self.datasets.all() if _is_behind(output, given, offset))

    def of(self, given: OpenedDataset, offset: int) -> list[_DerivedRows]:
        """The records that were made from this one, ordered by dataset name and offset."""
        until = _find_end(given, offset)
        found: list[_DerivedRows] = []
        for output in self.datasets.all():
            if output.id == given.id:
                continue  # a step that reads what it writes
            seen = NO_OFFSETS  # several inputs may be one dataset
            for by in sorted(way for way in list_column_pairs(output, given.id) if way):
                for one in self._made_by(output, given, offset, until, by):
                    found += _without(one, seen)
                    seen = np.union1d(seen, one.offsets)
            for one in self._made_through(output, given, offset, until):
                found += _without(one, seen)
                seen = np.union1d(seen, one.offsets)
        return found

    def _made_through(
        self, output: OpenedDataset, given: OpenedDataset, offset: int, until: int
    ) -> Iterator[_DerivedRows]:
        """The records of one dataset that were made from this one, looked up through rows of another input."""
        for pairs, source_id, by in list_linked_inputs(output, given.id):
            source = self.datasets.of_id(source_id, "")
            if source is None or source.snapshot.layout is None:
                continue
            for row in _records_of(source, given, offset, pairs).tolist():
                for one in self._made_by(output, source, row, _find_end(source, row), by):
                    if any(offset <= link.position < until for link in one.origin.links if link.dataset_id == given.id):
                        yield one

    def _made_by(
        self, output: OpenedDataset, given: OpenedDataset, offset: int, until: int, by: ColumnPairs
    ) -> Iterator[_DerivedRows]:
        """The records of one dataset that were made from this one, where rows were matched by these columns."""
        left = _records_of(output, given, offset, by)
        while len(left):
            transaction = output.transaction_at(int(left[0]))
            count = int(np.searchsorted(left, transaction.end))
            origin = self.looking.origin(output, transaction)
            mine = [link for link in origin.links if link.dataset_id == given.id and link.by == by]
            if any(offset <= link.position < until for link in mine):
                rows = left[:count]
                if origin.is_traced:
                    rows = rows[self._are_traced_to(output, rows, origin, given, offset)]
                if len(rows):
                    yield _DerivedRows(output, transaction, origin, rows)
            left = left[count:]

    def _are_traced_to(
        self, output: OpenedDataset, rows: I64, origin: Origin, given: OpenedDataset, offset: int
    ) -> list[bool]:
        """Whether records of a view were made from this one. One that cannot be traced matches by its columns."""
        traced = self.looking.views.offsets_of_all(output, rows, origin)
        ops = output.records(rows).column(output.layout.vocab.op).to_pylist()
        return [
            offset in one[given.id] if one else one is None or op in (APPEND, CORRECT_TO)
            for one, op in zip(traced, ops, strict=True)
        ]

    def wholes(self, given: OpenedDataset, offset: int) -> tuple[WholeDataset, ...]:
        """The datasets that are made from all rows of this dataset."""
        until = _find_end(given, offset)
        found = []
        for output in self.datasets.all():
            if None in list_column_pairs(output, given.id) and (all_of := list(self._refreshes(output, given))):
                there = sum(offset <= link.position < until for _, link in all_of)
                found.append(WholeDataset(output.name, given.name, maker_of(all_of[-1][0]), there))
        return tuple(found)

    def derived(self, found: list[_DerivedRows]) -> tuple[DerivedRecord, ...]:
        """These records as trees, with the records that were made from them."""
        return tuple(
            self._tree(one, record.offset) for one in found for record in read_records(one.output, one.offsets)
        )

    def _tree(self, found: _DerivedRows, offset: int) -> DerivedRecord:
        [record] = read_records(found.output, [offset])
        at = (found.output.id, offset)
        if at not in self._derived:
            self._derived[at] = self.derived(self.of(found.output, offset))
        return DerivedRecord(
            record,
            block_of(found.transaction),
            maker_of(found.origin),
            _find_end(found.output, offset) == _NEVER,
            self._derived[at],
        )

    def _refreshes(self, output: OpenedDataset, given: OpenedDataset) -> Iterator[tuple[Origin, InputLink]]:
        """All transactions of a derived dataset that read all rows of this dataset."""
        for transaction in output.transactions():
            origin = self.looking.origin(output, transaction)
            for link in origin.links:
                if link.dataset_id == given.id and link.by is None:
                    yield origin, link


def _without(found: _DerivedRows, seen: I64) -> list[_DerivedRows]:
    offsets = np.setdiff1d(found.offsets, seen)
    return [replace(found, offsets=offsets)] if len(offsets) else []


def _is_behind(output: OpenedDataset, given: OpenedDataset, offset: int) -> bool:
    positions = [p.offset for p in output.snapshot.state.next_inputs if str(p.dataset_id) == given.id]
    return any(position is None or position < offset for position in positions)


def _find_end(given: OpenedDataset, offset: int) -> int:
    """The record that ended this one; its own offset when it was never current, `_NEVER` when it is current."""
    index = given.as_of(given.snapshot.next_offset - 1).newest_index
    if index is None:
        return _NEVER
    ended = int(index.ended_by(np.array([offset], np.int64))[0])
    return _NEVER if ended == NO_ROW else ended


def _records_of(output: OpenedDataset, given: OpenedDataset, offset: int, by: ColumnPairs) -> I64:
    """All records of a derived dataset that have the values of an input record in these columns."""
    if output.snapshot.layout is None or not {name for name, _ in by} <= set(output.layout.data.names):
        return NO_OFFSETS
    own = given.records(np.array([offset], np.int64))
    if not {column for _, column in by} <= set(own.column_names):
        return NO_OFFSETS  # without a recorded declaration, columns match by name, and this name does not exist
    names = [name for name, _ in by]
    wanted, fits = cast_with_mask(
        [own.column(column) for _, column in by], [output.layout.data.field(name) for name in names]
    )
    keys = pa.table(wanted, names=names).filter(pa.array(fits))
    if not keys.num_rows:
        return NO_OFFSETS
    output_snapshot = output.as_of(output.snapshot.next_offset - 1)
    column = output.layout.vocab.offset
    scan = output_snapshot.task_input.scan(output_snapshot.records(0), [column, *names])
    table = scan.to_reader(history_filter(keys)).read_all()
    there = row_hash.hash_rows(table, names).among(row_hash.hash_rows(keys, names))
    offsets: I64 = np.sort(table.column(column).to_numpy()[there])
    return offsets
