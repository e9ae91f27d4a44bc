"""Collecting garbage: checkpoints and files that no column needs any more, once they are old enough.

What is young stays, whatever it is: a backfill that is running now names its files only when it commits them. So does
what was in use until lately: somebody may still read it. Values of purged records go at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import ROWADDR
from floodmark.compute.checkpoints.keys import DATA, ParsedKey, Prefix, hash_text, parse_key
from floodmark.compute.checkpoints.legacy import range_prefix
from floodmark.compute.checkpoints.paths import Group
from floodmark.compute.checkpoints.store import CheckpointInfo, CheckpointStore
from floodmark.compute.errors import BadCheckpoint
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import Catalog
from floodmark.compute.stored.manifest import Manifest
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.purge import drop_purged, find_left, is_of_another
from floodmark.ledger.keys.records import I64
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo

GRACE_NANOS = 7 * 86_400 * 10**9
"""How long what nobody names stays."""

_AT_ONCE = 256
"""So many deletions between two looks at the catalog."""

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Inventory:
    """Everything that is stored beside the records, and what of it is in use as of a catalog."""

    catalog: Catalog
    files: tuple[ObjectInfo, ...]  # manifests, values, errors, and what lies among checkpoints and is none
    checkpoints: tuple[CheckpointInfo, ...]
    named: frozenset[str]  # the files that the catalog and its manifests name, or did until lately
    needed: frozenset[str]  # the checkpoints that a backfill would use
    staged: Mapping[str, str]  # the file that each data checkpoint names
    purged: frozenset[str] = frozenset()  # files and checkpoints that nobody may keep
    purged_before: int = 0


@dataclass(frozen=True)
class Used:
    """Values that a view keeps of another dataset's records: no installed file has them, so their checkpoints stay.

    `dead` are that dataset's offsets, sorted, of records that are not current any more.
    """

    prefix: Prefix
    fragment_rows: int
    dead: I64
    purged_before: int = 0

    def unneeded(self, fragment: int) -> BitMap:
        """The rows of a fragment that nobody will ask for again."""
        base = fragment * self.fragment_rows
        purged = addresses.span(0, min(max(0, self.purged_before - base), self.fragment_rows))
        return purged | _among(self.dead, base, self.fragment_rows)


@dataclass(frozen=True)
class Garbage:
    """What is of no use as of a catalog: objects by their keys in the store, checkpoints by their own."""

    catalog: Catalog
    files: tuple[ObjectInfo, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    purged_before: int = 0  # the first record that is not purged
    dataset_id: str = ""

    @property
    def keys(self) -> list[str]:
        return [c.key for c in self.checkpoints] + [f.key for f in self.files]

    @property
    def bytes(self) -> int:
        return sum(c.size for c in self.checkpoints) + sum(f.size for f in self.files)


def plan(inventory: Inventory, oldest: float) -> Garbage:
    """What of an inventory can go: neither in use nor modified since a moment (epoch seconds), or purged.

    A checkpoint that tells of a file in use stays, too. It is small, and with it a column that is dropped and added
    again has its values back.
    """
    purged, named = inventory.purged, inventory.named
    needed = inventory.needed | {key for key, file in inventory.staged.items() if file in named}
    checkpoints = tuple(
        c for c in inventory.checkpoints if c.key in purged or (c.key not in needed and c.modified < oldest)
    )
    gone = {c.key for c in checkpoints}
    wanted = named | {file for key, file in inventory.staged.items() if key not in gone}
    files = tuple(f for f in inventory.files if f.key in purged or (f.key not in wanted and f.modified < oldest))
    return Garbage(inventory.catalog, files, checkpoints, inventory.purged_before)


def find_garbage(
    objects: ColumnObjects,
    dataset_id: str,
    dead: I64,
    now_nanos: int,
    grace_nanos: int = GRACE_NANOS,
    purged_before: int = 0,
    used: Sequence[Used] | None = None,
) -> Garbage:
    """What can go; `dead` are the offsets, sorted, of rows that nobody will compute again.

    `used` are the computations from other datasets' records that a view has. Who does not know them leaves all such
    checkpoints as they are.
    """
    oldest = (now_nanos - grace_nanos) / 10**9
    found = plan(take_inventory(objects, dataset_id, dead, oldest, purged_before, used), oldest)
    return replace(found, dataset_id=dataset_id)


def remove(objects: ColumnObjects, garbage: Garbage) -> Garbage:
    """Delete garbage; what was deleted. It stops when the catalog changes: a new one may need what the old did not.

    What columns still have of purged records goes as well.
    """
    removed = _removed(objects, garbage)
    if garbage.purged_before > garbage.catalog.purged_before:
        drop_purged(objects, garbage.purged_before, garbage.dataset_id)
    return removed


def _removed(objects: ColumnObjects, garbage: Garbage) -> Garbage:
    checkpoints: list[CheckpointInfo] = []
    for some in _portions(garbage.checkpoints):
        if catalogs.load(objects) != garbage.catalog:
            break
        for checkpoint in some:
            objects.checkpoints.delete(checkpoint.key)
        checkpoints += some
    files: list[ObjectInfo] = []
    for more in _portions(garbage.files):
        if catalogs.load(objects) != garbage.catalog:
            break
        for file in more:
            if objects.store.stat(file.key) == file:  # a put that finds its object there makes it young again
                objects.store.delete(file.key)
                files.append(file)
    return replace(garbage, files=tuple(files), checkpoints=tuple(checkpoints))


def _portions(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))


def take_inventory(
    objects: ColumnObjects,
    dataset_id: str,
    dead: I64,
    oldest: float,
    purged_before: int = 0,
    used: Sequence[Used] | None = None,
) -> Inventory:
    """What is there; checkpoints modified since a moment are not looked into, since they stay anyway.

    The catalog is read last: what was committed before the listing is named by it.
    """
    checkpoints = tuple(objects.checkpoints.infos())
    strays = [info for info in objects.checkpoints.strays() if "/checkpoints/batches/" in info.key]
    files = (*objects.manifests(), *objects.files(), *objects.errors(), *strays, *catalogs.replaced(objects))
    catalog = catalogs.load(objects)
    held = {c.name: manifests.load(objects, c) for c in catalog.columns}
    named = {key for manifest in held.values() for key in manifest.keys(objects)}
    named |= {objects.manifest_key(c.manifest) for c in catalog.columns if c.manifest is not None}
    named |= _lately_named(objects, oldest)
    settled = _Settled.of(catalog, dataset_id, held, dead, used)
    needed, staged = set(), {}
    for info in checkpoints:
        parsed = parse_key(info.key)
        if info.modified < oldest and _is_needed(objects.checkpoints, info.key, parsed, settled):
            needed.add(info.key)
        if (parsed is None or parsed.kind == DATA) and (file := _file_of(objects.checkpoints, info.key)) is not None:
            staged[info.key] = file
    before = max(purged_before, catalog.purged_before)
    left = find_left(objects, catalog, before, dataset_id)
    purged = frozenset((*left.files, *left.checkpoints, *settled.purged(info.key for info in checkpoints)))
    return Inventory(catalog, files, checkpoints, frozenset(named), frozenset(needed), staged, purged, before)


def _lately_named(objects: ColumnObjects, oldest: float) -> set[str]:
    """The manifests that were replaced since a moment, and their files: whoever began to read them may not be done."""
    found = set()
    for info in list(catalogs.replaced(objects)):  # after the catalog: what it does not name any more has its note
        if info.modified >= oldest:
            digest = info.key.rpartition("/")[2]
            manifest = manifests.find(objects, digest)
            found |= {objects.manifest_key(digest)} | (set() if manifest is None else manifest.keys(objects))
    return found


@dataclass(frozen=True)
class _Settled:
    """Which rows need no checkpoint any more, for each computation of a present column."""

    manifests: Mapping[str, Manifest]  # by the text of a computation's group
    fragment_rows: int
    dead: I64
    used: Mapping[str, Used]  # of other datasets, by the same
    only: str | None  # the dataset whose computations are known, where those of others are not

    @staticmethod
    def of(
        catalog: Catalog, dataset_id: str, held: Mapping[str, Manifest], dead: I64, used: Sequence[Used] | None
    ) -> _Settled:
        found: dict[str, Manifest] = {}
        for column in catalog.columns:
            sources = catalogs.srcfiles(catalog, dataset_id, column)
            any_where = hash_text(None)  # a group does not tell one from another
            function = column.function
            prefix = Prefix(function.name, function.version, column.name, any_where, hash_text(dataset_id), sources)
            manifest = held[column.name].under(catalogs.identity(catalog, dataset_id, column))
            found |= dict.fromkeys((Group.of(prefix.text).text, Group.of(range_prefix(prefix)).text), manifest)
        others = {Group.of(one.prefix.text).text: one for one in used or ()}
        return _Settled(found, catalog.fragment_rows, dead, others, dataset_id if used is None else None)

    def rows(self, key: ParsedKey) -> BitMap | None:
        """The rows of a key's fragment that are committed or dead; None when it is nothing's that is in use."""
        group = Group.of(key.prefix).text
        if group in self.used:
            return self.used[group].unneeded(key.fragment)
        manifest = self.manifests.get(group)
        if manifest is None:
            return None
        dead = _among(self.dead, key.fragment * self.fragment_rows, self.fragment_rows)
        return manifest.fragment(key.fragment).done | dead

    def purged(self, keys: Iterable[str]) -> Iterator[str]:
        """Those of the keys that have values of other datasets' purged records alone."""
        for key in keys if self.used else ():
            if (parsed := parse_key(key)) is None:
                continue
            used = self.used.get(Group.of(parsed.prefix).text)
            if used is not None and parsed.fragment * used.fragment_rows + parsed.end <= used.purged_before:
                yield key


