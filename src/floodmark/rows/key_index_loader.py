"""Load the key index of a dataset: read it, add missing records, repair or rebuild it if it is damaged.

The index is stored as tiered segments; a manifest lists the segments as of one block. It is neither durable nor
trusted: it can always be rebuilt from the records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.chain.ids import SHA3_256, Multihash
from floodmark.errors import DAMAGED_HINT, BadIndex, ObjectNotFound, StorageError, UnreadableSlice
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.ledger.verify import VerifyProblem
from floodmark.rows.classify import RETRACT
from floodmark.rows.key_entries import IndexRecords, KeyEntries
from floodmark.rows.key_index import NEWEST, KeyIndex, empty_index, open_index
from floodmark.rows.key_index_files import (
    BlockPosition,
    KeyIndexFiles,
    KeyIndexShape,
    KeyManifest,
    RunCache,
    decode_index,
    manifest_name,
)
from floodmark.rows.row_hash import hash_rows
from floodmark.storage.arrays import I64, Hashes
from floodmark.storage.local import LocalStore
from floodmark.storage.parquet import open_slice
from floodmark.storage.scratch import TemporaryFolder
from floodmark.storage.sorted_runs import END_OF_HASHES
from floodmark.storage.store import ObjectInfo

_log = logging.getLogger(__name__)

T = TypeVar("T")


def load(snapshot: Snapshot, cache: RunCache) -> KeyIndex:
    """The key index of a dataset as of its newest record: read if it is stored, else completed from the records."""
    target = _IndexTarget.of(snapshot)
    newest = cache.get(NEWEST)
    if (
        isinstance(newest, KeyIndex)
        and newest.manifest.at == target.at
        and target.fits(newest.manifest, snapshot.next_offset)
    ):
        return newest
    files = KeyIndexFiles(snapshot.objects, cache)
    if target.at is None:
        return empty_index(files, target.shape, snapshot.next_offset)
    manifest = _read(files, manifest_name(target.at))
    if manifest is not None and target.fits(manifest, snapshot.next_offset):
        index = open_index(files, manifest)
        index.remember()
        return index
    return _caught_up(snapshot, files, target, lambda _: None)


def repair(snapshot: Snapshot, cache: RunCache) -> KeyIndex:
    """The key index after a file was found missing or damaged: rebuilt from the newest intact index."""
    cache.clear()
    target = _IndexTarget.of(snapshot)
    files = KeyIndexFiles(snapshot.objects, cache)
    if target.at is None:
        return empty_index(files, target.shape, snapshot.next_offset)
    return _caught_up(snapshot, files, target, KeyIndex.check)


def rebuild(snapshot: Snapshot, cache: RunCache) -> KeyIndex:
    """The key index rebuilt from the records alone. Existing index files are removed, except those of later heads."""
    cache.clear()
    target = _IndexTarget.of(snapshot)
    files = KeyIndexFiles(snapshot.objects, cache)
    existing = _ExistingFiles.of(snapshot)
    index = build(snapshot, files, target.shape)
    if target.at is not None:
        index = index.kept(target.at)
    if files.store_accepts:
        _delete(files, existing.replaced_by(index.manifest, snapshot))
    return index


def with_repair(snapshot: Snapshot, cache: RunCache, read: Callable[[KeyIndex], T]) -> T:
    """Read from the key index. If it is damaged, repair it and read again, then rebuild it and read again."""
    for obtain in (load, repair):
        try:
            return read(obtain(snapshot, cache))
        except BadIndex as error:
            _log.warning("repairing the key index of %s: %s", snapshot.objects.folder, error)
    return read(rebuild(snapshot, cache))


def build(snapshot: Snapshot, files: KeyIndexFiles, shape: KeyIndexShape) -> KeyIndex:
    """The index of all records that can still be read, built from the records alone and not stored yet."""
    return _with_records_since(snapshot, empty_index(files, shape, snapshot.purged_before))


@dataclass(frozen=True)
class _IndexTarget:
    """The block that an index must be as of (None without records), and the columns that it must hash."""

    at: BlockPosition | None
    shape: KeyIndexShape
    purged_before: int

    @staticmethod
    def of(snapshot: Snapshot) -> _IndexTarget:
        shape = KeyIndexShape.of(strategy_of(snapshot.state), snapshot.erasures)
        if not shape.key:
            raise ValueError("an append dataset has no key index")
        newest = snapshot.index.newest.slices
        slices = newest if newest.num_rows else snapshot.all_slices
        if slices.num_rows == 0:
            return _IndexTarget(None, shape, snapshot.purged_before)
        last = slices.slice(slices.num_rows - 1).to_pylist()[0]
        return _IndexTarget((last["sequence_number"], last["block"]), shape, snapshot.purged_before)

    def fits(self, manifest: KeyManifest, end: int) -> bool:
        """Whether a manifest has the same columns, ends at `end`, and reaches the records that can be read."""
        return manifest.shape == self.shape and manifest.end == end and manifest.end >= self.purged_before


@dataclass(frozen=True)
class _ExistingFiles:
    """The files in the folder of the key index."""

    manifests: frozenset[str]
    files: frozenset[str]

    @staticmethod
    def of(snapshot: Snapshot) -> _ExistingFiles:
        objects = snapshot.objects
        return _ExistingFiles(
            frozenset(_name(info) for info in objects.key_manifests()),
            frozenset(_name(info) for info in objects.key_files()),
        )

    def replaced_by(self, manifest: KeyManifest, snapshot: Snapshot) -> set[str]:
        """The keys of the files that are not needed any more after this manifest was stored."""
        objects = snapshot.objects
        own = "" if manifest.at is None else manifest.name
        keys = {objects.key_manifest_key(name) for name in self.manifests if name < own}
        if not any(name > own for name in self.manifests):  # else another writer is ahead and may use these files
            keys |= {objects.key_file_key(name) for name in self.files - manifest.names}
        return keys


def _caught_up(
    snapshot: Snapshot, files: KeyIndexFiles, target: _IndexTarget, check: Callable[[KeyIndex], None]
) -> KeyIndex:
    """The index built from the newest manifest that passes `check`, and the records after it."""
    for base in _bases(snapshot, files, target):
        try:
            check(base)
            return base if base.manifest.at == target.at else _kept(_with_records_since(snapshot, base), target)
        except BadIndex as error:
            _log.warning("trying an older key index: %s", error)
    return rebuild(snapshot, files.cache)


def _kept(index: KeyIndex, target: _IndexTarget) -> KeyIndex:
    assert target.at is not None
    return index.kept(target.at)


def _bases(snapshot: Snapshot, files: KeyIndexFiles, target: _IndexTarget) -> Iterator[KeyIndex]:
    """The stored indexes as of this block and earlier blocks, newest first."""
    listed = {_name(info) for info in snapshot.objects.key_manifests()}
    if not listed:
        return
    slices = snapshot.all_slices
    columns = [slices.column(name).to_pylist() for name in ("sequence_number", "block", "end")]
    for number, block, end in reversed(list(zip(*columns, strict=True))):
        if (name := manifest_name((number, block))) in listed:
            manifest = _read(files, name)
            if manifest is not None and target.fits(manifest, end):
                yield open_index(files, manifest)


def _with_records_since(snapshot: Snapshot, index: KeyIndex) -> KeyIndex:
    """The index extended by all records that it lacks."""
    if index.end >= snapshot.next_offset:
        return index
    for batch in hash_records_since(snapshot, index.manifest.shape, index.end):
        old = index.find(batch.key, batch.lookup).offset
        index = index.with_records(IndexRecords(batch.start, batch.key, batch.row, batch.op, old, batch.lookup))
    index.require_usable()
    return index


def _read(files: KeyIndexFiles, name: str) -> KeyManifest | None:
    try:
        return decode_index(name, files.objects.store.get(files.objects.key_manifest_key(name)))
    except ObjectNotFound:
        return None
    except BadIndex as error:
        _log.warning("a manifest of the key index of %s is damaged: %s", files.objects.folder, error)
        return None


def _delete(files: KeyIndexFiles, keys: set[str]) -> None:
    try:
        for key in sorted(keys):
            files.objects.store.delete(key)
    except (OSError, StorageError) as error:
        _log.warning("old files of the key index of %s could not be removed (%s)", files.objects.folder, error)


def _name(info: ObjectInfo) -> str:
    return info.key.rsplit("/", 1)[-1]


# Reading records

GROUP_ROWS = 2 << 20
"""About this many records are indexed at a time."""

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class HashedRecords:
    """Hashes of consecutive records from offset `start`. The rows that they end are not known yet."""

    start: int
    key: Hashes
    row: Hashes
    op: npt.NDArray[np.int32]
    lookup: Hashes | None

    def __len__(self) -> int:
        return len(self.op)

    @property
    def end(self) -> int:
        return self.start + len(self)


def hash_records_since(snapshot: Snapshot, shape: KeyIndexShape, start: int) -> Iterator[HashedRecords]:
    """The hashes of all readable records from offset `start`, in groups of about `GROUP_ROWS`."""
    waiting: list[HashedRecords] = []
    for batch in _batches(snapshot, shape, start):
        waiting.append(batch)
        if batch.end - waiting[0].start >= GROUP_ROWS:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _batches(snapshot: Snapshot, shape: KeyIndexShape, start: int) -> Iterator[HashedRecords]:
    layout = snapshot.require_layout(snapshot.objects.folder)
    columns = [snapshot.slices.column(name).to_pylist() for name in ("start", "end", "physical", "size")]
    for first, end, physical, size in zip(*columns, strict=True):
        if end <= start:
            continue
        if first != start:
            raise _unreadable(start, first, f"the slice after record {start - 1} begins with record {first}")
        for batch in _read_keys(snapshot, layout, Multihash(SHA3_256, physical), size, first, end):
            yield _without_erased(_hashed(batch, layout, shape, start), snapshot.erased)
            start += batch.num_rows
        if start != end:
            raise _unreadable(first, end, f"it has {start - first} records")


def _read_keys(
    snapshot: Snapshot, layout: Layout, physical: Multihash, size: int, first: int, end: int
) -> Iterator[pa.RecordBatch]:
    objects = snapshot.objects
    key = objects.data_key(physical)
    with _readable(first, end), open_slice(objects.store, key, size) as file:
        in_file = set(file.schema_arrow.names)
        columns = [layout.vocab.offset, layout.vocab.op, *(n for n in layout.data.names if n in in_file)]
        yield from file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)


def _hashed(batch: pa.RecordBatch, layout: Layout, shape: KeyIndexShape, start: int) -> HashedRecords:
    offsets = batch.column(layout.vocab.offset).to_numpy(zero_copy_only=False)
    if not np.array_equal(offsets, np.arange(start, start + batch.num_rows)):
        raise _unreadable(start, start + batch.num_rows, "its offsets are not consecutive")
    op = batch.column(layout.vocab.op).to_numpy(zero_copy_only=False).astype(np.int32)
    # Old slices lack columns that were added later. Nulls do not change a hash, so these columns can be left out.
    in_batch = set(batch.schema.names)
    fields = [f for f in layout.data if f.name in in_batch]
    table = pa.Table.from_batches([batch]).select([f.name for f in fields]).cast(pa.schema(fields))
    return HashedRecords(
        start,
        hash_rows(table, shape.key),
        hash_rows(table, [f.name for f in fields]),
        op,
        hash_rows(table, shape.lookup) if shape.has_prefix else None,
    )


def _without_erased(records: HashedRecords, erased: I64) -> HashedRecords:
    """The records, of which erased ones are retractions of keys that no row has: they are never current."""
    mine = erased[slice(*np.searchsorted(erased, [records.start, records.end]))]
    if len(mine) == 0:
        return records
    at, nothing = mine - records.start, np.uint64(0)
    op = records.op.copy()
    op[at] = RETRACT

    def unknown(hashes: Hashes) -> Hashes:
        high, low = hashes.high.copy(), hashes.low.copy()
        high[at], low[at] = mine.astype(np.uint64), nothing
        return Hashes(high, low)

    lookup = None if records.lookup is None else unknown(records.lookup)
    return HashedRecords(records.start, unknown(records.key), unknown(records.row), op, lookup)


def _joined(parts: list[HashedRecords]) -> HashedRecords:
    lookups = [p.lookup for p in parts if p.lookup is not None]
    return HashedRecords(
        parts[0].start,
        Hashes.joined([p.key for p in parts]),
        Hashes.joined([p.row for p in parts]),
        np.concatenate([p.op for p in parts]),
        Hashes.joined(lookups) if lookups else None,
    )


@contextmanager
def _readable(first: int, end: int) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, StorageError) as error:
        raise _unreadable(first, end, str(error)) from error


def _unreadable(first: int, end: int, problem: Any) -> UnreadableSlice:
    return UnreadableSlice(
        f"records {first} to {end - 1} cannot be read, so their keys are not known: {problem}",
        hint=DAMAGED_HINT,
    )


# Verify

RANGE_ENTRIES = 4 << 20
"""About this many entries are compared at a time."""

_REMEDY = "remove the folder info/keys: the next lookup rebuilds the index from the records"


def index_problems(snapshot: Snapshot) -> Iterator[VerifyProblem]:
    """The differences between a dataset's key index and one built from the records alone."""
    key = snapshot.objects.key_file_key("")
    try:
        index = load(snapshot, {})
        index.check()
        with TemporaryFolder() as folder:
            objects = DatasetObjects(LocalStore(folder), snapshot.objects.folder)
            right = build(snapshot, KeyIndexFiles(objects, {}), index.manifest.shape)
            for difference in _differences(index, right, snapshot.purged_before):
                yield VerifyProblem("keys", key, f"the key index {difference}; {_REMEDY}")
    except BadIndex as error:
        yield VerifyProblem("keys", key, f"{error.message}; {_REMEDY}")


