"""Buckets: the rows of a batch, split by ranges of the key's hash so that each range can be merged separately."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.errors import DuplicateKeys, StorageError
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES, Part
from floodmark.ledger.schema import Layout
from floodmark.ledger.strategy import Strategy
from floodmark.rows.classify import Batch, make_batch
from floodmark.storage.arrays import Hashes, is_group_start, stable_order
from floodmark.storage.scratch import SortedFile, upload, write_sorted_file
from floodmark.storage.store import Store

BUCKETS = 256
_SHIFT = np.uint64(56)
_LOOKUP, _OP = b"floodmark.lookup", b"floodmark.op"


@dataclass(frozen=True)
class MemoryBucket:
    """A bucket with its rows in memory."""

    batch: Batch = field(repr=False)
    low: int = 0
    high: int = 1 << 64

    @property
    def rows(self) -> int:
        return len(self.batch)

    def load(self) -> Batch:
        return self.batch

    def split(self, ranges: int) -> list[MemoryBucket]:
        """Split the rows into this many equal ranges of hashes."""
        bounds = [(1 << 64) * i // ranges for i in range(ranges + 1)]
        which = np.searchsorted(np.array(bounds[1:-1], np.uint64), self.batch.place.high, side="right")
        return [
            MemoryBucket(self.batch.take(np.flatnonzero(which == i)), bounds[i], bounds[i + 1]) for i in range(ranges)
        ]


@dataclass(frozen=True)
class FileBucket:
    """The rows of adjacent buckets in files, in their original order."""

    files: tuple[SortedFile, ...]
    first: int
    end: int

    @property
    def low(self) -> int:
        return self.first << int(_SHIFT)

    @property
    def high(self) -> int:
        return self.end << int(_SHIFT)

    @property
    def rows(self) -> int:
        return sum(sum(f.rows[self.first : self.end]) for f in self.files)

    def load(self) -> Batch:
        with_rows = [f for f in self.files if any(f.rows[self.first : self.end])]
        # Without rows, one file still gives the columns: a snapshot may retract rows in this range.
        return _from_table(pa.concat_tables([f.read(self.first, self.end) for f in with_rows or self.files[:1]]))


@dataclass(frozen=True)
class AdjustedBucket:
    """A bucket without the rows of some keys, and with further rows, whose keys it does not have."""

    base: Bucket
    left_out: Hashes
    added: Batch = field(repr=False)  # of all buckets, with operations

    @property
    def low(self) -> int:
        return self.base.low

    @property
    def high(self) -> int:
        return self.base.high

    @property
    def rows(self) -> int:
        """At most as many rows as there are."""
        return self.base.rows + len(self.added)

    def load(self) -> Batch:
        base = self.base.load()
        base = base.take(np.flatnonzero(~base.key.among(self.left_out)))
        high = self.added.place.high
        is_here = (high >= np.uint64(self.low)) & (high <= np.uint64(self.high - 1))
        with_ops = replace(base, op=np.zeros(len(base), np.int32)) if base.op is None else base
        return _joined([with_ops, self.added.take(np.flatnonzero(is_here))])


Bucket = MemoryBucket | FileBucket | AdjustedBucket


@dataclass(frozen=True)
class SortTask:
    """One part to sort into buckets."""

    part: Part
    layout: Layout
    strategy: Strategy
    folder: Path
    objects: DatasetObjects


def load_bucket(parts: Sequence[Part], layout: Layout, strategy: Strategy) -> MemoryBucket:
    """Cast, check and hash the rows of a small batch in memory."""
    tables = [make_batch(part.load(), layout, strategy, part.where) for part in parts]
    return MemoryBucket(_joined(tables))


def sort_part(task: SortTask) -> SortedFile:
    """Cast, check and hash the rows of one part, and write them sorted by bucket."""
    batch = make_batch(task.part.load(), task.layout, task.strategy, task.part.where)
    return write_sorted(batch, task.folder, task.objects, f"{task.objects.folder}/staging/{task.folder.name}")


def sort_spark_frame(
    frame: Any, layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects
) -> list[SortedFile]:
    """Let Spark compute its frame once. Its tasks write the rows sorted by bucket; files are in the frame's order."""
    sort = partial(_sort_batches, layout, strategy, folder, objects)
    schema = "partition int, number int, path string, size bigint, rows array<bigint>"
    files = sorted(frame.mapInArrow(sort, schema).collect(), key=lambda r: (r["partition"], r["number"]))
    store = None if objects.is_local else objects.store
    return [SortedFile(r["path"], store, tuple(r["rows"]), r["size"]) for r in files]


