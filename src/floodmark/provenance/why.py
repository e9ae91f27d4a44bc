"""Traces a record back to the input rows that it was made of, down to the sources; `forward` has the other direction.

Nothing is guessed. Inputs are read at the positions that the run of the record used, and matched by the columns of its
step or view. If something was purged, dropped or never recorded, the answer contains this.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.columns.snapshot import make_column_values
from floodmark.derive.inputs import LakeLike
from floodmark.derive.positions import NO_POSITION
from floodmark.errors import RecordsPurged, UnknownRecord
from floodmark.ledger.block_attributes import carried_before, restored_files
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.ledger.strategy import strategy_of
from floodmark.provenance.origin import (
    InputLink,
    Origin,
    explain_missing,
    find_matching_rows,
    find_retractions,
    origin_of,
)
from floodmark.provenance.transactions import OpenedDataset, OpenedDatasets, Transaction
from floodmark.provenance.tree import (
    ComputedValue,
    InputRows,
    Maker,
    Provenance,
    Record,
    TransactionBlock,
)
from floodmark.provenance.why_views import ViewTracer, find_ended
from floodmark.rows import key_index_loader, row_hash
from floodmark.rows.lookup import filter_by_keys, history_filter, located_rows, parse_keys
from floodmark.sources.file_log import SOURCE, Content
from floodmark.storage.arrays import I64
from floodmark.transforms.commit import unpack_hashes

MAX_ROWS = 10
"""How many rows of an input are traced further. The others are only counted."""

_TAKES_BACK = ("-R", "-C")


def why(lake: LakeLike, name: str, selector: RecordSelector, rows: int = MAX_ROWS) -> Provenance:
    """Trace a record of a dataset back to its sources, with at most `rows` rows of each input."""
    looking = ProvenanceTracer(OpenedDatasets(lake), rows)
    given = looking.datasets.named(name)
    return looking.at(given, resolve_offset(given, selector))


@dataclass(frozen=True)
class ProvenanceTracer:
    """Traces records in one snapshot of a lake, and caches the answers."""

    datasets: OpenedDatasets
    rows: int = MAX_ROWS
    _known: dict[tuple[str, int], Provenance] = field(default_factory=dict, repr=False)
    _origins: dict[tuple[str, int], Origin] = field(default_factory=dict, repr=False)

    @cached_property
    def views(self) -> ViewTracer:
        """Finds the rows of inputs by running the queries of views again."""
        return ViewTracer(self.datasets)

    def at(self, given: OpenedDataset, offset: int) -> Provenance:
        """The provenance of the record at an offset."""
        return self.at_all(given, np.array([offset], np.int64))[0]

    def at_all(self, given: OpenedDataset, offsets: I64) -> tuple[Provenance, ...]:
        """The provenance of the records at some sorted offsets."""
        if missing := [o for o in offsets.tolist() if (given.id, o) not in self._known]:
            for record in read_records(given, missing):
                self._known[given.id, record.offset] = self._trace(given, record)
        return tuple(self._known[given.id, o] for o in offsets.tolist())

    def origin(self, given: OpenedDataset, transaction: Transaction) -> Origin:
        """The origin of a transaction of a derived dataset."""
        at = (given.id, transaction.sequence_number)
        if at not in self._origins:
            self._origins[at] = origin_of(given, transaction)
        return self._origins[at]

    def _trace(self, given: OpenedDataset, record: Record) -> Provenance:
        transaction = given.transaction_at(record.offset)
        block, computed = block_of(transaction), read_computed_values(given, record)
        if transaction.is_write:
            return Provenance(record, block, _write_maker(given, transaction), computed=computed)
        origin = self.origin(given, transaction)
        ends = _ended_record(given, record) if record.op in _TAKES_BACK else None
        inputs = tuple(self._input(given, record, origin, link, ends) for link in origin.links)
        failed = ends is not None and self._failed(given, record, origin)
        return Provenance(record, block, maker_of(origin), inputs, computed, ends, failed, origin.doubts)

    def _untraced(self, given: OpenedDataset, record: Record) -> Provenance:
        """What wrote a record, without its inputs."""
        transaction = given.transaction_at(record.offset)
        if transaction.is_write:
            return Provenance(record, block_of(transaction), _write_maker(given, transaction))
        maker = maker_of(self.origin(given, transaction))
        return Provenance(record, block_of(transaction), maker, doubts=("earlier results are not traced further",))

    def _failed(self, given: OpenedDataset, record: Record, origin: Origin) -> bool:
        """Whether a row was taken back because the function failed for its key."""
        names = list(strategy_of(given.snapshot.state).lookup)
        own = given.records(np.array([record.offset], np.int64)).select(names)
        return bool(row_hash.hash_rows(own, names).among(unpack_hashes(origin.failed))[0])

    def _input(
        self, output: OpenedDataset, record: Record, origin: Origin, link: InputLink, ends: int | None
    ) -> InputRows:
        given = self.datasets.of_id(link.dataset_id, link.alias)
        traced = self.views.offsets(output, record.offset, origin) if given is not None and origin.is_traced else None
        if given is not None and (traced or (traced is not None and ends is not None)):
            return self._traced_input(output, given, link, traced.get(link.dataset_id, NO_OFFSETS), ends)
        values = self._values(output, record, origin, link)
        by = None if link.by is None else {column: _one_or_all(values.column(name)) for name, column in link.by}
        if given is None:
            gone = f"dataset {link.alias or link.dataset_id} was dropped: its rows can no longer be read"
            return InputRows(link.alias, link.dataset_id, link.position, by, 0, missing=gone)
        found = find_matching_rows(given, link, values)
        if traced is not None and found.missing is None:
            found = replace(found, missing="its query over these rows does not give this row again")
        if given.id == output.id:  # a step that reads what it writes: each result has the one before it
            shown = tuple(self._untraced(given, one) for one in read_records(given, found.offsets[: self.rows]))
            return InputRows(given.name, given.id, link.position, by, found.rows, shown, (), found.missing)
        shown = self.at_all(given, found.offsets[: self.rows])
        gone_rows: tuple[Provenance, ...] = ()
        if ends is not None:
            before = _position(self.origin(output, output.transaction_at(ends)), link)
            retracted = find_retractions(given, link, values, max(before, given.snapshot.purged_before - 1))
            gone_rows = self.at_all(given, retracted[: self.rows])
        return InputRows(given.name, given.id, link.position, by, found.rows, shown, gone_rows, found.missing)

    def _traced_input(
        self, output: OpenedDataset, given: OpenedDataset, link: InputLink, offsets: I64, ends: int | None
    ) -> InputRows:
        """The rows of an input that a record of a view came from, found by running its query again."""
        gone: tuple[Provenance, ...] = ()
        if ends is not None:
            origin = self.origin(output, output.transaction_at(ends))
            before = self.views.offsets(output, ends, origin) if origin.is_traced else None
            ended = find_ended(given, link, (before or {}).get(link.dataset_id, NO_OFFSETS))
            gone = self.at_all(given, ended[: self.rows])
        shown = self.at_all(given, offsets[: self.rows])
        missing = explain_missing(given, link)
        return InputRows(given.name, given.id, link.position, {}, len(offsets), shown, gone, missing)

    def _values(self, output: OpenedDataset, record: Record, origin: Origin, link: InputLink) -> pa.Table:
        """The values that rows of an input match: of the record, or of the rows that it is looked up through."""
        offset = np.array([record.offset], np.int64)
        if not link.through or link.by is None:
            return key_values(output, offset, link)
        names = [name for name, _ in link.by]
        tables = []
        for source in (origin.links[number] for number in link.through):
            given = self.datasets.of_id(source.dataset_id, source.alias)
            if given is None or given.snapshot.layout is None:
                continue
            found = find_matching_rows(given, source, key_values(output, offset, source))
            own = dict((*(source.by or ()), *source.joins))
            tables.append(given.records(found.offsets).select([own[name] for name in names]).rename_columns(names))
        if not tables:
            return pa.table({name: pa.nulls(0) for name in names})
        every = pa.concat_tables(tables, promote_options="permissive")
        return every.take(pa.array(row_hash.hash_rows(every, names).first_positions()))


def _one_or_all(column: pa.ChunkedArray) -> Any:
    """The value of a column; a list if there are several different ones, or none."""
    values = column.unique().to_pylist()
    return values[0] if len(values) == 1 else values


def read_computed_values(given: OpenedDataset, record: Record) -> tuple[ComputedValue, ...]:
    """The computed columns of a record."""
    catalog = given.dataset.catalog
    beside = make_column_values(given.snapshot.objects, catalog, given.as_of(given.snapshot.next_offset - 1))
    if beside is None or record.op in _TAKES_BACK:
        return ()
    names = [column.name for column in catalog.columns]
    values = beside.open(names).take(np.array([record.offset], np.int64))
    return tuple(
        ComputedValue(c.name, value[0].as_py(), c.function.name, c.function.version, c.inputs)
        for c, value in zip(catalog.columns, values, strict=True)
    )


def maker_of(origin: Origin) -> Maker:
    """What made a transaction, for the answer."""
    return Maker(origin.kind, origin.name, origin.version, origin.way, origin.run)


def _position(origin: Origin, link: InputLink) -> int:
    """The position up to which an earlier transaction had read an input."""
    return next((other.position for other in origin.links if other.dataset_id == link.dataset_id), NO_POSITION)


def key_values(output: OpenedDataset, offsets: I64, link: InputLink) -> pa.Table:
    """The values of output records in the columns that match them to rows of an input."""
    if not link.by:
        return pa.table({})
    return output.records(offsets).select([name for name, _ in link.by])


def _write_maker(given: OpenedDataset, transaction: Transaction) -> Maker:
    if before := carried_before(transaction.event):
        return Maker("carried", state=str(before))
    state = given.new_source_state(transaction)
    if state is None:
        return Maker("write")
    content = Content.parse(state.value) if state.source_name == SOURCE else None
    # A commit for a file that lost lines also has the rows that other files gave back for their keys.
    files = None if content is None else " or ".join([content.name, *restored_files(transaction.event)])
    return Maker("write", source=state.source_name, state=state.value, file=files)


def _ended_record(given: OpenedDataset, record: Record) -> int | None:
    """The record whose row a retraction takes back: the newest one of its key before it. None when it is purged."""
    key = strategy_of(given.snapshot.state).key
    own = given.records(np.array([record.offset], np.int64)).select(list(key))
    input_snapshot = given.as_of(record.offset - 1)
    offset = given.layout.vocab.offset
    scan = input_snapshot.task_input.scan(input_snapshot.records(0), [offset, *key])
    offsets = filter_by_keys(scan.to_reader(history_filter(own)).read_all(), own).column(offset).to_numpy()
    return int(offsets.max()) if len(offsets) else None


# Records

OP_NAMES = ("+A", "-R", "-C", "+C")

RecordSelector = int | Mapping[str, Any]
"""An offset, or the columns of a key."""


def resolve_offset(given: OpenedDataset, selector: RecordSelector | Any) -> int:
    """The offset of a record that is given by its offset or its key. Raises when it cannot be read."""
    if isinstance(selector, Mapping | pa.Table):
        return _by_key(given, selector)
    try:
        offset = operator.index(selector)
    except TypeError as error:
        raise UnknownRecord(
            f"{selector!r} is neither an offset nor a key of {given.name!r}", hint="pass an integer, or {column: value}"
        ) from error
    end, purged = given.snapshot.next_offset, given.snapshot.purged_before
    if not 0 <= offset < end:
        raise UnknownRecord(
            f"dataset {given.name!r} has no record {offset}",
            hint=f"choose an offset from 0 to {end - 1}" if end else "write records first; it has none",
            dataset=given.name,
            offset=offset,
        )
    if offset < purged:
        raise RecordsPurged(
            f"record {offset} of {given.name!r} is purged",
            hint=f"choose an offset of at least {purged}",
            purged_before=purged,
        )
    return offset


def _by_key(given: OpenedDataset, key: Any) -> int:
    keys = parse_keys(key, given.snapshot, given.name)
    found = key_index_loader.with_repair(given.snapshot, {}, lambda index: located_rows(given.snapshot, keys, index))
    values = ", ".join(f"{name}={value}" for name, value in keys.to_pylist()[0].items())
    if len(found.offsets) == 0:
        raise UnknownRecord(
            f"dataset {given.name!r} has no current row with {values}",
            hint=f"run `floodmark history {given.name} COLUMN=VALUE` to see old rows, then pass an offset",
            dataset=given.name,
        )
    if len(found.offsets) > 1:
        some = ", ".join(map(str, found.offsets[:5].tolist()))
        raise UnknownRecord(
            f"{len(found.offsets)} rows of {given.name!r} have {values}",
            hint=f"pass all columns of its key, or one of the offsets {some}{' …' if len(found.offsets) > 5 else ''}",
            dataset=given.name,
            offsets=found.offsets.tolist(),
        )
    return int(found.offsets[0])


def read_records(given: OpenedDataset, offsets: Any) -> list[Record]:
    """The records at these sorted, readable offsets, for the answer."""
    table = given.records(np.asarray(offsets, np.int64))
    vocab, shown = given.layout.vocab, given.layout.shown.names
    rows = table.select([vocab.offset, vocab.op, vocab.system_time, *shown]).to_pylist()
    return [
        Record(
            given.name,
            given.id,
            row[vocab.offset],
            OP_NAMES[row[vocab.op]],
            row[vocab.system_time],
            {name: row[name] for name in shown},
        )
        for row in rows
    ]


def block_of(transaction: Transaction) -> TransactionBlock:
    return TransactionBlock(transaction.block.text, transaction.sequence_number, transaction.start, transaction.end)
