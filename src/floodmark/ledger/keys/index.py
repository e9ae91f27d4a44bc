"""Opening a dataset's key index: read if it is there, caught up when it lags, made again when it is gone or damaged.

It lies beside the chain as tiered segments; a manifest names those of one block. Nothing of it is durable or trusted:
the records are the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys.catch_up import hashed_since
from floodmark.ledger.keys.entries import Entries, Found
from floodmark.ledger.keys.files import Cache, KeyFiles
from floodmark.ledger.keys.key_index import NEWEST, KeyIndex, empty, opened
from floodmark.ledger.keys.manifest import At, Manifest, Shape, decode, manifest_name
from floodmark.ledger.keys.records import Records
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.errors import ObjectNotFound, StorageError
from floodmark.storage.store import ObjectInfo

__all__ = ["Cache", "Entries", "Found", "KeyIndex", "load", "mended", "rebuild", "repair"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


def load(snapshot: Snapshot, cache: Cache) -> KeyIndex:
    """The key index of a keyed dataset as of its newest record: read if it is there, else caught up."""
    wanted = _Wanted.of(snapshot)
    held = cache.get(NEWEST)
    if (
        isinstance(held, KeyIndex)
        and held.manifest.at == wanted.at
        and wanted.fits(held.manifest, snapshot.next_offset)
    ):
        return held
    files = KeyFiles(snapshot.objects, cache)
    if wanted.at is None:
        return empty(files, wanted.shape, snapshot.next_offset)
    manifest = _read(files, manifest_name(wanted.at))
    if manifest is not None and wanted.fits(manifest, snapshot.next_offset):
        index = opened(files, manifest)
        index.remember()
        return index
    return _caught_up(snapshot, files, wanted, lambda _: None)


def repair(snapshot: Snapshot, cache: Cache) -> KeyIndex:
    """The key index when a file of it turned out to be gone or damaged: from what is still whole."""
    cache.clear()
    wanted = _Wanted.of(snapshot)
    files = KeyFiles(snapshot.objects, cache)
    if wanted.at is None:
        return empty(files, wanted.shape, snapshot.next_offset)
    return _caught_up(snapshot, files, wanted, KeyIndex.check)


def rebuild(snapshot: Snapshot, cache: Cache) -> KeyIndex:
    """The key index from the records alone, whatever lies beside them; that goes, unless it is of a later head."""
    cache.clear()
    wanted = _Wanted.of(snapshot)
    files = KeyFiles(snapshot.objects, cache)
    before = _Present.of(snapshot)
    index = built(snapshot, files, wanted.shape)
    if wanted.at is not None:
        index = index.kept(wanted.at)
    if files.are_kept:
        _delete(files, before.replaced_by(index.manifest, snapshot))
    return index


def mended(snapshot: Snapshot, cache: Cache, ask: Callable[[KeyIndex], T]) -> T:
    """Ask the key index; when it turns out to be damaged, mend it and ask again; as a last resort make it anew."""
    for obtain in (load, repair):
        try:
            return ask(obtain(snapshot, cache))
        except BadIndex as error:
            _log.warning("the key index of %s is mended: %s", snapshot.objects.folder, error)
    return ask(rebuild(snapshot, cache))


def built(snapshot: Snapshot, files: KeyFiles, shape: Shape) -> KeyIndex:
    """The index of all records that can still be read, made from them alone and not kept yet."""
    return _with_records_since(snapshot, empty(files, shape, snapshot.purged_before))


@dataclass(frozen=True)
class _Wanted:
    """The block that the index is wanted for (None when there are no records), and what it is taken over."""

    at: At | None
    shape: Shape
    purged_before: int

    @staticmethod
    def of(snapshot: Snapshot) -> _Wanted:
        shape = Shape.of(strategy_of(snapshot.state))
        if not shape.key:
            raise ValueError("an append dataset has no key index")
        newest = snapshot.index.newest.slices
        slices = newest if newest.num_rows else snapshot.all_slices
        if slices.num_rows == 0:
            return _Wanted(None, shape, snapshot.purged_before)
        last = slices.slice(slices.num_rows - 1).to_pylist()[0]
        return _Wanted((last["sequence_number"], last["block"]), shape, snapshot.purged_before)

    def fits(self, manifest: Manifest, end: int) -> bool:
        """Whether a manifest is of this index, ends where it should and reaches what can be read."""
        return manifest.shape == self.shape and manifest.end == end and manifest.end >= self.purged_before


@dataclass(frozen=True)
class _Present:
    """What lies in the folder of the key index."""

    manifests: frozenset[str]
    files: frozenset[str]

    @staticmethod
    def of(snapshot: Snapshot) -> _Present:
        objects = snapshot.objects
        return _Present(
            frozenset(_name(info) for info in objects.key_manifests()),
            frozenset(_name(info) for info in objects.key_files()),
        )

    def replaced_by(self, manifest: Manifest, snapshot: Snapshot) -> set[str]:
        """The keys of what nobody needs when there is this manifest."""
        objects = snapshot.objects
        mine = "" if manifest.at is None else manifest.name
        keys = {objects.key_manifest_key(name) for name in self.manifests if name < mine}
        if not any(name > mine for name in self.manifests):  # else somebody is further, and uses files that we list
            keys |= {objects.key_file_key(name) for name in self.files - manifest.names}
        return keys


def _caught_up(snapshot: Snapshot, files: KeyFiles, wanted: _Wanted, check: Callable[[KeyIndex], None]) -> KeyIndex:
    """The index from the newest manifest that `check` finds nothing wrong with and the records after it."""
    for base in _bases(snapshot, files, wanted):
        try:
            check(base)
            return base if base.manifest.at == wanted.at else _kept(_with_records_since(snapshot, base), wanted)
        except BadIndex as error:
            _log.warning("going further back: %s", error)
    return rebuild(snapshot, files.cache)


def _kept(index: KeyIndex, wanted: _Wanted) -> KeyIndex:
    assert wanted.at is not None
    return index.kept(wanted.at)


def _bases(snapshot: Snapshot, files: KeyFiles, wanted: _Wanted) -> Iterator[KeyIndex]:
    """The indexes of this block and of those before it that there are manifests of, newest first."""
    listed = {_name(info) for info in snapshot.objects.key_manifests()}
    if not listed:
        return
    slices = snapshot.all_slices
    columns = [slices.column(name).to_pylist() for name in ("sequence_number", "block", "end")]
    for number, block, end in reversed(list(zip(*columns, strict=True))):
        if (name := manifest_name((number, block))) in listed:
            manifest = _read(files, name)
            if manifest is not None and wanted.fits(manifest, end):
                yield opened(files, manifest)


def _with_records_since(snapshot: Snapshot, index: KeyIndex) -> KeyIndex:
    """The index with all records that it lacks."""
    if index.end >= snapshot.next_offset:
        return index
    for batch in hashed_since(snapshot, index.manifest.shape, index.end):
        old = index.find(batch.key, batch.lookup).offset
        index = index.with_records(Records(batch.start, batch.key, batch.row, batch.op, old, batch.lookup))
    index.require_usable()
    return index


def _read(files: KeyFiles, name: str) -> Manifest | None:
    try:
        return decode(name, files.objects.store.get(files.objects.key_manifest_key(name)))
    except ObjectNotFound:
        return None
    except BadIndex as error:
        _log.warning("a manifest of the key index of %s is damaged: %s", files.objects.folder, error)
        return None


def _delete(files: KeyFiles, keys: set[str]) -> None:
    try:
        for key in sorted(keys):
            files.objects.store.delete(key)
    except (OSError, StorageError) as error:
        _log.warning("old files of the key index of %s could not be removed (%s)", files.objects.folder, error)


def _name(info: ObjectInfo) -> str:
    return info.key.rsplit("/", 1)[-1]
