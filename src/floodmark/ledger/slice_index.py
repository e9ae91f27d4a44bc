"""The slice index: tiered segments derived from the chain. Missing segments are rebuilt from the chain.

Every commit adds one small segment. Eight segments of a size are merged into one, so a chain of n blocks has O(log n)
segments and each block is rewritten O(log n) times. The index is not durable: the chain is the truth.

An index as of a block says that all blocks up to it satisfy the rules of a chain. Our commits are checked when they are
planned; blocks of other programs are checked here, before they are indexed. So each block is checked once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floodmark.chain import rules
from floodmark.chain.events import ROUTINE_KINDS, MetadataBlock, SourceState, kind, source_state
from floodmark.chain.ids import BlockRef, Multihash
from floodmark.chain.state import EMPTY, ChainState, apply_block
from floodmark.chain.walk import read_block, walk_back
from floodmark.errors import ObjectNotFound, RuleBroken, StorageError
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_segment import (
    SLICES,
    BadSegment,
    SliceSegment,
    check_definitions,
    check_purge,
    decode,
    definition_blocks,
    encode,
    find_state,
    merge_segments,
    segment_name,
    span,
    state_key,
    with_replaced_files,
)
from floodmark.storage.store import ObjectInfo
from floodmark.storage.tiers import Tiers

FAN_OUT = 8

_log = logging.getLogger(__name__)

DecodedBlock = tuple[Multihash, bytes, MetadataBlock]


@dataclass
class SliceIndex:
    """The index of a chain as of one block. Older segments are read on first use."""

    objects: DatasetObjects
    newest: SliceSegment
    _loaded: SegmentCache = field(default_factory=dict, repr=False)

    @property
    def at(self) -> BlockRef:
        return self.newest.skips.at

    def state(self, block: MetadataBlock, without: Container[str] = ()) -> ChainState:
        """The state of the chain as of the index's block, which is given. Reads no more than the newest data block.

        It lacks what the definitions of the kinds `without` set.
        """
        newest = definition_blocks(self.newest, without)
        for routine in ROUTINE_KINDS - {kind(block.event)}:
            if (ref := self.newest.skips.newest.get(routine)) is not None:
                newest[routine] = read_block(ref.hash, self.objects.get_block(ref.hash))
        return ChainState.from_newest((self.at.hash, block), newest)

    def segments(self) -> Iterator[SliceSegment]:
        """All segments, newest first. Raises `BadSegment` or `ObjectNotFound` if one is damaged or missing."""
        yield self.newest
        expected = self.newest.before
        for older in self.newest.older:
            segment = self._segment(older.name)
            # Two writers that caught up from different bases give the same name to spans of different lengths.
            if segment.blocks != older.blocks or segment.skips.at.sequence_number != expected:
                self._loaded.pop(older.name, None)
                raise BadSegment(f"segment {segment.name} does not end where the next segment begins")
            expected = segment.before
            yield segment
        if expected != -1:
            raise BadSegment(f"the segments of {self.objects.folder} begin at block {expected + 1}, not at block 0")

    def slices(self) -> pa.Table:
        """All slices, oldest first (purged ones included)."""
        tables = [s.slices for s in self.segments()]
        slices = pa.concat_tables(reversed(tables)).combine_chunks() if tables else SLICES.empty_table()
        return with_replaced_files(slices, self.erased())

    def erased(self) -> pa.Table:
        """The erased records, newest erasure last, with the files that replaced the files of their slices."""
        if not self.newest.totals.erasures:
            return self.newest.erased
        return pa.concat_tables(reversed([s.erased for s in self.segments()])).combine_chunks()

    def slice_of(self, offset: int) -> pa.Table:
        """The slice that contains a record, purged or not, as one row. Reads segments from newest until it is found."""
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
        """The first block that recorded this source state, if any."""
        key = state_key(state)
        refs = [ref for segment in self.segments() for ref in find_state(segment, key)]
        for ref in sorted(refs, key=lambda r: r.sequence_number):
            block = read_block(ref.hash, self.objects.get_block(ref.hash))
            recorded = source_state(block.event)  # type: ignore[arg-type]
            if recorded is not None and (recorded.source_name, recorded.value) == (state.source_name, state.value):
                return ref.hash, block
        return None

    def extended(self, blocks: list[DecodedBlock]) -> SliceIndex:
        """The index after these valid blocks (oldest first) were added. It is stored if the store allows it."""
        fresh = span(self.newest, blocks)
        try:
            tiered, replaced = _tiered(fresh, self._segment)
        except (BadSegment, StorageError):  # the blocks are already committed, so errors here must not fail the write
            tiered, replaced = fresh, []
        return _stored(SliceIndex(self.objects, tiered, _still_needed(self._loaded, tiered)), replaced)

    @property
    def loaded(self) -> SegmentCache:
        """The older segments that were read, for a newer index of the same dataset."""
        return self._loaded

    def _segment(self, name: str) -> SliceSegment:
        if name == self.newest.name:
            return self.newest
        if name not in self._loaded:
            self._loaded[name] = decode(self.objects.store.get(self.objects.index_key(name)))
        return self._loaded[name]


SegmentCache = dict[str, SliceSegment]
"""Segments already read, by name. Segments never change. Each index has its own, so that it keeps no replaced ones."""


def load(
    objects: DatasetObjects, head: Multihash, data: bytes, block: MetadataBlock, cache: SegmentCache
) -> SliceIndex:
    """The index as of the head block: read if it is stored, else completed from the chain."""
    at = BlockRef(block.sequence_number, head)
    try:
        return _read(objects, segment_name(at), cache)
    except (ObjectNotFound, BadSegment):
        pass
    return _catch_up(objects, head, data, cache, _is_listed)


def repair(objects: DatasetObjects, head: Multihash, data: bytes) -> SliceIndex:
    """The index as of the head block after a segment was found missing or damaged: rebuilt from intact segments."""
    return _catch_up(objects, head, data, {}, _is_whole)


def rebuild(objects: DatasetObjects, head: Multihash) -> SliceIndex:
    """The index rebuilt from the chain alone. Existing segments are ignored and replaced."""
    blocks = list(walk_back(objects.get_block, head))[::-1]
    require_valid(objects, EMPTY, blocks)
    segments = [_name(info) for info in objects.index_segments()]
    return _stored(SliceIndex(objects, span(None, blocks)), segments)


def require_valid(objects: DatasetObjects, state: ChainState, blocks: Iterable[DecodedBlock]) -> None:
    """Raise `RuleBroken` if one of these blocks (oldest first) cannot follow on a chain with this state."""
    for block_hash, _, block in blocks:
        try:
            rules.check(state, block)
        except RuleBroken as error:
            message = f"{error.message} It breaks rule {error.rule.number}: block {block_hash} of {objects.folder}."
            hint = "another program added this block; `floodmark verify` lists all problems"
            if state.head is not None:
                back = f"to remove it and all blocks after it, write {state.head.hash} to {objects.head_key}"
                hint = f"{hint}; {back}"
            raise RuleBroken(message, hint=hint, **{**error.facts, "hash": block_hash}) from error
        state = apply_block(state, block_hash, block)


def _catch_up(
    objects: DatasetObjects,
    head: Multihash,
    data: bytes,
    cache: SegmentCache,
    usable: Callable[[SliceIndex, set[str]], bool],
) -> SliceIndex:
    known = {_name(info) for info in objects.index_segments()}
    lag: list[DecodedBlock] = []
    for block_hash, raw, decoded in walk_back(_BlockReader(objects, head, data), head):
        name = segment_name(BlockRef(decoded.sequence_number, block_hash))
        base = _base(objects, name, cache) if name in known else None
        if base is not None and usable(base, known):
            if not lag:
                return base
            require_valid(objects, base.state(decoded), lag[::-1])
            return base.extended(lag[::-1])
        lag.append((block_hash, raw, decoded))
    require_valid(objects, EMPTY, lag[::-1])
    return _stored(SliceIndex(objects, span(None, lag[::-1])), sorted(known))


def _base(objects: DatasetObjects, name: str, cache: SegmentCache) -> SliceIndex | None:
    try:
        return _read(objects, name, cache)
    except (ObjectNotFound, BadSegment):
        _log.warning("index segment %s of %s is missing or damaged; reading more of the chain", name, objects.folder)
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
    """Reads blocks, except the head block, whose bytes the caller already has."""

    objects: DatasetObjects
    head: Multihash
    data: bytes

    def __call__(self, block_hash: Multihash) -> bytes:
        return self.data if block_hash == self.head else self.objects.get_block(block_hash)


def _read(objects: DatasetObjects, name: str, cache: SegmentCache) -> SliceIndex:
    segment = decode(objects.store.get(objects.index_key(name)))
    if segment.name != name:
        raise BadSegment(f"segment {segment.name} is stored under the name {name}")
    check_definitions(segment)
    check_purge(segment, objects.get_block)
    return SliceIndex(objects, segment, _still_needed(cache, segment))


def _still_needed(cache: SegmentCache, newest: SliceSegment) -> SegmentCache:
    """The segments of a cache that an index with this newest segment has."""
    return {older.name: cache[older.name] for older in newest.older if older.name in cache}


def _tiered(fresh: SliceSegment, read: Callable[[str], SliceSegment]) -> tuple[SliceSegment, list[str]]:
    """Merge the newest segments if a tier is full. Returns the result and the names of the replaced segments."""
    count = Tiers(FAN_OUT, FAN_OUT).due([fresh.blocks, *(older.blocks for older in fresh.older)])
    names = [older.name for older in fresh.older[: count - 1]]
    return (merge_segments([fresh, *map(read, names)]) if names else fresh), names


def _name(info: ObjectInfo) -> str:
    return info.key.rsplit("/", 1)[-1]


def _stored(index: SliceIndex, replaced: list[str]) -> SliceIndex:
    """Store the index and return it. If the store refuses, the next reader completes it from the chain."""
    objects = index.objects
    try:
        objects.store.put_derived(objects.index_key(index.newest.name), encode(index.newest))
        for name in replaced:
            if name != index.newest.name:
                objects.store.delete(objects.index_key(name))
    except (OSError, StorageError) as error:
        _log.warning("the slice index of %s was not stored (%s); it will be rebuilt later", objects.folder, error)
    return index
