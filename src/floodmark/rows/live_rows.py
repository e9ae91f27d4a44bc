"""Select current rows: the records up to an offset without the dead ones, from folded files where possible.

Also the manifest of folded files, and the checks of it.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import ObjectNotFound, StorageError
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.selection import DataFile, Selection, select
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.verify import VerifyProblem
from floodmark.storage import document
from floodmark.storage.arrays import I64
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural, Sha3Hex, build
from floodmark.storage.page_checksums import HEADERS_KEY, PageHeaders
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GarbageSource, Listing, ObjectUsage


def select_current(snapshot: Snapshot, start: int, end: int, dead: I64) -> Selection:
    """Select the records with offsets in [start, end) that are not dead as of `end`."""
    if len(dead) == 0 and snapshot.slices.num_rows < 2:
        return select(snapshot, start, end)  # folded files would not help, so their manifest is not read
    return without_dead_files(select_live(snapshot, start, end, dead, read_manifest(snapshot.objects)))


def select_live(snapshot: Snapshot, start: int, end: int, dead: I64, manifest: FoldManifest) -> Selection:
    """The same, including files that have only dead records."""
    folded = [f.in_store(snapshot.objects) for f in usable_files(manifest, snapshot, start, end)]
    low, high = np.searchsorted(dead, [start, end])
    chosen = replace(select(snapshot, start, end, folded), dead=dead[low:high])
    return replace(chosen, unfolded=partial(_unfolded, snapshot, chosen)) if folded else chosen


def _unfolded(snapshot: Snapshot, chosen: Selection) -> Selection:
    """The same records, selected from slices only."""
    return without_dead_files(replace(select(snapshot, chosen.start, chosen.end), dead=chosen.dead))


def without_dead_files(selection: Selection) -> Selection:
    """The same selection without files that have no live record."""
    dead = selection.dead_rows.tolist()
    return replace(selection, files=tuple(f for f, d in zip(selection.files, dead, strict=True) if d < f.rows))


_REQUESTS = 16
"""How many files in a bucket are checked at the same time."""

_log = logging.getLogger(__name__)


def usable_files(manifest: FoldManifest, snapshot: Snapshot, start: int, end: int) -> list[FoldedFile]:
    """The folded files that can be used to read the rows that are live as of `end`, in offset order.

    A file lacks the records that were dead when it was folded, so it is valid for that state and all later ones.
    """
    slices = snapshot.slices
    starts, ends = slices.column("start").to_numpy(), slices.column("end").to_numpy()
    blocks = slices.column("block")
    chosen = []
    for f in manifest.files:
        if start <= f.start < f.end <= f.at <= end and _is_in(f.start, starts) and _is_in(f.end, ends):
            i = int(np.searchsorted(ends, f.at))  # past the end for a block newer than this snapshot
            if i < len(ends) and ends[i] == f.at and blocks[i].as_py().hex() == f.block:
                chosen.append(f)
    return _intact(chosen, snapshot.objects)


def _is_in(value: int, ordered: I64) -> bool:
    i = int(np.searchsorted(ordered, value))
    return i < len(ordered) and bool(ordered[i] == value)


def _intact(files: list[FoldedFile], objects: DatasetObjects) -> list[FoldedFile]:
    """The files that exist and look intact. One listing replaces a request per file."""
    if not files:
        return []
    try:
        sizes = {info.key: info.size for info in objects.fold_files()}
    except StorageError as error:
        _log.warning("the folded files of %s cannot be listed (%s): reading its slices", objects.folder, error)
        return []
    existing = [f for f in files if f.rows == 0 or sizes.get(f.key(objects)) == f.size]
    if objects.is_local or len(existing) < 2:
        return [f for f in existing if looks_intact(objects, f)]
    with ThreadPoolExecutor(_REQUESTS) as threads:
        intact = threads.map(partial(looks_intact, objects), existing)
        return [f for f, is_intact in zip(existing, intact, strict=True) if is_intact]


def looks_intact(objects: DatasetObjects, folded: FoldedFile) -> bool:
    """Whether all parts of a folded file except the pages are unchanged. Page headers are checked in local files only.

    In a bucket each header would be a request.
    """
    if folded.rows == 0:
        return True
    key = folded.key(objects)
    try:
        tail = objects.store.get_range(key, folded.size - folded.tail, folded.size)
        path = objects.store.local_path(key)
        if zlib.crc32(tail) == folded.tail_checksum and (path is None or _headers(tail).are_in(path)):
            return True
        problem = "it was changed or damaged"
    except (StorageError, OSError) as error:
        problem = str(error)
    _log.warning(
        "the folded file %s is not used (%s): reading its slices; call fold() to write the file again", key, problem
    )
    return False


def _headers(tail: bytes) -> PageHeaders:
    return PageHeaders.decode(pq.read_metadata(pa.BufferReader(tail)).metadata[HEADERS_KEY])


# The manifest

_KIND = "fold manifest"


@dataclass(frozen=True)
class FoldedFile:
    """A file with the rows between two offsets that were live when they were folded."""

    start: Natural
    end: Natural
    rows: Natural
    size: Natural
    slices: Natural
    digest: Sha3Hex  # of the file; without rows no file is stored
    tail: Natural  # how many bytes follow the last page: indexes and footer
    tail_checksum: int  # CRC-32 of these bytes
    at: int  # the end of the snapshot that was folded
    block: str  # the data block that ends at `at`

    def key(self, objects: DatasetObjects) -> str:
        return objects.fold_key(self.start, Multihash(SHA3_256, bytes.fromhex(self.digest)))

    def in_store(self, objects: DatasetObjects) -> DataFile:
        return DataFile(self.key(objects), self.start, self.end, self.rows, self.size)


@dataclass(frozen=True)
class RetiredFile:
    """A folded file that new readers do not use. It is kept for some time for readers that started earlier."""

    start: Natural
    digest: Sha3Hex
    since: int  # nanoseconds

    def key(self, objects: DatasetObjects) -> str:
        return objects.fold_key(self.start, Multihash(SHA3_256, bytes.fromhex(self.digest)))


@dataclass(frozen=True)
class FoldManifest:
    """The folded files in offset order, and those that they replaced."""

    files: tuple[FoldedFile, ...] = ()
    retired: tuple[RetiredFile, ...] = ()

    @property
    def absent(self) -> int:
        """How many dead records the folded files lack."""
        return sum(f.end - f.start - f.rows for f in self.files)

    @property
    def slices(self) -> int:
        """How many slices the folded files replace."""
        return sum(f.slices for f in self.files)

    def with_files(self, added: Iterable[FoldedFile], now: int) -> FoldManifest:
        """The manifest with more files. Files that overlap with them are retired."""
        fresh = sorted(added, key=lambda f: f.start)
        ends = [f.end for f in fresh]
        kept = [f for f in self.files if (i := bisect_right(ends, f.start)) == len(fresh) or fresh[i].start >= f.end]
        files = tuple(sorted([*kept, *fresh], key=lambda f: f.start))
        present = {(f.start, f.digest) for f in files}
        before = [*self.retired, *(RetiredFile(f.start, f.digest, now) for f in self.files)]
        return FoldManifest(files, tuple(r for r in before if (r.start, r.digest) not in present))

    def without(self, files: Iterable[FoldedFile]) -> FoldManifest:
        """The manifest without these files, which are not retired either."""
        removed = set(files)
        return FoldManifest(tuple(f for f in self.files if f not in removed), self.retired)

    def starting_at(self, offset: int) -> FoldManifest:
        """The manifest without files, retired ones included, that have records before an offset."""
        return FoldManifest(
            tuple(f for f in self.files if f.start >= offset), tuple(r for r in self.retired if r.start >= offset)
        )

    def retired_since(self, moment: int) -> FoldManifest:
        """The manifest without files that were retired before a point in time."""
        return FoldManifest(self.files, tuple(r for r in self.retired if r.since >= moment))

    def keys(self, objects: DatasetObjects) -> set[str]:
        """The keys of all files in the manifest, retired ones included."""
        return {f.key(objects) for f in self.files} | {r.key(objects) for r in self.retired}


def encode_manifest(manifest: FoldManifest) -> bytes:
    """The manifest as a document."""
    return document.encode(_KIND, 1, vars(manifest))


def decode_manifest(data: bytes, key: str) -> FoldManifest:
    """The manifest in these bytes. Raises `DamagedDocument` for anything but a result of `encode`."""
    with document.parsing(key):
        return build(FoldManifest, document.decode(data, _KIND, key).facts)


def load_manifest(objects: DatasetObjects) -> FoldManifest:
    """The dataset's manifest; an empty one if it is missing. Raises `DamagedDocument` if it cannot be read."""
    try:
        return decode_manifest(objects.store.get(objects.fold_manifest_key), objects.fold_manifest_key)
    except ObjectNotFound:
        return FoldManifest()


