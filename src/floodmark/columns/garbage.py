"""Garbage collection of computed columns: finds checkpoints and files that no column needs, and removes old ones.

New objects are kept, since a running backfill names its files only when it commits. Objects that were in use until
recently are kept, too, since readers may still need them. Values of purged records are removed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as manifests
from floodmark.columns.catalog import Catalog, ColumnObjects
from floodmark.columns.checkpoint_batch import ROWADDR
from floodmark.columns.checkpoint_store import CheckpointGroup, CheckpointInfo, CheckpointStore
from floodmark.columns.manifest import ColumnManifest
from floodmark.columns.purge import CarriedTo, drop_purged, find_purge_leftovers, is_of_other_dataset
from floodmark.derive.checkpoint_key import DATA, CheckpointKey, CheckpointPrefix, hash_text, parse_key
from floodmark.errors import BadCheckpoint, ObjectNotFound
from floodmark.storage import row_sets, sweep
from floodmark.storage.arrays import I64
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GRACE_NANOS, GarbageSource, Listing, ObjectUsage


@dataclass(frozen=True)
class UsedCheckpoints:
    """Values that a view stores for the records of another dataset. No file has them, so their checkpoints are kept.

    `dead` are the sorted offsets of that dataset's dead records.
    """

    prefix: CheckpointPrefix
    fragment_rows: int
    dead: I64
    purged_before: int = 0

    def unneeded(self, fragment: int) -> BitMap:
        """The rows of a fragment that no refresh will need again."""
        base = fragment * self.fragment_rows
        purged = row_sets.span(0, min(max(0, self.purged_before - base), self.fragment_rows))
        return purged | _among(self.dead, base, self.fragment_rows)


@dataclass(frozen=True)
class ColumnGarbage:
    """Objects and checkpoints that nothing needs. Checkpoints are listed by their checkpoint keys."""

    source: ColumnGarbageSource = field(compare=False, repr=False)
    swept: sweep.Garbage[Catalog]
    files: tuple[ObjectInfo, ...]
    checkpoints: tuple[CheckpointInfo, ...]

    @staticmethod
    def of(source: ColumnGarbageSource, swept: sweep.Garbage[Catalog]) -> ColumnGarbage:
        known = source.checkpoints
        files = tuple(info for info in swept.objects if info.key not in known)
        return ColumnGarbage(source, swept, files, tuple(known[key] for key in swept.keys if key in known))

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
    used: Sequence[UsedCheckpoints] | None = None,
    carried_to: CarriedTo | None = None,
) -> ColumnGarbage:
    """The objects that can be removed. `dead` are the sorted offsets of rows that will never be computed again.

    `used` are the view's computations from other datasets' records. None means that they are unknown: all such
    checkpoints are kept.
    """
    checkpoints = {objects.checkpoints.object_key(info.key): info for info in objects.checkpoints.infos()}
    source = ColumnGarbageSource(objects, checkpoints, dataset_id, dead, purged_before, used, carried_to)
    return ColumnGarbage.of(source, sweep.find(source, (now_nanos - grace_nanos) / 10**9))


def remove_garbage(garbage: ColumnGarbage) -> ColumnGarbage:
    """Delete garbage and return what was deleted. Values that columns still have of purged records are deleted, too."""
    source, objects = garbage.source, garbage.source.objects
    removed = ColumnGarbage.of(source, sweep.remove(garbage.swept))
    if source.purged_before and source.purged_before > catalogs.load(objects).purged_before:
        drop_purged(objects, source.purged_before, source.dataset_id, source.carried_to)
    return removed


@dataclass(frozen=True)
class ColumnGarbageSource(GarbageSource[Catalog]):
    """Checkpoints, files of values and errors, manifests, and notes of replaced manifests; the root is the catalog."""

    objects: ColumnObjects
    checkpoints: Mapping[str, CheckpointInfo]  # by their keys in the store
    dataset_id: str
    dead: I64
    purged_before: int
    used: Sequence[UsedCheckpoints] | None
    carried_to: CarriedTo | None = None

    @property
    def store(self) -> Store:
        return self.objects.store

    def listed(self) -> Iterator[ObjectInfo]:
        """All objects. Checkpoints come first, since they keep the files that they name."""
        for key, info in self.checkpoints.items():
            yield ObjectInfo(key, info.size, info.modified)
        yield from (info for info in self.objects.checkpoints.strays() if "/checkpoints/batches/" in info.key)
        for listing in (self.objects.manifests(), self.objects.files(), self.objects.errors()):
            yield from listing
        yield from catalogs.list_replaced_manifests(self.objects)

    def root(self) -> Catalog:
        return catalogs.load(self.objects)

    def usage(self, listing: Listing[Catalog]) -> ObjectUsage:
        objects, catalog, store = self.objects, listing.root, self.objects.checkpoints
        held = {c.name: manifests.load(objects, c) for c in catalog.columns}
        named = {key for manifest in held.values() for key in manifest.keys(objects)}
        named |= {objects.manifest_key(c.manifest) for c in catalog.columns if c.manifest is not None}
        settled = _UnneededRows.of(catalog, self.dataset_id, held, self.dead, self.used)
        left = find_purge_leftovers(objects, catalog, max(self.purged_before, catalog.purged_before), self.dataset_id)
        keys = (*left.checkpoints, *settled.purged(info.key for info in self.checkpoints.values()))
        return column_usage(
            named=named,
            released=_released(objects, listing.keep_since),
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
) -> ObjectUsage:
    """Which objects are in use, from the `named` files, the checkpoints that are `needed`, and the files they name.

    A checkpoint that names a file in use is kept, too. It is small, and with it a column that is dropped and added
    again gets its values back.
    """
    holders: dict[str, set[str]] = {}
    for checkpoint, file in staged.items():
        holders.setdefault(file, set()).add(checkpoint)

    def is_live(info: ObjectInfo, going: AbstractSet[str]) -> bool:
        if info.key in needed:
            file = staged.get(info.key)
            return file in named or file in released or needed[info.key]()
        return info.key in named or not holders.get(info.key, set()) <= going

    return ObjectUsage(is_live, released, purged)


def _released(objects: ColumnObjects, oldest: float) -> dict[str, float]:
    """The manifests that were replaced since a moment, and their files. Readers may still use them."""
    found: dict[str, float] = {}
    for info in list(
        catalogs.list_replaced_manifests(objects)
    ):  # listed after the catalog was read, so no replaced one is missed
        if info.modified >= oldest:
            manifest = manifests.find(objects, info.name)
            keys = {objects.manifest_key(info.name)} | (set() if manifest is None else manifest.keys(objects))
            found |= {key: max(info.modified, found.get(key, 0.0)) for key in keys}
    return found


@dataclass(frozen=True)
class _UnneededRows:
    """The rows that no longer need a checkpoint, for each computation of a current column."""

    manifests: Mapping[str, ColumnManifest]  # by the text of a computation's group
    fragment_rows: int
    dead: I64
    used: Mapping[str, UsedCheckpoints]  # of other datasets, by the text of a computation's group
    only: str | None  # the only dataset whose computations are known; None when all are known

    @staticmethod
    def of(
        catalog: Catalog,
        dataset_id: str,
        held: Mapping[str, ColumnManifest],
        dead: I64,
        used: Sequence[UsedCheckpoints] | None,
    ) -> _UnneededRows:
        from floodmark.columns.legacy_checkpoints import range_prefix  # imported late: views import this module

        found: dict[str, ColumnManifest] = {}
        for column in catalog.columns:
            sources = catalogs.hash_inputs(catalog, dataset_id, column)
            any_where = hash_text(None)  # a group is the same for every `where`
            function = column.function
            prefix = CheckpointPrefix(
                function.name, function.version, column.name, any_where, hash_text(dataset_id), sources
            )
            manifest = held[column.name].with_identity(catalogs.identity(catalog, dataset_id, column))
            found |= dict.fromkeys(
                (CheckpointGroup.of(prefix.text).text, CheckpointGroup.of(range_prefix(prefix)).text), manifest
            )
        others = {CheckpointGroup.of(one.prefix.text).text: one for one in used or ()}
        return _UnneededRows(found, catalog.fragment_rows, dead, others, dataset_id if used is None else None)

    def rows(self, key: CheckpointKey) -> BitMap | None:
        """The committed or dead rows of a key's fragment; None when no current column or view uses the key."""
        group = CheckpointGroup.of(key.prefix).text
        if group in self.used:
            return self.used[group].unneeded(key.fragment)
        manifest = self.manifests.get(group)
        if manifest is None:
            return None
        dead = _among(self.dead, key.fragment * self.fragment_rows, self.fragment_rows)
        return manifest.fragment(key.fragment).done | dead

    def purged(self, keys: Iterable[str]) -> Iterator[str]:
        """The keys that only have values of purged records of other datasets."""
        for key in keys if self.used else ():
            if (parsed := parse_key(key)) is None:
                continue
            used = self.used.get(CheckpointGroup.of(parsed.prefix).text)
            if used is not None and parsed.fragment * used.fragment_rows + parsed.end <= used.purged_before:
                yield key


