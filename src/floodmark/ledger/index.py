"""The slice index: tiered segments beside the chain, caught up when they lag and rebuilt when they are gone.

Every commit adds one small segment; eight of a size are merged into one, so a chain of n blocks has O(log n) segments
and each block is rewritten O(log n) times. Nothing here is durable or trusted: the chain is the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floodmark.chain.events import MetadataBlock, SourceState, source_state
from floodmark.chain.hashes import Multihash
from floodmark.chain.refs import BlockRef
from floodmark.chain.walk import read_block, walk_back
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.segment import (
    SLICES,
    BadSegment,
    Segment,
    decode,
    encode,
    find_state,
    merged,
    pinned_blocks,
    segment_name,
    span,
    state_key,
)
from floodmark.storage.errors import ObjectNotFound, StorageError
from floodmark.storage.store import ObjectInfo
from floodmark.storage.tiers import Tiers

FAN_OUT = 8

_log = logging.getLogger(__name__)

Decoded = tuple[Multihash, bytes, MetadataBlock]


@dataclass
class SliceIndex:
    """The index of a chain as of one block. Older segments are read when they are first needed."""

    objects: DatasetObjects
    newest: Segment
    _loaded: Cache = field(default_factory=dict, repr=False)

    @property
    def at(self) -> BlockRef:
        return self.newest.skips.at

    def definitions(self) -> dict[str, MetadataBlock]:
        """The newest block of each non-routine kind; no object is read for it."""
        return pinned_blocks(self.newest)

    def segments(self) -> Iterator[Segment]:
        """All segments, newest first. Raises `BadSegment` or `ObjectNotFound` when one is damaged or gone."""
        yield self.newest
        follows = self.newest.before
        for older in self.newest.older:
            segment = self._segment(older.name)
            # Two writers that caught up from different bases give one name to spans of different lengths.
            if segment.blocks != older.blocks or segment.skips.at.sequence_number != follows:
                self._loaded.pop(older.name, None)
                raise BadSegment(f"segment {segment.name} is not the one that goes before the next")
            follows = segment.before
            yield segment
        if follows != -1:
            raise BadSegment(f"the segments of {self.objects.folder} begin at block {follows + 1}")

    def slices(self) -> pa.Table:
        """All slices, oldest first (purged ones included)."""
        tables = [s.slices for s in self.segments()]
        return pa.concat_tables(reversed(tables)).combine_chunks() if tables else SLICES.empty_table()

    def slice_of(self, offset: int) -> pa.Table:
        """The slice that holds a record, purged or not, as one row. Reads newer segments first, and no more."""
        for segment in self.segments():
            slices = segment.slices
            if slices.num_rows and slices.column("start")[0].as_py() <= offset:
                return slices.slice(int(np.searchsorted(slices.column("end").to_numpy(), offset, side="right")), 1)
        raise ValueError(f"no record {offset}")

    def non_routine(self) -> Iterator[BlockRef]:
        """The non-routine blocks, newest first, without walking the routine ones."""
        for segment in self.segments():
            yield from reversed(segment.skips.non_routine)

    def find_state(self, state: SourceState) -> tuple[Multihash, MetadataBlock] | None:
        """The first block that brought this source state, if any."""
        key = state_key(state)
        refs = [ref for segment in self.segments() for ref in find_state(segment, key)]
        for ref in sorted(refs, key=lambda r: r.sequence_number):
            block = read_block(ref.hash, self.objects.get_block(ref.hash))
            found = source_state(block.event)  # type: ignore[arg-type]
            if found is not None and (found.source_name, found.value) == (state.source_name, state.value):
                return ref.hash, block
        return None

    def extended(self, blocks: list[Decoded]) -> SliceIndex:
        """The index after these blocks (oldest first) were added to the chain; kept beside it if the store lets us."""
        fresh = span(self.newest, blocks)
        try:
            tiered, replaced = _tiered(fresh, self._segment)
        except (BadSegment, StorageError):  # the blocks are committed: whatever happens here must not fail that
            tiered, replaced = fresh, []
        return _kept(SliceIndex(self.objects, tiered, self._loaded), replaced)

    def forget_replaced(self) -> None:
        """Let go of segments that were read before and have been merged away since."""
        for name in self._loaded.keys() - {older.name for older in self.newest.older}:
            del self._loaded[name]

    def _segment(self, name: str) -> Segment:
        if name == self.newest.name:
            return self.newest
        if name not in self._loaded:
            self._loaded[name] = decode(self.objects.store.get(self.objects.index_key(name)))
        return self._loaded[name]


Cache = dict[str, Segment]
"""Segments read before, by name: they never change."""


def load(objects: DatasetObjects, head: Multihash, data: bytes, block: MetadataBlock, cache: Cache) -> SliceIndex:
    """The index as of the head block: read if it is there, else caught up from the chain."""
    at = BlockRef(block.sequence_number, head)
    try:
        return _read(objects, segment_name(at), cache)
    except (ObjectNotFound, BadSegment):
        pass
    return _catch_up(objects, head, data, cache, _is_listed)


def repair(objects: DatasetObjects, head: Multihash, data: bytes) -> SliceIndex:
    """The index as of the head block when a segment turned out to be gone or damaged: from what is still whole."""
    return _catch_up(objects, head, data, {}, _is_whole)


def rebuild(objects: DatasetObjects, head: Multihash) -> SliceIndex:
    """The index from the chain alone, whatever lies beside it."""
    blocks = list(walk_back(objects.get_block, head))
    return _kept(SliceIndex(objects, span(None, reversed(blocks))), [_name(info) for info in objects.index_segments()])


def _catch_up(
    objects: DatasetObjects,
    head: Multihash,
    data: bytes,
    cache: Cache,
    usable: Callable[[SliceIndex, set[str]], bool],
) -> SliceIndex:
    known = {_name(info) for info in objects.index_segments()}
    lag: list[Decoded] = []
    for block_hash, raw, decoded in walk_back(_BlockReader(objects, head, data), head):
        name = segment_name(BlockRef(decoded.sequence_number, block_hash))
        base = _base(objects, name, cache) if name in known else None
        if base is not None and usable(base, known):
            return base.extended(lag[::-1]) if lag else base
        lag.append((block_hash, raw, decoded))
    return _kept(SliceIndex(objects, span(None, lag[::-1])), sorted(known))


def _base(objects: DatasetObjects, name: str, cache: Cache) -> SliceIndex | None:
    try:
        return _read(objects, name, cache)
    except (ObjectNotFound, BadSegment):
        _log.warning("index segment %s of %s is gone or damaged; going further back", name, objects.folder)
        return None


def _is_listed(base: SliceIndex, known: set[str]) -> bool:
    return all(older.name in known for older in base.newest.older)


def _is_whole(base: SliceIndex, known: set[str]) -> bool:
    try:
        return _is_listed(base, known) and all(True for _ in base.segments())
    except (ObjectNotFound, BadSegment):
        return False


@dataclass(frozen=True)
class _BlockReader:
    """Reads blocks, except the head block, which the caller has read already."""

    objects: DatasetObjects
    head: Multihash
    data: bytes

    def __call__(self, block_hash: Multihash) -> bytes:
        return self.data if block_hash == self.head else self.objects.get_block(block_hash)


def _read(objects: DatasetObjects, name: str, cache: Cache) -> SliceIndex:
    segment = decode(objects.store.get(objects.index_key(name)))
    if segment.name != name:
        raise BadSegment(f"segment {segment.name} lies under the name {name}")
    pinned_blocks(segment)
    return SliceIndex(objects, segment, cache)


def _tiered(fresh: Segment, read: Callable[[str], Segment]) -> tuple[Segment, list[str]]:
    """Merge the newest segments when a tier is full; the result and the names of what it replaces."""
    count = Tiers(FAN_OUT, FAN_OUT).due([fresh.blocks, *(older.blocks for older in fresh.older)])
    names = [older.name for older in fresh.older[: count - 1]]
    return (merged([fresh, *map(read, names)]) if names else fresh), names


def _name(info: ObjectInfo) -> str:
    return info.key.rsplit("/", 1)[-1]


def _kept(index: SliceIndex, replaced: list[str]) -> SliceIndex:
    """The same index, written beside the chain; a store that refuses only makes the next reader catch up."""
    objects = index.objects
    try:
        objects.store.put_derived(objects.index_key(index.newest.name), encode(index.newest))
        for name in replaced:
            if name != index.newest.name:
                objects.store.delete(objects.index_key(name))
    except (OSError, StorageError) as error:
        _log.warning("the index of %s could not be kept (%s); it will be caught up later", objects.folder, error)
    return index
