"""A snapshot: the metadata of a dataset as of one head, loaded from at most four objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.events import DatasetKind, MetadataBlock, Nanos, SourceState
from floodmark.chain.ids import BlockRef, Multihash
from floodmark.chain.state import ChainState
from floodmark.chain.walk import read_block
from floodmark.errors import NoSchema, ObjectNotFound
from floodmark.ledger import slice_index
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout, layout_from_odf, vocabulary
from floodmark.ledger.slice_index import SegmentCache, SliceIndex
from floodmark.ledger.slice_segment import BadSegment
from floodmark.storage.arrays import I64

T = TypeVar("T")

_NO_OFFSETS: I64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class CarriedRecords:
    """The records [start, end), which repeat current rows from before a purge so that these survive it.

    A reader that has read all records below `before` has read these rows, too.
    """

    before: int
    start: int
    end: int


@dataclass
class Snapshot:
    """A dataset as of one head. Values that are read lazily belong to the same head."""

    objects: DatasetObjects
    head: Multihash
    head_block: MetadataBlock
    state: ChainState
    _index: SliceIndex
    _head_data: bytes = field(repr=False)

    @property
    def index(self) -> SliceIndex:
        return self._index

    @property
    def has_moved(self) -> bool:
        """Whether another writer has committed since."""
        return self.objects.read_head() != self.head

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get."""
        return 0 if self.state.last_offset is None else self.state.last_offset + 1

    @property
    def purged_before(self) -> int:
        """Offsets below this one are purged."""
        return self._index.newest.totals.purged_before

    @property
    def carried_end(self) -> int:
        """The offset after the last record that a purge carried; 0 without such records."""
        return self._index.newest.totals.carried_end

    @cached_property
    def carried(self) -> tuple[CarriedRecords, ...]:
        """The records that purges carried and that can be read, oldest first. Reads nothing if there are none."""
        if self.carried_end <= self.purged_before:
            return ()
        return _carried_in(self.slices)

    @cached_property
    def ever_carried(self) -> tuple[CarriedRecords, ...]:
        """The same, with records that a later purge removed."""
        return _carried_in(self.all_slices) if self.carried_end else ()

    @property
    def erasures(self) -> int:
        """How many blocks erased records."""
        return self._index.newest.totals.erasures

    @cached_property
    def erased(self) -> I64:
        """The sorted offsets of records whose values were erased. They are in the slices, but no reader sees them."""
        if not self.erasures:
            return _NO_OFFSETS
        return np.unique(self.erased_records.column("offset").to_numpy())

    @property
    def erased_records(self) -> pa.Table:
        """The erased records, with the files that had them and those that replaced these."""
        return self._with_repair(lambda index: index.erased())

    @property
    def records(self) -> int:
        """How many records can be read."""
        return self.next_offset - self.purged_before

    @property
    def size(self) -> int:
        """The bytes of all slices that can be read."""
        return self._index.newest.totals.bytes

    @cached_property
    def layout(self) -> Layout | None:
        """The columns of the dataset, None before its first write."""
        if self.state.schema is None:
            return None
        return layout_from_odf(self.state.schema, vocabulary(self.state.vocab))

    def require_layout(self, name: str) -> Layout:
        if self.layout is None:
            is_derived = self.state.dataset_kind is DatasetKind.DERIVATIVE
            raise NoSchema(
                f"dataset {name!r} has no columns yet",
                hint="run the step that writes it, or refresh it if it is a view"
                if is_derived
                else "write data to it first, or create it with schema=",
            )
        return self.layout

    @property
    def all_slices(self) -> pa.Table:
        """All slices, purged ones included, oldest first."""
        return self._with_repair(lambda index: index.slices())

    @cached_property
    def slices(self) -> pa.Table:
        """The slices that can be read, oldest first."""
        table = self.all_slices
        if self.purged_before == 0:
            return table
        return table.filter(pc.greater_equal(table.column("start"), self.purged_before))

    def block_of(self, offset: int) -> str | None:
        """The hash, in hex, of the block with a record; None without such a record. No read for the last record."""
        if offset == self.state.last_offset:
            return self._index.newest.totals.data_block
        row = self._slice_of(offset)
        return None if row is None else bytes(row.column("block")[0].as_py()).hex()

    def committed_at(self, offset: int) -> Nanos | None:
        """When the block with a record was committed; None without such a record."""
        row = self._slice_of(offset)
        return None if row is None else int(row.column("system_time")[0].as_py())

    def _slice_of(self, offset: int) -> pa.Table | None:
        return self._with_repair(lambda index: index.slice_of(offset)) if 0 <= offset < self.next_offset else None

    def find_state(self, state: SourceState) -> tuple[Multihash, MetadataBlock] | None:
        """The first block that recorded this source state, if any."""
        return self._with_repair(lambda index: index.find_state(state))

    def non_routine(self) -> Iterator[BlockRef]:
        """The non-routine blocks, newest first, without walking the routine ones."""
        yield from self._with_repair(lambda index: list(index.non_routine()))

    def _with_repair(self, read: Callable[[SliceIndex], T]) -> T:
        """Read from the index. If a part of it is missing or damaged, repair it from the chain and read again."""
        try:
            return read(self._index)
        except (BadSegment, ObjectNotFound):
            self._index = slice_index.repair(self.objects, self.head, self._head_data)
            return read(self._index)

    def after(self, blocks: list[tuple[Multihash, bytes, MetadataBlock]], state: ChainState) -> Snapshot:
        """The snapshot after these blocks were committed on top of this one."""
        head, data, block = blocks[-1]
        return Snapshot(self.objects, head, block, state, self._index.extended(blocks), data)


def _carried_in(slices: pa.Table) -> tuple[CarriedRecords, ...]:
    slices = slices.filter(pc.greater(slices.column("carried"), 0))
    columns = (slices.column(name).to_pylist() for name in ("carried", "start", "end"))
    return tuple(CarriedRecords(*row) for row in zip(*columns, strict=True))


def load_snapshot(objects: DatasetObjects, head: Multihash, cache: SegmentCache) -> Snapshot:
    """Load the snapshot of a dataset as of a head block. Raises `RuleBroken` if a block breaks a rule."""
    data = objects.get_block(head)
    block = read_block(head, data)
    index = slice_index.load(objects, head, data, block, cache)
    return Snapshot(objects, head, block, index.state(block), index, data)
