"""Datasets opened for provenance: the transaction of a record, the definitions in force then, and records by offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from floodmark.chain.events import (
    AddData,
    DataEvent,
    ExecuteTransform,
    MetadataBlock,
    MetadataEvent,
    SetDataSchema,
    SourceState,
    source_state,
)
from floodmark.chain.ids import SHA3_256, DatasetId, Multihash
from floodmark.chain.walk import read_block, walk_back
from floodmark.dataset import Dataset
from floodmark.derive.inputs import InputSnapshot, LakeLike
from floodmark.derive.row_search import read_rows
from floodmark.ledger import names
from floodmark.ledger.block_attributes import ERASE_SOURCE, PURGE_SOURCE, commit_part
from floodmark.ledger.commit import ends_transaction
from floodmark.ledger.create import dataset_objects
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.position import has_records_of
from floodmark.ledger.schema import Layout, layout_from_odf, vocabulary
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64

Event = TypeVar("Event")


@dataclass(frozen=True)
class Transaction:
    """Records that became visible together: the records [start, end), and the last block."""

    block: Multihash
    sequence_number: int
    system_time: int  # nanoseconds
    start: int
    end: int
    event: DataEvent

    @property
    def is_write(self) -> bool:
        """Whether a user or a source wrote it. Steps may write to the same dataset; their commits name a checkpoint."""
        return isinstance(self.event, AddData) and self.event.new_checkpoint is None


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset as of one head."""

    name: str
    dataset: Dataset = field(repr=False)
    snapshot: Snapshot = field(repr=False)

    @property
    def id(self) -> str:
        return str(self.snapshot.state.dataset_id)

    @cached_property
    def layout(self) -> Layout:
        return self.snapshot.require_layout(self.name)

    @cached_property
    def slices(self) -> pa.Table:
        """All slices, including purged ones."""
        return self.snapshot.all_slices

    @cached_property
    def _ends(self) -> I64:
        ends: I64 = self.slices.column("end").to_numpy()
        return ends

    def as_of(self, position: int) -> InputSnapshot:
        """The dataset without the records after this one."""
        stop = min(position + 1, self.snapshot.next_offset)
        return InputSnapshot(self.name, self.id, self.snapshot, self._index, stop)

    @cached_property
    def _index(self) -> dict[str, Any]:
        return {}

    # Transactions

    def transaction_at(self, offset: int) -> Transaction:
        """The transaction that wrote a record."""
        return self._transaction(int(np.searchsorted(self._ends, offset, side="right")))

    def transactions(self) -> Iterator[Transaction]:
        """All transactions that wrote records, oldest first."""
        at = 0
        while at < len(self._ends):
            found = self._transaction(at)
            yield found
            at = int(np.searchsorted(self._ends, found.end, side="left")) + 1

    @property
    def newest(self) -> Transaction | None:
        """The newest transaction of a derived dataset, with or without records; None before the first."""
        for block_hash, _, block in walk_back(self.snapshot.objects.get_block, self.snapshot.head):
            if isinstance(block.event, ExecuteTransform):
                end = self.snapshot.next_offset
                return Transaction(block_hash, block.sequence_number, block.system_time, end, end, block.event)
        return None

    def _transaction(self, at: int) -> Transaction:
        first, last = self._part_of(at)
        block_hash, block = self._block(last)
        assert isinstance(block.event, AddData | ExecuteTransform)
        start = int(self.slices.column("start")[first].as_py())
        end = int(self._ends[last])
        return Transaction(block_hash, block.sequence_number, block.system_time, start, end, block.event)

    def _part_of(self, at: int) -> tuple[int, int]:
        """The first and the last slice of the transaction that has this slice."""
        _, block = self._block(at)
        if isinstance(block.event, AddData):
            part, parts = commit_part(block.event)
            return at - part, at - part + parts - 1
        first, last = at, at
        while first and not self._ends_one(first - 1):
            first -= 1
        while last < len(self._ends) - 1 and not self._ends_one(last):
            last += 1
        return first, last

    def _ends_one(self, at: int) -> bool:
        event = self._block(at)[1].event
        return not isinstance(event, ExecuteTransform) or ends_transaction(event)

    def _block(self, at: int) -> tuple[Multihash, MetadataBlock]:
        block_hash = Multihash(SHA3_256, self.slices.column("block")[at].as_py())
        return block_hash, self._read(block_hash)

    def _read(self, block_hash: Multihash) -> MetadataBlock:
        if block_hash not in self._blocks:
            self._blocks[block_hash] = read_block(block_hash, self.snapshot.objects.get_block(block_hash))
        return self._blocks[block_hash]

    @cached_property
    def _blocks(self) -> dict[Multihash, MetadataBlock]:
        return {}

    def new_source_state(self, transaction: Transaction) -> SourceState | None:
        """The source state that a write set, None when it only repeats the state of an earlier block."""
        state = source_state(transaction.event)
        if state is None or state.source_name in (PURGE_SOURCE, ERASE_SOURCE):
            return None
        parts = commit_part(transaction.event)[1]
        seen = 0
        for _, _, block in walk_back(self.snapshot.objects.get_block, transaction.block):
            if isinstance(block.event, AddData):
                if seen >= parts:
                    return None if block.event.new_source_state == state else state
                seen += 1
        return state

    # Definitions in force

    def in_force(self, kind: type[Event], sequence_number: int) -> Event | None:
        """The newest definition of a kind at or before a block."""
        for ref in self._definitions:
            if ref.sequence_number <= sequence_number and isinstance(event := self._read(ref.hash).event, kind):
                return event
        return None

    @cached_property
    def _definitions(self) -> list[Any]:
        return list(self.snapshot.non_routine())

    def has_records_of(self, block: str) -> bool:
        """Whether it has all records up to a block that was once on its chain."""
        if block not in self._known_blocks:
            self._known_blocks[block] = has_records_of(self.snapshot, Multihash.parse(block))
        return self._known_blocks[block]

    @cached_property
    def _known_blocks(self) -> dict[str, bool]:
        return {}

    def sequence_number_of(self, block: str) -> int:
        """The number of a block of this chain, by its hash."""
        return self._read(Multihash.parse(block)).sequence_number

    @cached_property
    def definitions(self) -> list[MetadataEvent]:
        """All definitions on the chain, newest first."""
        return [self._read(ref.hash).event for ref in self._definitions]

    def layout_at(self, sequence_number: int) -> Layout | None:
        """The layout that was in force at a block, None before the first schema."""
        found = self.in_force(SetDataSchema, sequence_number)
        columns = None if found is None else found.columns
        if columns is None:
            return None
        return layout_from_odf(columns, vocabulary(self.snapshot.state.vocab))

    # Records

    def records(self, offsets: I64) -> pa.Table:
        """The records at these sorted offsets, live or dead, with all columns."""
        given = self.as_of(self.snapshot.next_offset - 1)
        return read_rows(given, offsets, self.layout.read_schema.names, given.records(0)).rows