def _among(offsets: I64, base: int, rows: int) -> BitMap:
    """The addresses of the sorted offsets that are in a fragment."""
    low, high = np.searchsorted(offsets, [base, base + rows])
    return row_sets.from_array(offsets[low:high] - base)


def _is_needed(store: CheckpointStore, key: str, settled: _UnneededRows) -> bool:
    """Whether a backfill or refresh would use a checkpoint: its column or view exists and needs rows of it."""
    parsed = parse_key(key)
    if parsed is None:
        return True  # of an older format, which does not name its inputs; a backfill converts and deletes it
    if settled.only is not None and is_of_other_dataset(key, settled.only):
        return True
    rows = settled.rows(parsed)
    if rows is None or row_sets.span(parsed.start, parsed.end) <= rows:
        return False
    try:
        batch = store.get(key)
        held = _rows_of(batch, parsed)
    except (ObjectNotFound, BadCheckpoint, KeyError, ValueError):
        return False  # a backfill would delete it
    return not held <= rows


def _rows_of(batch: pa.RecordBatch, parsed: CheckpointKey) -> BitMap:
    """The rows that a checkpoint has."""
    if parsed.kind == DATA:
        return row_sets.unpack(batch.column("done")[0].as_py())
    return row_sets.from_array(batch.column(ROWADDR).to_numpy())


def _file_of(store: CheckpointStore, key: str) -> str | None:
    """The file that a checkpoint names; None when it names none or cannot be read."""
    try:
        batch = store.get(key)
    except (ObjectNotFound, BadCheckpoint):
        return None
    return str(batch.column("file")[0]) if "file" in batch.schema.names and batch.num_rows else None
