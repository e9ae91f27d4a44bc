"""Slices and blocks that are no part of their dataset: a write was killed, or lost a race, before the head moved.

Only the chain itself decides, never an index of it. It is walked only when there is something to decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.garbage.found import last_name, remove, young
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.storage.store import ObjectInfo


@dataclass(frozen=True)
class _Stored:
    """The slices and blocks of a dataset that are there, listed before its head was read."""

    slices: tuple[ObjectInfo, ...]
    blocks: tuple[ObjectInfo, ...]

    @staticmethod
    def of(objects: DatasetObjects) -> _Stored:
        listed = (tuple(objects.store.list(f"{objects.folder}/{name}")) for name in ("data", "blocks"))
        return _Stored(*listed)

    def may_have_strays(self, snapshot: Snapshot) -> bool:
        """Whether there is more than the index of the chain speaks of."""
        named = {Multihash(SHA3_256, digest).text for digest in snapshot.slices.column("physical").to_pylist()}
        more_blocks = len(self.blocks) > snapshot.head_block.sequence_number + 1
        return more_blocks or any(last_name(info) not in named for info in self.slices)


def find(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Those that no block names and that were not written since a moment; those that a purge left, too."""
    stored = _Stored.of(objects)
    head = objects.read_head()
    if head is None:
        return ()  # dropped meanwhile
    snapshot = load_at(objects, head, {})
    if not stored.may_have_strays(snapshot):
        return ()
    named = _named(snapshot)
    unnamed = (info for info in (*stored.slices, *stored.blocks) if info.key not in named)
    return tuple(info for info in unnamed if not young(info, oldest))


def collect(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Remove them while nobody commits: a write that was lost may be made again, and be the same."""
    if not find(objects, oldest):
        return ()
    with objects.turn():
        return remove(objects.store, find(objects, oldest))


def _named(snapshot: Snapshot) -> set[str]:
    """The keys of all blocks of the chain, and of the slices that can be read."""
    objects, keys = snapshot.objects, set()
    for block_hash, _, block in walk_back(objects.get_block, snapshot.head):
        keys.add(objects.block_key(block_hash))
        data = block.event.new_data if isinstance(block.event, AddData | ExecuteTransform) else None
        if data is not None and data.offset_interval.end >= snapshot.purged_before:
            keys.add(objects.data_key(data.physical_hash))
    return keys
