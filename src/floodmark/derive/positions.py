"""Positions in inputs: how far a run may move them, and whether an input still holds the records that were read.

A position is the offset of a record: everything up to and with it is done, -1 is nothing. Stored positions name the
block that holds this record. If that block is on the input's chain, so are all records before it; if it is not, the
input was replaced, for example by an older copy, and offsets mean other records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from floodmark.chain.events import Nanos
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import InputPosition
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.ledger.snapshot import Snapshot

NOTHING = -1
"""The position before the first record, and the head of an input without records."""


class InputDiverged(FloodmarkError):
    """An input does not hold the records that were read from it any more: other records have their offsets."""

    input: str
    dataset_id: str
    offset: int


@dataclass(frozen=True)
class Position:
    """How far a dataset was read: up to and with the record at `offset`, which `block` holds."""

    dataset_id: str
    offset: int
    block: str

    def is_on(self, chain: Snapshot) -> bool:
        """Whether the chain of the dataset has this block at this record."""
        return chain.block_of(self.offset) == self.block


class Input(Protocol):
    """An input as far as its position matters: its name, its id and its pinned snapshot."""

    @property
    def name(self) -> str: ...
    @property
    def dataset_id(self) -> str: ...
    @property
    def snapshot(self) -> Snapshot: ...


def blocks_at(offsets: Mapping[str, int], inputs: Iterable[Input]) -> dict[str, str]:
    """By dataset id the blocks that hold the records at these offsets; none where nothing was read."""
    found = {one.dataset_id: one.snapshot.block_of(offsets[one.dataset_id]) for one in inputs}
    return {dataset_id: block for dataset_id, block in found.items() if block is not None}


def bound(offsets: Mapping[str, int], blocks: Mapping[str, str]) -> list[Position]:
    """Offsets as positions, as far as their blocks are known."""
    return [Position(name, offset, blocks[name]) for name, offset in offsets.items() if name in blocks]


def check_on_chain(reader: str, positions: Iterable[Position], inputs: Iterable[Input], remedy: str) -> None:
    """`InputDiverged` if an input does not hold the records any more that `reader` has read."""
    chains = {one.dataset_id: one for one in inputs}
    for position in positions:
        given = chains.get(position.dataset_id)
        if given is None or position.is_on(given.snapshot):
            continue
        count = given.snapshot.next_offset
        now = "is another one now" if position.offset < count else f"does not exist: there are {count} records"
        raise InputDiverged(
            f"{reader} has read {given.name!r} up to record {position.offset}, which {now}",
            hint=f"{given.name!r} was probably replaced by an older copy; {remedy}",
            input=given.name,
            dataset_id=position.dataset_id,
            offset=position.offset,
        )


@dataclass(frozen=True)
class Reached:
    """A block of an input all of whose records are done, and the offset of the newest record up to there."""

    block: Multihash
    offset: int | None
    is_head: bool = False  # then blocks without records that follow are read as well


def reached(since: Mapping[str, int], heads: Mapping[str, int], pending: Mapping[str, int | None]) -> dict[str, int]:
    """The position in each input once a run is done, `pending` being the first changed record of a key that is not.

    It is the largest offset up to which all changed keys are done, and never before where it was: what lies below was
    settled by an earlier run. Keys whose call failed are done: they are kept by name.
    """
    moved = {}
    for name, head in heads.items():
        before, first = since.get(name, NOTHING), pending.get(name)
        furthest = head if first is None else min(head, first - 1)
        moved[name] = max(before, furthest)
    return moved


def block_at(position: int, slices: pa.Table | None, head: Multihash, last_offset: int | None) -> Reached | None:
    """The newest block of an input all of whose records lie at or before a position; None when there is none.

    `slices` are those ever written, oldest first, and `head` is the pinned head; only a position before it needs them.
    """
    if position >= (NOTHING if last_offset is None else last_offset):
        return Reached(head, last_offset, is_head=True)
    assert slices is not None
    ends = slices.column("end").to_numpy()
    whole = int(np.searchsorted(ends, position + 1, side="right"))
    if whole == 0:
        return None
    row = slices.slice(whole - 1, 1)
    return Reached(Multihash(SHA3_256, row.column("block")[0].as_py()), int(ends[whole - 1]) - 1)


def moves(
    before: Sequence[InputPosition], now: Mapping[DatasetId, Reached | None]
) -> dict[DatasetId, tuple[Multihash, int | None]]:
    """What the chain has to say of the inputs that moved; those that did not are absent.

    A block may be new without a record being so: then the offset stays as it was, and is not named again.
    """
    moved: dict[DatasetId, tuple[Multihash, int | None]] = {}
    for position in before:
        there = now.get(position.dataset_id)
        if there is None or there.block == position.block_hash:
            continue
        old = NOTHING if position.offset is None else position.offset
        new = NOTHING if there.offset is None else there.offset
        if new > old:
            moved[position.dataset_id] = (there.block, there.offset)
        elif new == old and there.is_head:
            moved[position.dataset_id] = (there.block, None)
    return moved


def chain_moves(
    before: Sequence[InputPosition], positions: Mapping[str, int], inputs: Sequence[Input]
) -> dict[DatasetId, tuple[Multihash, int | None]]:
    """What the chain of an output has to say of its inputs, at the granularity of their blocks."""
    known = {position.dataset_id: position for position in before}
    old, now = [], {}
    for one in inputs:
        dataset_id, snapshot = DatasetId.parse(one.dataset_id), one.snapshot
        old.append(known.get(dataset_id, InputPosition(dataset_id, None, None)))
        position = positions[one.dataset_id]
        slices = None if position >= snapshot.next_offset - 1 else snapshot.all_slices
        now[dataset_id] = block_at(position, slices, snapshot.head, snapshot.state.last_offset)
    return moves(old, now)


def least_watermark(watermarks: Sequence[Nanos | None], present: Nanos | None) -> Nanos | None:
    """The watermark that a complete run gives its outputs: the least of its inputs', and never back."""
    known = [w for w in watermarks if w is not None]
    if len(known) < len(watermarks) or not known:
        return present
    return min(known) if present is None else max(present, min(known))
