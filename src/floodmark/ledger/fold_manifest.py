"""Which folded files a dataset has: one small derived file, which names them and is checked before it is believed."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.selection import DataFile
from floodmark.storage import document
from floodmark.storage.document import Damaged
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GarbageSource, Listing, Usage

_KIND = "fold manifest"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoldedFile:
    """The rows of the slices between two offsets that were alive when they were folded."""

    start: int
    end: int
    rows: int
    size: int
    slices: int
    digest: str  # SHA3-256 of the file; no file is kept for no rows
    tail: int  # so many bytes follow its last page: indexes and footer
    tail_checksum: int  # their CRC-32
    at: int  # the records before this offset were known when it was folded
    block: str  # the data block that ends there

    def key(self, objects: DatasetObjects) -> str:
        return objects.fold_key(self.start, Multihash(SHA3_256, bytes.fromhex(self.digest)))

    def in_store(self, objects: DatasetObjects) -> DataFile:
        return DataFile(self.key(objects), self.start, self.end, self.rows, self.size)


@dataclass(frozen=True)
class Retired:
    """A folded file that no new reader uses; it stays a while for those who began earlier."""

    start: int
    digest: str
    since: int  # nanoseconds

    def key(self, objects: DatasetObjects) -> str:
        return objects.fold_key(self.start, Multihash(SHA3_256, bytes.fromhex(self.digest)))


@dataclass(frozen=True)
class FoldManifest:
    """The folded files in offset order, and those that they replaced."""

    files: tuple[FoldedFile, ...] = ()
    retired: tuple[Retired, ...] = ()

    @property
    def absent(self) -> int:
        """How many dead records the folded files have left out."""
        return sum(f.end - f.start - f.rows for f in self.files)

    @property
    def slices(self) -> int:
        """How many slices need not be read any more."""
        return sum(f.slices for f in self.files)

    def with_files(self, added: Iterable[FoldedFile], now: int) -> FoldManifest:
        """The manifest with more files; those that they overlap are retired."""
        fresh = sorted(added, key=lambda f: f.start)
        ends = [f.end for f in fresh]
        kept = [f for f in self.files if (i := bisect_right(ends, f.start)) == len(fresh) or fresh[i].start >= f.end]
        files = tuple(sorted([*kept, *fresh], key=lambda f: f.start))
        present = {(f.start, f.digest) for f in files}
        before = [*self.retired, *(Retired(f.start, f.digest, now) for f in self.files)]
        return FoldManifest(files, tuple(r for r in before if (r.start, r.digest) not in present))

    def without(self, files: Iterable[FoldedFile]) -> FoldManifest:
        """The manifest without these files, as if they had never been made."""
        gone = set(files)
        return FoldManifest(tuple(f for f in self.files if f not in gone), self.retired)

    def starting_at(self, offset: int) -> FoldManifest:
        """The manifest without any file, retired ones included, that holds records before an offset."""
        return FoldManifest(
            tuple(f for f in self.files if f.start >= offset), tuple(r for r in self.retired if r.start >= offset)
        )

    def retired_since(self, moment: int) -> FoldManifest:
        """The manifest without the files that were retired before a moment."""
        return FoldManifest(self.files, tuple(r for r in self.retired if r.since >= moment))

    def keys(self, objects: DatasetObjects) -> set[str]:
        """All files that the manifest knows of."""
        return {f.key(objects) for f in self.files} | {r.key(objects) for r in self.retired}


def encode(manifest: FoldManifest) -> bytes:
    """A manifest as a document."""
    return document.encode(_KIND, 1, vars(manifest))


def decode(data: bytes, key: str) -> FoldManifest:
    """The manifest under a key; `Damaged` for any bytes that `encode` did not make."""
    facts = document.decode(data, _KIND, key).facts
    return FoldManifest(tuple(FoldedFile(**f) for f in facts["files"]), tuple(Retired(**r) for r in facts["retired"]))


def load_manifest(objects: DatasetObjects) -> FoldManifest:
    """The dataset's manifest, an empty one when there is none; `Damaged` when it is of no use."""
    try:
        return decode(objects.store.get(objects.fold_manifest_key), objects.fold_manifest_key)
    except ObjectNotFound:
        return FoldManifest()


def read_manifest(objects: DatasetObjects) -> FoldManifest:
    """The dataset's manifest; an empty one when it is missing or damaged, since slices have everything."""
    try:
        return load_manifest(objects)
    except Damaged as error:
        _log.warning("the fold manifest of %s is damaged (%s): its slices are read instead", objects.folder, error)
        return FoldManifest()


def mended_manifest(objects: DatasetObjects) -> FoldManifest:
    """The same for those who write it: one that is of no use is removed."""
    try:
        return load_manifest(objects)
    except Damaged:
        objects.store.delete(objects.fold_manifest_key)
        return FoldManifest()


@dataclass(frozen=True)
class FoldedFiles(GarbageSource[FoldManifest]):
    """The folded files of a dataset as a source of garbage: replaced ones, and what crashes and lost races left."""

    objects: DatasetObjects

    @property
    def store(self) -> Store:
        return self.objects.store

    def listed(self) -> Iterator[ObjectInfo]:
        return self.objects.fold_files()

    def root(self) -> FoldManifest | None:
        try:
            return load_manifest(self.objects)
        except Damaged:
            return None

    def usage(self, listing: Listing[FoldManifest]) -> Usage:
        named = {file.key(self.objects) for file in listing.root.files}
        retired = {file.key(self.objects): file.since / 10**9 for file in listing.root.retired}
        return Usage(lambda info, _: info.key in named, retired)


def first_offset(key: str) -> int | None:
    """The first offset that a folded file may hold, from its key; None for what is no folded file."""
    start, _, _ = key.rpartition("/")[2].partition("-")
    return int(start) if start.isdecimal() else None
