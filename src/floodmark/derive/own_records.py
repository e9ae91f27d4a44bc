"""The records that steps wrote to a dataset that users write to, too.

A step can write to a dataset of `Lake.create`. Its commits name a checkpoint, commits of users do not. If the step also
reads this dataset, records of its own are not changes: only those of users are.
"""

from __future__ import annotations

import numpy as np

from floodmark.chain.events import AddData, DataEvent
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import read_block
from floodmark.ledger.block_attributes import commit_part
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64, Mask


def find_own_records(snapshot: Snapshot, since: int = -1) -> I64:
    """The intervals [start, end) of records after `since` that commits of steps wrote, a row each, in order.

    Rows that a purge moved are own records if all records that they came from, after `since`, were.
    """
    slices = snapshot.all_slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    carried, blocks = slices.column("carried").to_numpy(), slices.column("block")

    def event(at: int) -> DataEvent:
        block_hash = Multihash(SHA3_256, blocks[at].as_py())
        found = read_block(block_hash, snapshot.objects.get_block(block_hash)).event
        assert isinstance(found, AddData)
        return found

    own: list[tuple[int, int]] = []
    others: list[int] = []
    at = int(np.searchsorted(ends, since + 1, side="right"))
    while at < len(starts):
        part, parts = commit_part(event(at))
        last = min(at - part + parts - 1, len(starts) - 1)
        start, end = int(starts[at]), int(ends[last])
        if carried[at]:
            is_own = all(other >= carried[at] for other in others)
        else:
            is_own = event(last).new_checkpoint is not None
        if not is_own:
            others.append(start)
        elif own and own[-1][1] == start:
            own[-1] = (own[-1][0], end)
        else:
            own.append((start, end))
        at = last + 1
    return np.array(own, np.int64).reshape(-1, 2)


def is_own(offsets: I64, own: I64) -> Mask:
    """Which offsets are in one of these intervals."""
    if len(own) == 0:
        return np.zeros(len(offsets), np.bool_)
    at = np.searchsorted(own[:, 0], offsets, side="right") - 1
    inside: Mask = (at >= 0) & (offsets < own[np.maximum(at, 0), 1])
    return inside


def count_own(own: I64, start: int, end: int) -> int:
    """The number of offsets in [start, end) that are in one of these intervals."""
    return int(np.maximum(np.minimum(own[:, 1], end) - np.maximum(own[:, 0], start), 0).sum())
