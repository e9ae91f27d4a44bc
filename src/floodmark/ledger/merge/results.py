"""Results of a transform on their way into its output: rows and processed keys, both by ranges of the keys' hashes.

*Processed* are the hashes of the lookup prefix (the transform keys) whose result this is: what the output holds of them
and the rows lack is retracted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from floodmark.ledger.conform import cast_columns, check_event_times
from floodmark.ledger.errors import DuplicateKeys
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import Batch, check_key, hashed
from floodmark.ledger.merge.buckets import BUCKETS, FileBucket, SortedFile, bucket_of, write_sorted
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.strategy import Strategy
from floodmark.storage.arrays import Hashes, stable_order, starts_of_groups
from floodmark.storage.errors import StorageError
from floodmark.storage.scratch import explained
from floodmark.storage.store import Store

_HASH_BYTES = 16


@dataclass(frozen=True)
class SortedHashes:
    """A file of hashes by bucket: sixteen bytes each, the high half first."""

    path: str  # a key when there is a store
    store: Store | None
    rows: tuple[int, ...]  # by bucket

    @property
    def size(self) -> int:
        """The bytes that the file must have."""
        return _HASH_BYTES * sum(self.rows)

    def read(self, low: int = 0, high: int = BUCKETS) -> Hashes:
        """The hashes of the buckets [low, high)."""
        count = sum(self.rows[low:high])
        if count == 0:
            return Hashes.joined([])
        with pa.memory_map(self.path) if self.store is None else self.store.open(self.path) as file:
            if file.size() != self.size:
                raise StorageError(
                    f"the processed keys in {self.path} are {file.size()} bytes, should be {self.size}",
                    hint="nothing was committed; run the step again",
                )
            file.seek(_HASH_BYTES * sum(self.rows[:low]))
            pairs = np.frombuffer(file.read(_HASH_BYTES * count), "<u8").reshape(count, 2)
        return Hashes(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))


@dataclass(frozen=True)
class Results:
    """What a transform returned for some keys: its rows, and the hashes of all keys that were processed."""

    rows: Sequence[SortedFile]
    processed: Sequence[SortedHashes]


@dataclass(frozen=True)
class ResultBucket:
    """The rows and the processed keys of some neighbouring buckets."""

    rows_part: FileBucket | None  # None: no rows at all
    nothing: Batch
    processed: tuple[SortedHashes, ...]
    first: int = 0
    end: int = BUCKETS

    @property
    def rows(self) -> int:
        return 0 if self.rows_part is None else self.rows_part.rows

    @property
    def low(self) -> int:
        return self.first << 56

    @property
    def high(self) -> int:
        return self.end << 56

    def load(self) -> Batch:
        return self.nothing if self.rows_part is None else self.rows_part.load()

    def load_processed(self) -> Hashes:
        """The processed keys, each once: twice would mean two results for it, and no way to tell which holds."""
        found = Hashes.joined([file.read(self.first, self.end) for file in self.processed])
        columns = [found.high, found.low]
        order = stable_order(columns)
        repeated = len(found) - int(starts_of_groups([c[order] for c in columns]).sum())
        if repeated:
            raise DuplicateKeys(
                f"{repeated:,} keys of a transform were processed twice for one commit",
                hint="nothing was written: one key has one result",
                keys=[],
            )
        return found.take(order)


def write_results(
    table: pa.Table, layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects, prefix: str
) -> SortedFile:
    """Cast, check and hash rows that a function returned, and write them by bucket.

    Into `folder` where the dataset is local, else as an object under `prefix`.
    """
    return write_sorted(result_batch(table, layout, strategy), folder, objects, prefix)


def result_batch(table: pa.Table, layout: Layout, strategy: Strategy) -> Batch:
    """Rows that a function returned, cast, checked and hashed."""
    where = "the result"
    data = cast_columns(table, layout, where)
    check_key(data, layout, strategy, where)
    if layout.event_time is not None:
        check_event_times(data.column(layout.event_time), layout.event_time, where)
    return hashed(data, layout, strategy, None)


def write_hashes(hashes: Hashes, folder: Path, objects: DatasetObjects, prefix: str) -> SortedHashes:
    """Write the hashes of processed keys by bucket: where `write_results` would."""
    bucket = bucket_of(hashes)
    order = np.argsort(bucket, kind="stable")  # of bytes: a counting sort
    pairs = np.empty((len(hashes), 2), "<u8")
    pairs[:, 0], pairs[:, 1] = hashes.high[order], hashes.low[order]
    counts = tuple(int(n) for n in np.bincount(bucket, minlength=BUCKETS))
    target = folder if objects.is_local else objects.store.staging()
    path = target / f"hashes-{uuid.uuid4().hex}"
    with explained(f"{len(hashes):,} processed keys", target):
        pairs.tofile(path)
    if objects.is_local:
        return SortedHashes(str(path), None, counts)
    key = f"{prefix}/{path.name}"
    objects.store.put_file(key, path)
    return SortedHashes(key, objects.store, counts)


def result_buckets(
    results: Results, nothing: Batch, repeated: int, old_width: float, largest: int
) -> list[ResultBucket]:
    """Neighbouring buckets taken together until what they bring and what they may repeat is enough for a slice.

    `repeated` is how many rows of the output all processed keys may have, and `old_width` the bytes of one.
    """
    files, processed = tuple(results.rows), tuple(results.processed)
    rows = np.sum([f.rows for f in files], axis=0) if files else np.zeros(BUCKETS, np.int64)
    keys = np.sum([p.rows for p in processed], axis=0) if processed else np.zeros(BUCKETS, np.int64)
    width = sum(f.size for f in files) / max(int(rows.sum()), 1)
    weights = rows * width + keys * (repeated / max(int(keys.sum()), 1) * old_width)
    buckets: list[ResultBucket] = []
    first, held = 0, 0.0

    def close(end: int) -> None:
        part = FileBucket(files, first, end) if files else None
        buckets.append(ResultBucket(part, nothing, processed, first, end))

    for bucket, weight in enumerate(weights.tolist()):
        if held and held + weight > largest:
            close(bucket)
            first, held = bucket, 0.0
        held += weight
    close(BUCKETS)
    return buckets
