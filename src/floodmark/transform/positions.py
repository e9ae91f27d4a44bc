"""How far a run may move the positions in its inputs, and which blocks of the inputs that is.

A position is the offset of a record: everything up to and with it is done, -1 is nothing. All of this is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.chain.events import Nanos
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.ids import DatasetId
from floodmark.chain.state import InputPosition

NOTHING = -1
"""The position before the first record, and the head of an input without records."""


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


def least_watermark(watermarks: Sequence[Nanos | None], present: Nanos | None) -> Nanos | None:
    """The watermark that a complete run gives its outputs: the least of its inputs', and never back."""
    known = [w for w in watermarks if w is not None]
    if len(known) < len(watermarks) or not known:
        return present
    return min(known) if present is None else max(present, min(known))