def _sort_batches(
    layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    prefix = f"{objects.folder}/staging/{folder.name}"
    for number, table in enumerate(_tables(batches)):
        file = write_sorted(make_batch(table, layout, strategy, "the data"), folder, objects, prefix)
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([partition], pa.int32()),
                "number": pa.array([number], pa.int32()),
                "path": [file.path],
                "size": pa.array([file.size], pa.int64()),
                "rows": pa.array([list(file.rows)], pa.list_(pa.int64())),
            }
        )


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join batches into tables of about `PART_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def group_buckets(files: Sequence[SortedFile], largest: int | None = None) -> list[FileBucket]:
    """Join adjacent buckets until each group is large enough for a slice. Every bucket is in one group."""
    rows = np.sum([f.rows for f in files], axis=0)
    width = sum(f.size for f in files) / max(int(rows.sum()), 1)
    most = PART_BYTES if largest is None else largest
    groups: list[FileBucket] = []
    first, size = 0, 0.0
    for bucket in range(BUCKETS):
        weight = float(rows[bucket]) * width
        if size and size + weight > most:
            groups.append(FileBucket(tuple(files), first, bucket))
            first, size = bucket, 0.0
        size += weight
    groups.append(FileBucket(tuple(files), first, BUCKETS))
    return groups


def bucket_of(hashes: Hashes) -> npt.NDArray[np.uint8]:
    """The bucket of each hash."""
    return (hashes.high >> _SHIFT).astype(np.uint8)


def write_sorted(batch: Batch, folder: Path, objects: DatasetObjects, prefix: str) -> SortedFile:
    """Write rows sorted by bucket: into a folder if the dataset is local, else as an object under `prefix`."""
    bucket = bucket_of(batch.place)
    order = np.argsort(bucket, kind="stable")  # of bytes: a counting sort
    table = _to_table(batch).take(pa.array(order))
    rows = np.bincount(bucket, minlength=BUCKETS)
    name, what = f"sorted-{uuid.uuid4().hex}", f"{len(batch):,} rows by key"
    if objects.is_local:
        return write_sorted_file(table, rows.tolist(), folder / name, what)
    file = write_sorted_file(table, rows.tolist(), objects.store.staging() / name, what)
    return upload(file, objects.store, f"{prefix}/{name}")


def _to_table(batch: Batch) -> pa.Table:
    """The rows with their hashes and operations as the last columns.

    These are identified by position, because a user's column may have any name.
    """
    columns = [batch.key.high, batch.key.low, batch.row.high, batch.row.low]
    if batch.lookup is not None:
        columns += [batch.lookup.high, batch.lookup.low]
    arrays = [pa.array(values) for values in columns]
    if batch.op is not None:
        arrays.append(pa.array(batch.op))
    fields = [pa.field(f"{i}", array.type) for i, array in enumerate(arrays)]
    own = {_LOOKUP: str(int(batch.lookup is not None)), _OP: str(int(batch.op is not None))}
    schema = pa.schema([*batch.table.schema, *fields], metadata=own)
    return pa.Table.from_arrays([*batch.table.columns, *arrays], schema=schema)


def _from_table(table: pa.Table) -> Batch:
    metadata = table.schema.metadata
    has_lookup, has_op = (metadata[flag] == b"1" for flag in (_LOOKUP, _OP))
    columns = table.num_columns - 4 - 2 * has_lookup - has_op
    own = [table.column(i).to_numpy() for i in range(columns, table.num_columns)]
    return Batch(
        table=table.select(list(range(columns))).replace_schema_metadata(None),
        key=Hashes(own[0], own[1]),
        row=Hashes(own[2], own[3]),
        lookup=Hashes(own[4], own[5]) if has_lookup else None,
        op=own[-1] if has_op else None,
    )


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    lookups = [b.lookup for b in batches if b.lookup is not None]
    ops = [b.op for b in batches if b.op is not None]
    return Batch(
        table=pa.concat_tables([b.table for b in batches]),
        key=Hashes.joined([b.key for b in batches]),
        row=Hashes.joined([b.row for b in batches]),
        lookup=Hashes.joined(lookups) if lookups else None,
        op=np.concatenate(ops) if ops else None,
    )


# Processed keys of transforms

_HASH_BYTES = 16


@dataclass(frozen=True)
class SortedHashes:
    """A file of hashes sorted by bucket: sixteen bytes each, the high half first."""

    path: str  # a key in the store, or a local path without a store
    store: Store | None
    rows: tuple[int, ...]  # by bucket

    @property
    def size(self) -> int:
        """The expected size of the file in bytes."""
        return _HASH_BYTES * sum(self.rows)

    def read(self, low: int = 0, high: int = BUCKETS) -> Hashes:
        """The hashes of the buckets [low, high)."""
        count = sum(self.rows[low:high])
        if count == 0:
            return Hashes.joined([])
        with pa.memory_map(self.path) if self.store is None else self.store.open(self.path) as file:
            if file.size() != self.size:
                raise StorageError(
                    f"the file of processed keys {self.path} has {file.size()} bytes, should have {self.size}",
                    hint="run the step again (nothing was committed)",
                )
            file.seek(_HASH_BYTES * sum(self.rows[:low]))
            pairs = np.frombuffer(file.read(_HASH_BYTES * count), "<u8").reshape(count, 2)
        return Hashes(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))


@dataclass(frozen=True)
class ResultBucket:
    """The rows and the processed keys of adjacent buckets."""

    rows_part: FileBucket | None  # None: no rows
    nothing: Batch  # an empty batch with the columns
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
        """The processed keys, each once. A repeated key would have two results, so it is refused."""
        processed = Hashes.joined([file.read(self.first, self.end) for file in self.processed])
        columns = [processed.high, processed.low]
        order = stable_order(columns)
        repeated = len(processed) - int(is_group_start([c[order] for c in columns]).sum())
        if repeated:
            raise DuplicateKeys(
                f"{repeated:,} keys of a transform were processed twice in one commit",
                hint="process each key once per commit (nothing was written)",
                keys=[],
            )
        return processed.take(order)
