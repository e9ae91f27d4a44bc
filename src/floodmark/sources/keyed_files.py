"""Files of a dataset with a key: the dataset has the rows that reading all files in the order of their paths gives.

For each file the hashes of its keys are stored. A key belongs to the last file that has it. When a file changes, its
own rows are written, rows that a later file has are left out, and a key that the file had and has no more gets the row
of the file before it, or is retracted. A file that is gone keeps the keys that belong to it. It cannot give back rows
that other files have replaced, so it loses keys that are taken from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.chain.events import AddData, MetadataEvent
from floodmark.engine.session import Runtime
from floodmark.errors import ObjectNotFound
from floodmark.ledger.block_attributes import with_restored_files
from floodmark.ledger.data_input import Format, file_data, with_null_columns
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.staging import stage
from floodmark.ledger.strategy import Strategy
from floodmark.rows.buckets import AdjustedBucket, ResultBucket
from floodmark.rows.classify import APPEND, RETRACT, Batch, make_batch
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.key_index import KeyIndex
from floodmark.rows.lookup import retraction_rows
from floodmark.rows.merge import BatchBuckets, BatchIntake, KeyedWrite, PreparedMerge
from floodmark.rows.row_copies import RowReader
from floodmark.sources.file_log import KEYS_FOLDER, Content, FileLog, SourceFile
from floodmark.sources.ingest import columns_added_later
from floodmark.storage.arrays import I64, Hashes

_CHECK_BYTES = 32
_NO_KEYS = Hashes.joined([])
_CACHED_KEYS = 1 << 24
"""At most about this many keys of files stay in memory during a run: 256 MB."""


class FileKeys:
    """The stored keys of the files in a log. An object never changes: its name has the file and its content."""

    def __init__(self, objects: DatasetObjects, log: FileLog) -> None:
        self._objects, self._log = objects, log
        self._loaded: dict[str, Hashes] = {}

    def load(self, name: str) -> Hashes | None:
        """The keys of the content of a file that was ingested last; None if they are not known."""
        stored = self._id(name)
        if stored not in self._loaded:
            try:
                data = self._objects.store.get(self._path(stored))
            except ObjectNotFound:
                return None
            check, payload = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
            if hashlib.sha256(payload).digest() != check:
                return None
            pairs = np.frombuffer(payload, "<u8").reshape(-1, 2)
            if sum(map(len, self._loaded.values())) > _CACHED_KEYS:
                self._loaded.clear()
            self._loaded[stored] = Hashes(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))
        return self._loaded[stored]

    def store(self, content: Content, keys: Hashes) -> None:
        """Store the keys of a content, durably, before its rows are committed."""
        self._put(_id_of(content), keys)

    def store_left(self, name: str, keys: Hashes) -> str:
        """Store the keys that are left to a file that is gone; returns the id under which the log can name them."""
        digest = hashlib.sha256(np.column_stack([keys.high, keys.low]).tobytes()).hexdigest()
        stored = _id_of(Content(digest, name))
        self._put(stored, keys)
        return stored

    def sweep(self) -> None:
        """Remove the keys of contents that the log does not name."""
        used = {self._id(name) for name in self._log.taken}
        for info in list(self._objects.store.list(f"{self._objects.folder}/{KEYS_FOLDER}")):
            if info.name not in used:
                self._objects.store.delete(info.key)

    def _put(self, stored: str, keys: Hashes) -> None:
        payload = np.column_stack([keys.high, keys.low]).astype("<u8").tobytes()
        path, data = self._path(stored), hashlib.sha256(payload).digest() + payload
        if not self._objects.store.put_if_absent(path, data) and self._objects.store.get(path) != data:
            self._objects.store.delete(path)  # it was damaged
            self._objects.store.put_if_absent(path, data)
        self._loaded[stored] = keys

    def _id(self, name: str) -> str:
        return self._log.left_keys.get(name) or _id_of(replace(self._log.taken[name], name=name))

    def _path(self, stored: str) -> str:
        return f"{self._objects.folder}/{KEYS_FOLDER}/{stored}"


def _id_of(content: Content) -> str:
    return f"{hashlib.sha256(content.name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}-{content.sha256[:40]}"


@dataclass
class FileDelivery:
    """A content of one file to be written, among the other files of its source.

    `present` finds the files that exist, by name. `old_name` is the former name of a file that was renamed.
    """

    content: Content
    keys: FileKeys
    log: FileLog
    present: Callable[[str], SourceFile | None]
    read: Format | None = None
    old_name: str | None = None
    replaced: int = 0
    """Keys of this file whose rows a later file has."""
    restored: tuple[str, ...] = ()
    """Files that gave rows back for keys that this file has no more."""
    unknown: tuple[str, ...] = ()
    """Files whose keys at their last load are not known: rows of lines removed from them stay."""

    @property
    def name(self) -> str:
        return self.content.name


@dataclass(frozen=True)
class _Ownership:
    """What a delivery changes besides its own rows."""

    replaced: Hashes = _NO_KEYS
    """Keys of the file that belong to a later file."""
    released: Hashes = _NO_KEYS
    """Keys that belonged to the file, or to the file under its old name, and now to another file or to none."""


@dataclass
class FileMerge(KeyedWrite):
    """The merge of a file's rows."""

    delivery: FileDelivery | None = None
    _own: tuple[Layout, BatchBuckets] | None = field(default=None, repr=False)

    def _taken(
        self, snapshot: Snapshot, index: KeyIndex, intake: BatchIntake, layout: Layout, _: PreparedMerge | None
    ) -> BatchBuckets:
        assert self.delivery is not None
        if self._own is None or self._own[0] != layout:
            self._own = layout, super()._taken(snapshot, index, intake, layout, None)
        batch = self._own[1]
        target = _Target(snapshot, index, layout, self._strategy(snapshot), intake.folder, self.runtime)
        keys = Hashes.joined([bucket.load().key for bucket in batch.buckets]).distinct()
        change = _Resolver(self.delivery, target).resolve(keys)
        self.delivery.replaced = len(change.replaced)
        self.delivery.keys.store(self.delivery.content, keys)
        extra = target.batch_for(self.delivery, change.released) if len(change.released) else None
        if extra is None and not len(change.replaced):
            return batch
        others = target.no_rows() if extra is None else extra
        own = [bucket for bucket in batch.buckets if not isinstance(bucket, ResultBucket)]
        adjusted = [AdjustedBucket(bucket, change.replaced, others) for bucket in own]
        return BatchBuckets(adjusted, batch.run)

    def _events(self, snapshot: Snapshot, prepared: PreparedMerge) -> list[MetadataEvent]:
        events = super()._events(snapshot, prepared)
        names = () if self.delivery is None else self.delivery.restored
        if not names:
            return events
        return [with_restored_files(event, names) if isinstance(event, AddData) else event for event in events]