def read_manifest(objects: DatasetObjects) -> FoldManifest:
    """The dataset's manifest; an empty one if it is missing or damaged, so that slices are read."""
    try:
        return load_manifest(objects)
    except DamagedDocument as error:
        _log.warning("the fold manifest of %s is damaged (%s): reading its slices", objects.folder, error)
        return FoldManifest()


def repair_manifest(objects: DatasetObjects) -> FoldManifest:
    """The same for writers: a damaged manifest is also removed."""
    try:
        return load_manifest(objects)
    except DamagedDocument:
        objects.store.delete(objects.fold_manifest_key)
        return FoldManifest()


@dataclass(frozen=True)
class FoldGarbage(GarbageSource[FoldManifest]):
    """The folded files of a dataset as a source of garbage: replaced files, and files of crashes and lost races."""

    objects: DatasetObjects

    @property
    def store(self) -> Store:
        return self.objects.store

    def listed(self) -> Iterator[ObjectInfo]:
        return self.objects.fold_files()

    def root(self) -> FoldManifest | None:
        try:
            return load_manifest(self.objects)
        except DamagedDocument:
            return None

    def usage(self, listing: Listing[FoldManifest]) -> ObjectUsage:
        named = {file.key(self.objects) for file in listing.root.files}
        retired = {file.key(self.objects): file.since / 10**9 for file in listing.root.retired}
        return ObjectUsage(lambda info, _: info.key in named, retired)