def _differences(index: KeyIndex, right: KeyIndex, purged_before: int) -> Iterator[str]:
    if index.end != right.end:
        yield f"ends at record {index.end - 1}, not at {right.end - 1}"
        return
    ranges = -(-max(index.live_count, right.live_count, 1) // RANGE_ENTRIES)
    for number in range(ranges):
        low, high = END_OF_HASHES * number // ranges, END_OF_HASHES * (number + 1) // ranges
        actual, expected = (_not_purged(i.live_between(low, high), purged_before) for i in (index, right))
        if not _same(actual, expected):
            yield f"has wrong entries: {_described(actual.offset, expected.offset)}"
            return
    dead, ended = (offsets[np.searchsorted(offsets, purged_before) :] for offsets in (index.dead(), right.dead()))
    if not np.array_equal(dead, ended):
        yield f"has wrong dead offsets: {_described(dead, ended)}"


def _not_purged(entries: KeyEntries, purged_before: int) -> KeyEntries:
    """The entries without purged rows, which a rebuilt index does not have."""
    return entries.take(entries.offset >= purged_before) if purged_before else entries


def _same(a: KeyEntries, b: KeyEntries) -> bool:
    columns = [(a.offset, b.offset), (a.row.high, b.row.high), (a.row.low, b.row.low)]
    columns += list(zip(a.order_columns, b.order_columns, strict=True))
    return all(np.array_equal(x, y) for x, y in columns)


def _described(actual: I64, expected: I64) -> str:
    extra, missing = np.setdiff1d(actual, expected), np.setdiff1d(expected, actual)
    if len(extra) == 0 and len(missing) == 0:
        return "the offsets are right, the hashes are wrong"
    texts = [
        f"{name} {', '.join(map(str, some[:3]))}" for name, some in (("has", extra), ("lacks", missing)) if len(some)
    ]
    return f"{' and '.join(texts)} ({len(extra)} too many, {len(missing)} too few)"
