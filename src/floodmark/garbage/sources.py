"""What writes and runs leave: slices and blocks of commits that did not happen, copies of rows, results, parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from floodmark.chain.events import AddData, ExecuteTransform
from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot, load_at
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GarbageSource, Listing, Usage

RESULTS_SECONDS = 30 * 86_400.0
"""How long results of a stopped run stay: the next run of the step, if there is one, need not compute them again."""

RESULTS = ("info/transform/chunks",)
STAGED = ("staging", "info/transform/leaving")  # in a bucket; in a folder these are files elsewhere


@dataclass(frozen=True)
class DatasetGarbage(GarbageSource[str]):
    """Objects of a dataset, of which an unused one comes back into use only by being put again.

    So no root can move between the search and a deletion: what is put again is young, and stays.
    """

    objects: DatasetObjects

    @property
    def store(self) -> Store:
        return self.objects.store

    def root(self) -> str:
        return "unused for good"


@dataclass(frozen=True)
class ChainGarbage(DatasetGarbage):
    """Objects that blocks name. A commit that was lost may be made again, and be the same: so deletions wait for it."""

    def turn(self) -> AbstractContextManager[None]:
        return self.objects.turn()


@dataclass(frozen=True)
class Strays(ChainGarbage):
    """Slices and blocks; in use are those of the chain, but for the slices that a purge left.

    Only the chain itself decides, never an index of it. It is walked only when there is something to decide.
    """

    def listed(self) -> Iterator[ObjectInfo]:
        for name in ("data", "blocks"):
            yield from self.store.list(f"{self.objects.folder}/{name}")

    def usage(self, listing: Listing[str]) -> Usage | None:
        head = self.objects.read_head()
        if not listing.old or head is None:
            return None
        snapshot = load_at(self.objects, head, {})
        if not self._may_have_strays(snapshot, listing.objects):
            return None
        named = self._named(snapshot)
        return Usage(lambda info, _: info.key in named)

    def _may_have_strays(self, snapshot: Snapshot, listed: Sequence[ObjectInfo]) -> bool:
        """Whether there is more than the index of the chain speaks of."""
        digests = snapshot.slices.column("physical").to_pylist()
        named = {self.objects.data_key(Multihash(SHA3_256, digest)) for digest in digests}
        slices = [info for info in listed if info.key.startswith(f"{self.objects.folder}/data/")]
        more_blocks = len(listed) - len(slices) > snapshot.head_block.sequence_number + 1
        return more_blocks or any(info.key not in named for info in slices)

    def _named(self, snapshot: Snapshot) -> set[str]:
        """The keys of all blocks of the chain, and of the slices that can be read."""
        keys = set()
        for block_hash, _, block in walk_back(self.objects.get_block, snapshot.head):
            keys.add(self.objects.block_key(block_hash))
            data = block.event.new_data if isinstance(block.event, AddData | ExecuteTransform) else None
            if data is not None and data.offset_interval.end >= snapshot.purged_before:
                keys.add(self.objects.data_key(data.physical_hash))
        return keys


@dataclass(frozen=True)
class RowCopies(DatasetGarbage):
    """Uncompressed copies of slices; in use are those of slices that have had a current record since a moment."""

    snapshot: Callable[[], Snapshot]

    def listed(self) -> Iterator[ObjectInfo]:
        return self.store.list(self.objects.rows_key("").removesuffix("/"))

    def usage(self, listing: Listing[str]) -> Usage | None:
        if not listing.old or not strategy_of((snapshot := self.snapshot()).state).is_keyed:
            return None
        slices, end = snapshot.slices, _end_at(snapshot.slices, listing.oldest)
        dead = key_index.mended(snapshot, {}, lambda index: index.dead(end))
        starts, ends = (slices.column(name).to_numpy() for name in ("start", "end"))
        alive = np.searchsorted(dead, ends) - np.searchsorted(dead, starts) < ends - starts
        digests = slices.column("physical").filter(pa.array(alive)).to_pylist()
        live = {self.objects.rows_key(Multihash(SHA3_256, digest).text) for digest in digests}
        return Usage(lambda info, _: info.key in live)


def _end_at(slices: pa.Table, moment: float) -> int:
    """The offset after the last record that was there at a moment; times of blocks never go back."""
    before = int(np.searchsorted(slices.column("system_time").to_numpy(), int(moment * 10**9)))
    return 0 if before == 0 else int(slices.column("end")[before - 1].as_py())


@dataclass(frozen=True)
class Abandoned(DatasetGarbage):
    """Results or staged objects, in one folder for each writer: released when the last object in it was written."""

    parts: tuple[str, ...]

    def listed(self) -> Iterator[ObjectInfo]:
        for part in self.parts:
            yield from self.store.list(f"{self.objects.folder}/{part}")

    def usage(self, listing: Listing[str]) -> Usage:
        writers = {info.key: self._writer(info.key) for info in listing.objects}
        newest: dict[str, float] = {}
        for info in listing.objects:
            newest[writers[info.key]] = max(info.modified, newest.get(writers[info.key], 0.0))
        return Usage(lambda *_: False, {key: newest[writer] for key, writer in writers.items()})

    def _writer(self, key: str) -> str:
        """The folder of the writer that put an object."""
        folders = (f"{self.objects.folder}/{part}/" for part in self.parts)
        folder = next(folder for folder in folders if key.startswith(folder))
        return folder + key.removeprefix(folder).partition("/")[0]
