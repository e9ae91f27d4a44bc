"""The garbage that writes and runs leave in a dataset's folder, one class for each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain as both
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa

from floodmark.backup.checkpoint_notes import read_checkpoint
from floodmark.chain.events import AddData, ExecuteTransform, source_state
from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.chain.walk import walk_back
from floodmark.derive.notes import NoteGone
from floodmark.errors import BadIndex, ObjectNotFound
from floodmark.ledger.block_attributes import erasure_of, purged_before
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot, load_snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows import key_index_loader
from floodmark.rows.key_index_files import decode_index, manifest_name
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GarbageSource, Listing, ObjectUsage
from floodmark.transforms.commit import list_provenance
from floodmark.transforms.meta_entries import DamagedMeta

RESULTS_SECONDS = 30 * 86_400.0
"""How long results of a stopped run stay, so that the next run of the step need not compute them again."""

RESULT_FOLDERS = ("info/transform/chunks",)
STAGED_FOLDERS = ("staging", "info/transform/leaving")  # only in a bucket; elsewhere a staging folder has these files


@dataclass(frozen=True)
class DatasetGarbage(GarbageSource[str]):
    """Objects of a dataset that, once unused, come back into use only if they are written again.

    So no root needs to be compared between the search and a deletion: an object that is written again is young, and
    stays.
    """

    objects: DatasetObjects

    @property
    def store(self) -> Store:
        return self.objects.store

    def root(self) -> str:
        return "unused for good"


@dataclass(frozen=True)
class ChainGarbage(DatasetGarbage):
    """Objects that blocks name. Deletions take the dataset's lock, because a commit may write the same object again."""

    def turn(self) -> AbstractContextManager[None]:
        return self.objects.turn()


@dataclass(frozen=True)
class StrayGarbage(ChainGarbage):
    """Slices and blocks that the chain does not use: those of lost commits, and slices that a purge removed.

    Only the chain itself decides, never an index of it. It is walked only if there may be an unused object.
    """

    def listed(self) -> Iterator[ObjectInfo]:
        for name in ("data", "blocks"):
            yield from self.store.list(f"{self.objects.folder}/{name}")

    def usage(self, listing: Listing[str]) -> ObjectUsage | None:
        head = self.objects.read_head()
        if not listing.old or head is None:
            return None
        snapshot = load_snapshot(self.objects, head, {})
        if not self._may_have_strays(snapshot, listing.objects):
            return None
        named = self._named_objects(head)
        return ObjectUsage(lambda info, _: info.key in named)

    def _may_have_strays(self, snapshot: Snapshot, listed: Sequence[ObjectInfo]) -> bool:
        """Whether there are more objects than the index of the chain names."""
        digests = snapshot.slices.column("physical").to_pylist()
        named = {self.objects.data_key(Multihash(SHA3_256, digest)) for digest in digests}
        slices = [info for info in listed if info.key.startswith(f"{self.objects.folder}/data/")]
        more_blocks = len(listed) - len(slices) > snapshot.head_block.sequence_number + 1
        return more_blocks or any(info.key not in named for info in slices)

    def _named_objects(self, head: Multihash) -> set[str]:
        """The keys of all blocks of the chain, and of the slices that are not purged."""
        keys, rewritten = set(), dict[int, str]()
        purged = 0
        for block_hash, _, block in walk_back(self.objects.get_block, head):  # newest first: purges before their slices
            keys.add(self.objects.block_key(block_hash))
            event = block.event
            if (erasure := erasure_of(event)) is not None:
                for one in erasure.slices:
                    rewritten.setdefault(one.start, one.after)
            if not isinstance(event, AddData | ExecuteTransform):
                continue
            if (state := source_state(event)) is not None:
                purged = max(purged, purged_before(state))
            data = event.new_data
            if data is not None and data.offset_interval.end >= purged:
                after = rewritten.get(data.offset_interval.start)
                keys.add(self.objects.data_key(data.physical_hash if after is None else Multihash.parse(after)))
        return keys


@dataclass(frozen=True)
class RowCopyGarbage(DatasetGarbage):
    """Uncompressed copies of slices. A copy is in use while its slice has a live record, and for the grace period."""

    snapshot: Callable[[], Snapshot]

    def listed(self) -> Iterator[ObjectInfo]:
        return self.store.list(self.objects.rows_key("").removesuffix("/"))

    def usage(self, listing: Listing[str]) -> ObjectUsage | None:
        if not listing.old or not strategy_of((snapshot := self.snapshot()).state).is_keyed:
            return None
        slices, end = snapshot.slices, _end_at(snapshot.slices, listing.keep_since)
        dead = key_index_loader.with_repair(snapshot, {}, lambda index: index.dead(end))
        starts, ends = (slices.column(name).to_numpy() for name in ("start", "end"))
        alive = np.searchsorted(dead, ends) - np.searchsorted(dead, starts) < ends - starts
        digests = slices.column("physical").filter(pa.array(alive)).to_pylist()
        live = {self.objects.rows_key(Multihash(SHA3_256, digest).text) for digest in digests}
        return ObjectUsage(lambda info, _: info.key in live)