@dataclass(frozen=True)
class OpenedDatasets:
    """The datasets of a lake. Each is opened once, so an answer uses one snapshot of each."""

    lake: LakeLike
    _opened: dict[str, OpenedDataset | None] = field(default_factory=dict, repr=False)

    def named(self, name: str) -> OpenedDataset:
        """A dataset by its name."""
        entry = names.require_entry(self.lake.store, name)
        found = self.of_id(str(entry.id), entry.name)
        return found if found is not None else self._open(entry.name, entry.id)

    def of_id(self, dataset_id: str, alias: str) -> OpenedDataset | None:
        """A dataset by its id, also if it was renamed; None when it was dropped."""
        if dataset_id not in self._opened:
            found = DatasetId.parse(dataset_id)
            there = dataset_objects(self.lake.store, found).read_head() is not None
            name = self._names.get(dataset_id, alias)
            self._opened[dataset_id] = self._open(name, found) if there else None
        return self._opened[dataset_id]

    def all(self) -> list[OpenedDataset]:
        """All datasets that have a name."""
        found = [self.of_id(dataset_id, name) for dataset_id, name in self._names.items()]
        return [one for one in found if one is not None]

    def _open(self, name: str, dataset_id: DatasetId) -> OpenedDataset:
        dataset = Dataset.open(Ledger(name, dataset_objects(self.lake.store, dataset_id), self.lake.runtime))
        return OpenedDataset(name, dataset, dataset.snapshot())

    @cached_property
    def _names(self) -> dict[str, str]:
        return {str(entry.id): entry.name for entry in names.entries(self.lake.store)}
