"""Back up a lake, or some of its datasets, into a folder or bucket that is a lake of its own afterwards.

The order makes it safe to stop at any moment. First a consistent snapshot is pinned, then its objects are copied, then
the manifest is swapped: from then on the backup is the new one. The heads, names and catalogs at the destination follow
from the manifest, and a restore does not read them. What the backup no longer needs is deleted last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from floodmark.backup import manifest as manifests
from floodmark.backup.copying import Copy, copy_all, find_missing, list_datasets
from floodmark.backup.install import Change, install_datasets, install_names
from floodmark.backup.inventory import FOLDERS, DatasetContent, Required, read_content
from floodmark.backup.manifest import (
    MANIFEST_KEY,
    BackedObject,
    DatasetRow,
    Inventory,
    Manifest,
    encode_inventory,
    encode_manifest,
    entry_ids,
    inventory_key,
    prune_inventories,
)
from floodmark.backup.snapshot import LakeSnapshot, Moved, PinnedDataset, pin
from floodmark.chain.ids import DatasetId, Multihash
from floodmark.engine.session import Runtime
from floodmark.errors import (
    BadBackup,
    ChainError,
    CommitConflict,
    NewerData,
    ObjectNotFound,
    UnreadableColumn,
)
from floodmark.ledger import names
from floodmark.ledger.create import dataset_objects
from floodmark.storage.pointer import Pointer, attempt_numbers
from floodmark.storage.store import Store

_TRIES = 20
YOUNG_SECONDS = 86_400.0
"""A younger object that an unfinished backup left is not copied again. gc spares it for longer."""


@dataclass(frozen=True)
class BackupReport:
    """What a backup has, and what this run copied."""

    source: str
    destination: str
    datasets: tuple[str, ...]
    objects: int
    bytes: int
    copied_objects: int
    copied_bytes: int


@dataclass
class _Last:
    """The last backup at the destination."""

    manifest: Manifest | None
    content: bytes | None
    store: Store
    _loaded: dict[DatasetId, Inventory | None] = field(default_factory=dict)

    def inventory(self, dataset_id: DatasetId) -> Inventory | None:
        """The inventory of a dataset; None if it was not backed up, or its inventory is damaged."""
        if dataset_id not in self._loaded:
            row = None if self.manifest is None else self.manifest.datasets.get(dataset_id)
            try:
                found = None if row is None else manifests.load_inventory(self.store, dataset_id, row)
            except BadBackup:
                found = None  # it is written again
            self._loaded[dataset_id] = found
        return self._loaded[dataset_id]


@dataclass(frozen=True)
class _Copied:
    """A snapshot whose objects are all at the destination, and the objects that this run copied."""

    snapshot: LakeSnapshot
    inventories: Mapping[DatasetId, Inventory]
    copied: Mapping[str, BackedObject]


def create_backup(
    source: Store, destination: Store, wanted: Sequence[str], runtime: Runtime, *, replace_newer: bool = False
) -> BackupReport:
    """Make a backup, or bring it up to date. `NewerData` if the destination has data that the source does not have."""
    _refuse_nested(source, destination)
    with destination.turn(MANIFEST_KEY):
        last = _Last(*manifests.read_manifest(destination), destination)
        _refuse_lake(destination, last.manifest)
        copying = _Copying(source, destination, last, runtime.clock() / 10**9 - YOUNG_SECONDS, replace_newer)
        done = copying.run(wanted)
        changes = [Change(one, one.folder(destination).head.read()) for one in done.inventories.values()]
        manifest = _next_manifest(source, destination, runtime, bool(wanted), last.manifest, done)
        _prove_complete(destination, done.inventories)
        if not Pointer(destination, MANIFEST_KEY).swap(last.content, encode_manifest(manifest), lambda _: False):
            raise CommitConflict(f"another backup into {destination.url} finished first", hint="run it again")
        install_datasets(destination, changes)
        install_names(destination, done.snapshot.names, manifest.dropped)
        copying.delete_unneeded(done.inventories)
        prune_inventories(destination, manifest)
    return BackupReport(
        source=source.url,
        destination=destination.url,
        datasets=tuple(entry.name for entry in done.snapshot.names),
        objects=sum(1 for one in done.inventories.values() for _ in one.objects),
        bytes=sum(one.size for one in done.inventories.values()),
        copied_objects=len(done.copied),
        copied_bytes=sum(one.size for one in done.copied.values()),
    )


def _refuse_nested(source: Store, destination: Store) -> None:
    one, other = f"{source.url.rstrip('/')}/", f"{destination.url.rstrip('/')}/"
    if one.startswith(other) or other.startswith(one):
        raise BadBackup(
            f"{destination.url} cannot be a backup of {source.url}: one is inside the other",
            hint="name a folder or bucket outside of the lake, best on another disk",
            url=destination.url,
        )


def _refuse_lake(destination: Store, manifest: Manifest | None) -> None:
    if manifest is None and any(True for _ in names.entries(destination, lambda _: None)):
        raise BadBackup(
            f"{destination.url} is a lake, and not a backup",
            hint="name a new folder, or the folder of an earlier backup",
            url=destination.url,
        )


class _Copying:
    """Copies a consistent snapshot of a lake. If an object is gone before it was copied, a newer snapshot follows."""

    def __init__(self, source: Store, destination: Store, last: _Last, young: float, replace_newer: bool) -> None:
        self._source, self._destination, self._last = source, destination, last
        self._young, self._replace_newer = young, replace_newer
        self._present = list_datasets(destination)
        self._copied: dict[str, BackedObject] = {}
        self._known_gaps: set[tuple[Multihash, Multihash]] = set()

    def run(self, wanted: Sequence[str]) -> _Copied:
        before, reason = None, ""
        for _ in attempt_numbers(_TRIES):
            snapshot = pin(self._source, wanted, self._last.inventory)
            try:
                inventories = {one: self._copy_dataset(pinned) for one, pinned in snapshot.datasets.items()}
                self._check_inputs(inventories)
            except Moved as moved:
                if snapshot == before and str(moved) == reason:
                    raise BadBackup(
                        f"{self._source.url} was not backed up: {reason}",
                        hint="`floodmark verify` lists what is missing or damaged; repair or drop that dataset",
                    ) from moved
                before, reason = snapshot, str(moved)
                continue
            return _Copied(snapshot, inventories, self._copied)
        raise CommitConflict(
            f"{self._source.url} was not backed up: {reason}; {_TRIES} snapshots were replaced while they were copied",
            hint="try again when fewer datasets change; what was copied is not copied again",
        )

    def _copy_dataset(self, pinned: PinnedDataset) -> Inventory:
        """Copy what is new of a dataset, and store its inventory."""
        last = self._last.inventory(pinned.id)
        folder = dataset_objects(self._source, pinned.id).folder
        try:
            content = read_content(self._source, pinned, last)
            self._refuse_newer(content, last)
            known = {} if last is None else {one.path: one for one in last.objects}
            tasks, have = [], {}
            for required in content.objects:
                if (there := self._find(folder, required, known)) is None:
                    tasks.append(Copy(folder, required))
                else:
                    have[required.path] = there
            for copied in copy_all(self._source, self._destination, tasks):
                have[copied.path] = self._copied[f"{folder}/{copied.path}"] = copied
        except ObjectNotFound as error:
            raise Moved(f"{error.key} is missing") from error
        except (UnreadableColumn, ChainError) as error:
            raise Moved(error.message) from error
        inventory = content.inventory(have[one.path] for one in content.others)
        digest, data = encode_inventory(inventory)
        if last is None or last.digest != digest:
            self._destination.put_if_absent(inventory_key(digest), data)
        return replace(inventory, digest=digest)

    def _find(self, folder: str, required: Required, known: Mapping[str, BackedObject]) -> BackedObject | None:
        """The object, if the destination certainly has it: it is part of the last backup, or young and complete."""
        key = f"{folder}/{required.path}"
        if (copied := self._copied.get(key)) is not None:
            return copied
        info = self._present.get(folder, {}).get(key)
        if info is None or (required.size is not None and info.size != required.size):
            return None
        if (last := known.get(required.path)) is not None and last.size == info.size:
            return last
        if required.digest is None or info.modified < self._young:
            return None
        return BackedObject(required.path, info.size, required.digest)

    def _refuse_newer(self, content: DatasetContent, last: Inventory | None) -> None:
        """Refuse to replace blocks that the source does not have: they may be the only copy."""
        pinned, blocks = content.pinned, content.chain.blocks
        objects = dataset_objects(self._destination, pinned.id)
        try:
            present = objects.read_head()
        except ChainError:
            present = None
        heads = [head for head in (present, last and last.head) if head is not None]
        if not self._replace_newer and any(head.digest not in blocks for head in heads):
            raise NewerData(
                f"the backup {self._destination.url} has newer or other blocks of dataset {pinned.id} than "
                f"{self._source.url}, which was perhaps restored from an older copy",
                hint="back up into a new folder, or replace them with --yes or replace=True",
                dataset_id=str(pinned.id),
            )

    def _check_inputs(self, inventories: Mapping[DatasetId, Inventory]) -> None:
        """Check that no dataset is ahead of its inputs. If it stays so, the lake itself is in this state."""
        for one in inventories.values():
            for read in one.reads:
                given = inventories.get(read.dataset_id)
                if given is None or all(block in given.blocks for block in read.blocks):
                    continue
                if (one.head, given.head) not in self._known_gaps:
                    self._known_gaps.add((one.head, given.head))
                    raise Moved(f"dataset {one.dataset_id} is ahead of its input {given.dataset_id}")

    def delete_unneeded(self, inventories: Mapping[DatasetId, Inventory]) -> None:
        """Delete what the last backup had and this one does not need: purged, erased and replaced objects."""
        for inventory in inventories.values():
            folder = inventory.folder(self._destination).folder
            needed = {f"{folder}/{one.path}" for one in inventory.objects}
            copied_folders = tuple(f"{folder}/{name}/" for name in FOLDERS)
            for key, info in self._present.get(folder, {}).items():
                if key.startswith(copied_folders) and key not in needed and self._destination.stat(key) == info:
                    self._destination.delete(key)


def _next_manifest(
    source: Store, destination: Store, runtime: Runtime, is_partial: bool, last: Manifest | None, done: _Copied
) -> Manifest:
    """The manifest of this backup. A backup of some datasets keeps the others as they are."""
    new = done.snapshot.names
    taken = {entry.name.lower() for entry in new}
    others = () if last is None else tuple(e for e in last.names if e.name.lower() not in taken)
    moved = {entry.id for entry in new}
    kept = tuple(entry for entry in others if is_partial and entry.id not in moved)
    gone = [entry for entry in (*others, *(() if last is None else last.dropped)) if entry not in kept]
    rows = {} if last is None else dict(last.datasets)
    rows |= {one: DatasetRow(inventory.head, inventory.digest) for one, inventory in done.inventories.items()}
    entries = (*new, *kept)
    named = set(entry_ids(entries))
    present = {entry.name.lower(): entry for entry in names.entries(destination, lambda _: None)}
    return Manifest(
        source.url,
        runtime.clock(),
        tuple(sorted(entries, key=lambda entry: entry.name.lower())),
        {one: row for one, row in rows.items() if one in named},
        tuple(entry for entry in gone if present.get(entry.name.lower()) == entry and entry.name.lower() not in taken),
    )


def _prove_complete(destination: Store, inventories: Mapping[DatasetId, Inventory]) -> None:
    """Check that the destination has every object, by name and size: another program may have removed some."""
    present = list_datasets(destination)
    for inventory in inventories.values():
        if (missing := find_missing(destination, inventory, present)) is not None:
            raise BadBackup(
                f"{missing} was removed from {destination.url} during the backup",
                hint="run it again: it copies what is missing",
                key=missing,
            )