def _end_at(slices: pa.Table, moment: float) -> int:
    """The offset after the last record that existed at a time; times of blocks never go back."""
    before = int(np.searchsorted(slices.column("system_time").to_numpy(), int(moment * 10**9)))
    return 0 if before == 0 else int(slices.column("end")[before - 1].as_py())


@dataclass(frozen=True)
class AbandonedObjects(DatasetGarbage):
    """Results or staged objects, in one folder per writer. They are as old as the newest object in the folder."""

    parts: tuple[str, ...]

    def listed(self) -> Iterator[ObjectInfo]:
        for part in self.parts:
            yield from self.store.list(f"{self.objects.folder}/{part}")

    def usage(self, listing: Listing[str]) -> ObjectUsage:
        writers = {info.key: self._writer(info.key) for info in listing.objects}
        newest: dict[str, float] = {}
        for info in listing.objects:
            newest[writers[info.key]] = max(info.modified, newest.get(writers[info.key], 0.0))
        return ObjectUsage(lambda *_: False, {key: newest[writer] for key, writer in writers.items()})

    def _writer(self, key: str) -> str:
        """The folder of the writer that wrote an object."""
        folders = (f"{self.objects.folder}/{part}/" for part in self.parts)
        folder = next(folder for folder in folders if key.startswith(folder))
        return folder + key.removeprefix(folder).partition("/")[0]


@dataclass(frozen=True)
class KeyIndexGarbage(DatasetGarbage):
    """The manifests and files of a dataset's key index.

    In use are the newest manifest of a block on the chain, and its files: the index continues from them. Every other
    manifest was released when the next one was written.
    """

    snapshot: Callable[[], Snapshot]

    def listed(self) -> Iterator[ObjectInfo]:
        yield from self.objects.key_files()
        yield from self.objects.key_manifests()

    def usage(self, listing: Listing[str]) -> ObjectUsage | None:
        """None if a manifest that is or recently was in use cannot be read."""
        if not listing.old:
            return None
        slices = self.snapshot().all_slices
        chain = {
            self.objects.key_manifest_key(manifest_name(at))
            for at in zip(*(slices.column(name).to_pylist() for name in ("sequence_number", "block")), strict=True)
        }
        on_chain = sorted((info for info in listing.objects if info.key in chain), key=lambda info: info.name)
        if not on_chain:
            return None  # the next use of the index rebuilds it and removes old files
        folder = self.objects.key_manifest_key("")
        released = {info.key: info.modified for info in listing.objects if info.key.startswith(folder)}
        released |= {older.key: newer.modified for older, newer in pairwise(on_chain)}
        staying = {key for key, since in released.items() if since >= listing.keep_since} | {on_chain[-1].key}
        try:
            named = {
                name for key in staying for name in decode_index(key.removeprefix(folder), self.store.get(key)).names
            }
        except (BadIndex, ObjectNotFound):
            return None  # damaged, or changed by a concurrent commit
        live = staying | {self.objects.key_file_key(name) for name in named}
        return ObjectUsage(lambda info, _: info.key in live, released)


@dataclass(frozen=True)
class MetaGarbage(ChainGarbage):
    """The checkpoints of a dataset's chain, and their run provenance. In use are those that its blocks name."""

    def listed(self) -> Iterator[ObjectInfo]:
        yield from self.objects.checkpoints()
        yield from list_provenance(self.objects)

    def usage(self, listing: Listing[str]) -> ObjectUsage | None:
        """None if a manifest of the chain cannot be read: the files that it names are not known."""
        head = self.objects.read_head()
        if not listing.old or head is None:
            return None
        existing = {info.name for info in listing.objects}
        try:
            newest = _needed_names(self.objects, islice(_named_checkpoints(self.objects, head), 1), existing)
            if all(info.name in newest for info in listing.old):
                return None
            needed = _needed_names(self.objects, _named_checkpoints(self.objects, head), existing)
        except DamagedMeta:
            return None
        return ObjectUsage(lambda info, _: info.name in needed)


def _named_checkpoints(objects: DatasetObjects, head: Multihash) -> Iterator[Multihash]:
    """The checkpoints that the blocks of a chain name, newest first."""
    for _, _, block in walk_back(objects.get_block, head):
        event = block.event
        if isinstance(event, AddData | ExecuteTransform) and event.new_checkpoint is not None:
            yield event.new_checkpoint.physical_hash


def _needed_names(objects: DatasetObjects, named: Iterable[Multihash], existing: set[str]) -> set[str]:
    """The names of these checkpoints, and of the files that the existing ones name."""
    checkpoints = {digest.text: digest for digest in named}
    files = (_named_files(objects, digest) for name, digest in checkpoints.items() if name in existing)
    return set(both(checkpoints, both.from_iterable(files)))


def _named_files(objects: DatasetObjects, digest: Multihash) -> frozenset[str]:
    try:
        content = read_checkpoint(objects, digest)
    except NoteGone:
        return frozenset()  # the checkpoint was removed; only its run provenance is left
    return content.files | content.retired
