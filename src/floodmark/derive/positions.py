"""Positions in inputs: how far a run may move them, and the blocks that they are bound to.

A position is the offset of a record: everything up to and including it is processed; -1 means nothing is. Stored
positions name the block that contains this record. If that block is on the input's chain, so are all records before
it. If not, the input was replaced, for example by an older copy: see `derive/lost_records.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from floodmark.chain.events import Nanos
from floodmark.chain.ids import SHA3_256, DatasetId, Multihash
from floodmark.chain.state import InputPosition
from floodmark.ledger.position import Position

if TYPE_CHECKING:
    from floodmark.ledger.snapshot import Snapshot

NO_POSITION = -1
"""The position before the first record, and the head of an input without records."""


class PositionInput(Protocol):
    """The part of an input that positions need: its name, its id and its snapshot."""

    @property
    def name(self) -> str: ...
    @property
    def dataset_id(self) -> str: ...
    @property
    def snapshot(self) -> Snapshot: ...


def blocks_at(offsets: Mapping[str, int], inputs: Iterable[PositionInput]) -> dict[str, str]:
    """By dataset id, the blocks that contain the records at these offsets; inputs that were not read are absent."""
    blocks = {one.dataset_id: one.snapshot.block_of(offsets[one.dataset_id]) for one in inputs}
    return {dataset_id: block for dataset_id, block in blocks.items() if block is not None}


def bind_blocks(offsets: Mapping[str, int], blocks: Mapping[str, str]) -> list[Position]:
    """Combine offsets and blocks to positions; offsets without a block are left out."""
    return [Position(name, offset, blocks[name]) for name, offset in offsets.items() if name in blocks]


@dataclass(frozen=True)
class ReachedBlock:
    """A block of an input whose records are all processed, and the offset of the newest record up to this block."""

    block: Multihash
    offset: int | None
    is_head: bool = False  # then later blocks without records are processed too


def advance_positions(
    since: Mapping[str, int], heads: Mapping[str, int], pending: Mapping[str, int | None]
) -> dict[str, int]:
    """The position in each input after a run. `pending` has the first changed record of an unprocessed key.

    It is the largest offset up to which all changed keys are processed. It never moves back, because an earlier run
    processed everything below. Keys whose call failed count as processed: they are stored separately.
    """
    moved = {}
    for name, head in heads.items():
        before, first = since.get(name, NO_POSITION), pending.get(name)
        furthest = head if first is None else min(head, first - 1)
        moved[name] = max(before, furthest)
    return moved


def first_by_dataset(ids: Sequence[str], first: Sequence[int | None]) -> dict[str, int | None]:
    """By dataset id the first of these records, one of each input: a dataset may be several inputs."""
    found: dict[str, int | None] = {}
    for dataset_id, record in zip(ids, first, strict=True):
        known = [at for at in (found.get(dataset_id), record) if at is not None]
        found[dataset_id] = min(known, default=None)
    return found


def find_block(position: int, slices: pa.Table | None, head: Multihash, last_offset: int | None) -> ReachedBlock | None:
    """The newest block of an input whose records are all at or before a position; None if there is no such block.

    `slices` are all slices ever written, oldest first. They are needed only if the position is before the head.
    """
    if position >= (NO_POSITION if last_offset is None else last_offset):
        return ReachedBlock(head, last_offset, is_head=True)
    assert slices is not None
    ends = slices.column("end").to_numpy()
    whole = int(np.searchsorted(ends, position + 1, side="right"))
    if whole == 0:
        return None
    row = slices.slice(whole - 1, 1)
    return ReachedBlock(Multihash(SHA3_256, row.column("block")[0].as_py()), int(ends[whole - 1]) - 1)


def find_moves(
    before: Sequence[InputPosition], now: Mapping[DatasetId, ReachedBlock | None]
) -> dict[DatasetId, tuple[Multihash, int | None]]:
    """The block and offset of each input that moved. Inputs that did not move are absent.

    If a new block has no new records, the offset is None.
    """
    moved: dict[DatasetId, tuple[Multihash, int | None]] = {}
    for position in before:
        current = now.get(position.dataset_id)
        if current is None or current.block == position.block_hash:
            continue
        old = NO_POSITION if position.offset is None else position.offset
        new = NO_POSITION if current.offset is None else current.offset
        if new > old:
            moved[position.dataset_id] = (current.block, current.offset)
        elif new == old and current.is_head:
            moved[position.dataset_id] = (current.block, None)
    return moved


def find_chain_moves(
    before: Sequence[InputPosition], positions: Mapping[str, int], inputs: Sequence[PositionInput]
) -> dict[DatasetId, tuple[Multihash, int | None]]:
    """The input moves that an output's chain records, at the granularity of the inputs' blocks."""
    known = {position.dataset_id: position for position in before}
    old, now = [], {}
    for one in inputs:
        dataset_id, snapshot = DatasetId.parse(one.dataset_id), one.snapshot
        old.append(known.get(dataset_id, InputPosition(dataset_id, None, None)))
        position = positions[one.dataset_id]
        slices = None if position >= snapshot.next_offset - 1 else snapshot.all_slices
        now[dataset_id] = find_block(position, slices, snapshot.head, snapshot.state.last_offset)
    return find_moves(old, now)


def minimum_watermark(watermarks: Sequence[Nanos | None], present: Nanos | None) -> Nanos | None:
    """The output watermark after a complete run: the minimum of the inputs' watermarks. It never moves back."""
    known = [w for w in watermarks if w is not None]
    if len(known) < len(watermarks) or not known:
        return present
    return min(known) if present is None else max(present, min(known))