def first_offset(key: str) -> int | None:
    """The first offset of a folded file, from its key; None if the key is not of a folded file."""
    start, _, _ = key.rpartition("/")[2].partition("-")
    return int(start) if start.isdecimal() else None


# Verify

_CHUNK = 8 << 20
_THREADS = 2
_REMEDY = "call fold() to write it again from the slices"


def fold_problems(snapshot: Snapshot) -> Iterator[VerifyProblem]:
    """The problems of the folded files. A missing file is not a problem: its slices are read."""
    objects = snapshot.objects
    try:
        manifest = load_manifest(objects)
    except DamagedDocument as error:
        message = f"the fold manifest is damaged: {error.problem}; {_REMEDY}"
        yield VerifyProblem("fold", objects.fold_manifest_key, message)
        return
    for folded in manifest.files:
        key = folded.key(objects)
        if folded.rows and (digest := _digest(objects, key)) is not None and digest != folded.digest:
            where = f"folded rows of offsets {folded.start}–{folded.end - 1}"
            yield VerifyProblem("fold", key, f"{where}: the file was changed or damaged; {_REMEDY}")


def damaged_files(objects: DatasetObjects, files: Sequence[FoldedFile]) -> list[FoldedFile]:
    """The files that are missing or do not match their hashes. Reads every byte."""
    stored = [f for f in files if f.rows]
    with ThreadPoolExecutor(_THREADS) as threads:  # hashing and reading both release the GIL
        digests = list(threads.map(lambda f: _digest(objects, f.key(objects)), stored))
    return [f for f, digest in zip(stored, digests, strict=True) if digest != f.digest]


def _digest(objects: DatasetObjects, key: str) -> str | None:
    hasher = hashlib.sha3_256()
    try:
        with objects.store.open(key) as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except ObjectNotFound:
        return None
    return hasher.hexdigest()
