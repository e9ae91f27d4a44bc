"""Collecting garbage: checkpoints and files that no column needs any more, once they are old enough.

What is young stays, whatever it is: a backfill that is running now names its files only when it commits them. So does
what was in use until lately: somebody may still read it. Values of purged records go at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import ROWADDR
from floodmark.compute.checkpoints.keys import DATA, ParsedKey, Prefix, hash_text, parse_key
from floodmark.compute.checkpoints.paths import Group
from floodmark.compute.checkpoints.store import CheckpointInfo, CheckpointStore
from floodmark.compute.errors import BadCheckpoint
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import Catalog
from floodmark.compute.stored.manifest import Manifest
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.purge import drop_purged, find_left, is_of_another
from floodmark.storage import sweep
from floodmark.storage.arrays import I64
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GRACE_NANOS, GarbageSource, Listing, Usage


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
    """What is of no use: objects by their keys in the store, checkpoints by their own."""

    source: ColumnFiles = field(compare=False, repr=False)
    swept: sweep.Garbage[Catalog]
    files: tuple[ObjectInfo, ...]
    checkpoints: tuple[CheckpointInfo, ...]

    @staticmethod
    def of(source: ColumnFiles, swept: sweep.Garbage[Catalog]) -> Garbage:
        known = source.checkpoints
        files = tuple(info for info in swept.objects if info.key not in known)
        return Garbage(source, swept, files, tuple(known[key] for key in swept.keys if key in known))

    @property
    def keys(self) -> list[str]:
        return [c.key for c in self.checkpoints] + [f.key for f in self.files]

    @property
    def bytes(self) -> int:
        return sum(c.size for c in self.checkpoints) + sum(f.size for f in self.files)


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
    checkpoints = {objects.checkpoints.object_key(info.key): info for info in objects.checkpoints.infos()}
    source = ColumnFiles(objects, checkpoints, dataset_id, dead, purged_before, used)
    return Garbage.of(source, sweep.find(source, (now_nanos - grace_nanos) / 10**9))


def remove(garbage: Garbage) -> Garbage:
    """Delete garbage; what was deleted. What columns still have of purged records goes as well."""
    source, objects = garbage.source, garbage.source.objects
    removed = Garbage.of(source, sweep.remove(garbage.swept))
    if source.purged_before and source.purged_before > catalogs.load(objects).purged_before:
        drop_purged(objects, source.purged_before, source.dataset_id)
    return removed


@dataclass(frozen=True)
class ColumnFiles(GarbageSource[Catalog]):
    """Checkpoints, files of values and errors, manifests, and notes of replaced manifests; the root is the catalog."""

    objects: ColumnObjects
    checkpoints: Mapping[str, CheckpointInfo]  # by their keys in the store
    dataset_id: str
    dead: I64
    purged_before: int
    used: Sequence[Used] | None

    @property
    def store(self) -> Store:
        return self.objects.store

    def listed(self) -> Iterator[ObjectInfo]:
        """Checkpoints first: the files that they name stay as long as they do."""
        for key, info in self.checkpoints.items():
            yield ObjectInfo(key, info.size, info.modified)
        yield from (info for info in self.objects.checkpoints.strays() if "/checkpoints/batches/" in info.key)
        for listing in (self.objects.manifests(), self.objects.files(), self.objects.errors()):
            yield from listing
        yield from catalogs.replaced(self.objects)

    def root(self) -> Catalog:
        return catalogs.load(self.objects)

    def usage(self, listing: Listing[Catalog]) -> Usage:
        objects, catalog, store = self.objects, listing.root, self.objects.checkpoints
        held = {c.name: manifests.load(objects, c) for c in catalog.columns}
        named = {key for manifest in held.values() for key in manifest.keys(objects)}
        named |= {objects.manifest_key(c.manifest) for c in catalog.columns if c.manifest is not None}
        settled = _Settled.of(catalog, self.dataset_id, held, self.dead, self.used)
        left = find_left(objects, catalog, max(self.purged_before, catalog.purged_before), self.dataset_id)
        keys = (*left.checkpoints, *settled.purged(info.key for info in self.checkpoints.values()))
        return column_usage(
            named=named,
            released=_released(objects, listing.oldest),
            needed={key: partial(_is_needed, store, info.key, settled) for key, info in self.checkpoints.items()},
            staged=self._staged(),
            purged={*left.files, *(store.object_key(key) for key in keys)},
        )

    def _staged(self) -> dict[str, str]:
        """The file that each data checkpoint names, by the checkpoint's key in the store."""
        found = {}
        for key, info in self.checkpoints.items():
            parsed = parse_key(info.key)
            if parsed is None or parsed.kind == DATA:
                file = _file_of(self.objects.checkpoints, info.key)
                if file is not None:
                    found[key] = file
        return found


def column_usage(
    named: AbstractSet[str],
    released: Mapping[str, float],
    needed: Mapping[str, Callable[[], bool]],
    staged: Mapping[str, str],
    purged: AbstractSet[str],
) -> Usage:
    """What is in use, given the `named` files, the checkpoints and whether each is `needed`, and the files they name.

    A checkpoint that names a file in use stays, too. It is small, and with it a column that is dropped and added again
    has its values back.
    """
    holders: dict[str, set[str]] = {}
    for checkpoint, file in staged.items():
        holders.setdefault(file, set()).add(checkpoint)

    def is_live(info: ObjectInfo, going: AbstractSet[str]) -> bool:
        if info.key in needed:
            file = staged.get(info.key)
            return file in named or file in released or needed[info.key]()
        return info.key in named or not holders.get(info.key, set()) <= going

    return Usage(is_live, released, purged)


def _released(objects: ColumnObjects, oldest: float) -> dict[str, float]:
    """The manifests that were replaced since a moment, and their files: readers of them may not be done."""
    found: dict[str, float] = {}
    for info in list(catalogs.replaced(objects)):  # after the catalog: what it does not name any more has its note
        if info.modified >= oldest:
            manifest = manifests.find(objects, info.name)
            keys = {objects.manifest_key(info.name)} | (set() if manifest is None else manifest.keys(objects))
            found |= {key: max(info.modified, found.get(key, 0.0)) for key in keys}
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
        from floodmark.compute.checkpoints.legacy import range_prefix  # late: only gc needs it, views import this file

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


def _is_needed(store: CheckpointStore, key: str, settled: _Settled) -> bool:
    """Whether a backfill or refresh would use a checkpoint: what it belongs to is in use, and needs rows of it."""
    parsed = parse_key(key)
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
