"""A snapshot: everything known about a dataset as of one head, read from at most four objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.events import ROUTINE_KINDS, DatasetKind, MetadataBlock, Nanos, SourceState, kind
from floodmark.chain.hashes import Multihash
from floodmark.chain.refs import BlockRef
from floodmark.chain.state import ChainState
from floodmark.chain.walk import read_block
from floodmark.ledger import index as slice_index
from floodmark.ledger.errors import NoSchema
from floodmark.ledger.index import Cache, SliceIndex
from floodmark.ledger.layout import Layout, from_odf, vocabulary
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.segment import BadSegment
from floodmark.storage.errors import ObjectNotFound

T = TypeVar("T")


@dataclass
class Snapshot:
    """A dataset as of one head. What is read lazily belongs to the same head."""

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
        """Whether others have committed since."""
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
        return from_odf(self.state.schema, vocabulary(self.state.vocab))

    def require_layout(self, name: str) -> Layout:
        if self.layout is None:
            is_derived = self.state.dataset_kind is DatasetKind.DERIVATIVE
            raise NoSchema(
                f"dataset {name!r} has no columns yet",
                hint="run the step that makes it, or refresh it if it is a view"
                if is_derived
                else "write data to it first, or create it with schema=",
            )
        return self.layout

    @property
    def all_slices(self) -> pa.Table:
        """The slices ever written, purged ones included, oldest first."""
        return self._mended(lambda index: index.slices())

    @cached_property
    def slices(self) -> pa.Table:
        """The slices that can be read, oldest first."""
        table = self.all_slices
        if self.purged_before == 0:
            return table
        return table.filter(pc.greater_equal(table.column("start"), self.purged_before))

    def block_of(self, offset: int) -> str | None:
        """The hash, in hex, of the block that holds a record; None if there is none. Free for the last record."""
        if offset == self.state.last_offset:
            return self._index.newest.totals.data_block
        found = self._slice_of(offset)
        return None if found is None else bytes(found.column("block")[0].as_py()).hex()

    def committed_at(self, offset: int) -> Nanos | None:
        """When the block that holds a record was committed; None if there is no such record."""
        found = self._slice_of(offset)
        return None if found is None else int(found.column("system_time")[0].as_py())

    def _slice_of(self, offset: int) -> pa.Table | None:
        return self._mended(lambda index: index.slice_of(offset)) if 0 <= offset < self.next_offset else None

    def find_state(self, state: SourceState) -> tuple[Multihash, MetadataBlock] | None:
        """The first block that brought this source state, if any."""
        return self._mended(lambda index: index.find_state(state))

    def non_routine(self) -> Iterator[BlockRef]:
        """The non-routine blocks, newest first, without walking the routine ones."""
        yield from self._mended(lambda index: list(index.non_routine()))

    def _mended(self, ask: Callable[[SliceIndex], T]) -> T:
        """Ask the index; when a part of it is gone or damaged, mend it from the chain and ask again."""
        try:
            return ask(self._index)
        except (BadSegment, ObjectNotFound):
            self._index = slice_index.repair(self.objects, self.head, self._head_data)
            return ask(self._index)

    def after(self, blocks: list[tuple[Multihash, bytes, MetadataBlock]], state: ChainState) -> Snapshot:
        """The snapshot after these blocks were committed on top of this one."""
        head, data, block = blocks[-1]
        return Snapshot(self.objects, head, block, state, self._index.extended(blocks), data)


def load_at(objects: DatasetObjects, head: Multihash, cache: Cache) -> Snapshot:
    """The dataset as of a given head block."""
    data = objects.get_block(head)
    block = read_block(head, data)
    index = slice_index.load(objects, head, data, block, cache)
    newest = dict(index.definitions())
    for routine in ROUTINE_KINDS:
        ref = index.newest.skips.newest.get(routine)
        if routine == kind(block.event):
            newest[routine] = block
        elif ref is not None:
            newest[routine] = read_block(ref.hash, objects.get_block(ref.hash))
    return Snapshot(objects, head, block, ChainState.from_newest((head, block), newest), index, data)