@dataclass(frozen=True)
class _Target:
    """The dataset that a file is merged into."""

    snapshot: Snapshot
    index: KeyIndex
    layout: Layout
    strategy: Strategy
    folder: Path
    runtime: Runtime

    def batch_for(self, delivery: FileDelivery, released: Hashes) -> Batch:
        """The rows for keys that a file released: those of the last file before it that has them, or retractions."""
        tables: list[pa.Table] = []
        left, delivery.restored = released, ()
        for name in sorted(delivery.log.taken, reverse=True):
            file = delivery.present(name)
            if file is None or name in (delivery.name, delivery.old_name) or not len(left):
                continue
            wanted = left.take(left.among(_keys_of(delivery, name, self)))
            if len(wanted):
                found = [batch for batch in self._rows_of(file, delivery.read, wanted) if len(batch)]
                delivery.restored += (name,) if found else ()
                tables += [batch.table for batch in found]
                left = left.take(~left.among(Hashes.joined([batch.key for batch in found])))
        self._forget_released(delivery, released)
        gone = self._live_keys(left)
        rows = sum(table.num_rows for table in tables)
        op = np.full(rows + gone.num_rows, APPEND, np.int32)
        op[rows:] = RETRACT
        retractions = retraction_rows(gone, self.layout)
        schema = retractions.schema
        table = pa.concat_tables([*(table.select(schema.names).cast(schema) for table in tables), retractions])
        return make_batch(table, self.layout, self.strategy, "the files", op)

    def no_rows(self) -> Batch:
        """A batch without rows."""
        table = pa.schema([f.with_nullable(True) for f in self.layout.data]).empty_table()
        return make_batch(table, self.layout, self.strategy, "the files", np.empty(0, np.int32))

    def keys_in(self, file: SourceFile, read: Format | None) -> Hashes:
        """The keys in a file as it is."""
        return Hashes.joined([batch.key for batch in self._read(file, read)]).distinct()

    def _rows_of(self, file: SourceFile, read: Format | None, keys: Hashes) -> list[Batch]:
        """The rows of a file with these keys. As in a write, its last row of a key counts."""
        found = [batch.take(np.flatnonzero(batch.key.among(keys))) for batch in self._read(file, read)]
        later = _NO_KEYS
        kept: list[Batch] = []
        for batch in reversed(found):
            last = len(batch) - 1 - batch.key.take(slice(None, None, -1)).first_positions()
            last = np.sort(last)
            kept.append(batch.take(last[~batch.key.take(last).among(later)]))
            later = Hashes.joined([later, batch.key])
        return kept[::-1]

    def _read(self, file: SourceFile, read: Format | None) -> list[Batch]:
        objects = self.snapshot.objects
        data = with_null_columns(file_data(file.path, file.base, read), columns_added_later(self.snapshot))
        staged = stage(data, self.layout, self.folder, objects, self.runtime)
        return [make_batch(part.load(), self.layout, self.strategy, part.where) for part in staged.parts]

    def _live_keys(self, keys: Hashes) -> pa.Table:
        """The key columns of the current rows with these keys."""
        if self.strategy.lookup == self.strategy.key:
            found = self.index.find(keys)
            offset, row = found.offset, found.row
        else:
            entries = self.index.live_between()
            at = np.flatnonzero(entries.key.among(keys))
            offset, row = entries.offset[at], entries.row.take(at)
        current: I64 = np.flatnonzero((offset != NO_ROW) & (offset >= self.snapshot.purged_before))
        reader = RowReader(self.snapshot.objects, self.snapshot.slices, self.layout)
        return reader.verified(offset[current], row.take(current)).select(list(self.strategy.key))

    def _forget_released(self, delivery: FileDelivery, released: Hashes) -> None:
        """Take released keys from files that are gone: they cannot give their rows back."""
        left: dict[str, str] = {}
        for name in delivery.log.taken:
            if name in (delivery.name, delivery.old_name) or delivery.present(name) is not None:
                continue
            keys = _keys_of(delivery, name, self)
            is_released = keys.among(released)
            if is_released.any():
                left[name] = delivery.keys.store_left(name, keys.take(~is_released))
        if left:
            delivery.log.begin([], {delivery.name: left})