def _among(offsets: I64, base: int, rows: int) -> BitMap:
    """The addresses of those of some sorted offsets that lie in a fragment."""
    low, high = np.searchsorted(offsets, [base, base + rows])
    return addresses.from_array(offsets[low:high] - base)


def _is_needed(store: CheckpointStore, key: str, parsed: ParsedKey | None, settled: _Settled) -> bool:
    """Whether a backfill or refresh would use a checkpoint: what it belongs to is in use, and needs rows of it."""
    if parsed is None:
        return True  # of an older format, which does not say what it belongs to; who adopts it deletes it
    if settled.only is not None and is_of_another(key, settled.only):
        return True
    rows = settled.rows(parsed)
    if rows is None or addresses.span(parsed.start, parsed.end) <= rows:
        return False
    try:
        batch = store.get(key)
        held = _rows_of(batch, parsed)
    except (ObjectNotFound, BadCheckpoint, KeyError, ValueError):
        return False  # a backfill would delete it
    return not held <= rows


def _rows_of(batch: pa.RecordBatch, parsed: ParsedKey) -> BitMap:
    """The rows that a checkpoint has values of."""
    if parsed.kind == DATA:
        return addresses.unpack(batch.column("done")[0].as_py())
    return addresses.from_array(batch.column(ROWADDR).to_numpy())


def _file_of(store: CheckpointStore, key: str) -> str | None:
    """The file that a checkpoint names, if it can be read and names one."""
    try:
        batch = store.get(key)
    except (ObjectNotFound, BadCheckpoint):
        return None
    return str(batch.column("file")[0]) if "file" in batch.schema.names and batch.num_rows else None