@dataclass(frozen=True)
class _Resolver:
    """Finds out which file each key belongs to, before and after a delivery."""

    delivery: FileDelivery
    target: _Target

    def resolve(self, keys: Hashes) -> _Ownership:
        """What changes besides the rows of the file, which now has these keys."""
        delivery, taken = self.delivery, self.delivery.log.taken
        if delivery.old_name is None and all(name < delivery.name for name in taken):
            return _Ownership()  # a new file after all others
        names = sorted(taken)
        after = sorted({*names, delivery.name} - {delivery.old_name})
        own = {delivery.name: keys}
        former = [name for name in (delivery.name, delivery.old_name) if name is not None]
        old = [self._keys(name) for name in former if name in taken]
        affected = Hashes.joined([keys, *old]).distinct()
        owner_after = self._owners(affected, after, own)
        is_own = owner_after == after.index(delivery.name)
        others, owner_after = affected.take(~is_own), owner_after[~is_own]
        owner_before = self._owners(others, names, {})
        place_after = np.array([after.index(name) if name in after else -2 for name in names] + [-1])  # [-1] is no file
        is_released = place_after[owner_before] != owner_after
        return _Ownership(others.take(others.among(keys)), others.take(is_released))

    def _owners(self, keys: Hashes, names: Sequence[str], known: Mapping[str, Hashes]) -> I64:
        """For each key: the position of the last file that has it; -1 if none has it."""
        owner = np.full(len(keys), -1, np.int64)
        left = np.arange(len(keys))
        for position in range(len(names) - 1, -1, -1):
            if not len(left):
                break
            name = names[position]
            has = keys.take(left).among(known[name] if name in known else self._keys(name))
            owner[left[has]] = position
            left = left[~has]
        return owner

    def _keys(self, name: str) -> Hashes:
        return _keys_of(self.delivery, name, self.target)


def _keys_of(delivery: FileDelivery, name: str, target: _Target) -> Hashes:
    """The keys of a file's last ingested content. If they are lost, they are read again from an unchanged file."""
    stored = delivery.keys.load(name)
    if stored is not None:
        return stored
    file = delivery.present(name)
    if file is None or not delivery.log.is_taken(name, delivery.log.hash_of(file)):
        delivery.unknown = (*(one for one in delivery.unknown if one != name), name)
        return _NO_KEYS
    keys = target.keys_in(file, delivery.read)
    delivery.keys.store(replace(delivery.log.taken[name], name=name), keys)
    return keys
