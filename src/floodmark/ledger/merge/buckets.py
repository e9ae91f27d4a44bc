"""Buckets: the rows of a large batch by ranges of their key's hash, so that each range can be merged by itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import Batch, make_batch
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES, Part
from floodmark.ledger.strategy import Strategy
from floodmark.storage.arrays import Hashes
from floodmark.storage.scratch import explained
from floodmark.storage.store import Store

BUCKETS = 256
_SHIFT = np.uint64(56)
_LOOKUP, _OP = b"floodmark.lookup", b"floodmark.op"


@dataclass(frozen=True)
class SortedFile:
    """A file of rows by bucket: one Arrow batch for each bucket that has any."""

    path: str  # a key when there is a store
    store: Store | None
    rows: tuple[int, ...]  # by bucket
    size: int

    def read(self, low: int, high: int) -> pa.Table:
        """The rows of the buckets [low, high)."""
        source = pa.memory_map(self.path) if self.store is None else self.store.open(self.path)
        reader = pa.ipc.open_file(source)
        skipped = sum(1 for n in self.rows[:low] if n)
        count = sum(1 for n in self.rows[low:high] if n)
        batches = [reader.get_batch(i) for i in range(skipped, skipped + count)]
        return pa.Table.from_batches(batches, reader.schema)


@dataclass(frozen=True)
class HeldBucket:
    """All rows, in memory."""

    batch: Batch = field(repr=False)
    low: int = 0
    high: int = 1 << 64

    @property
    def rows(self) -> int:
        return len(self.batch)

    def load(self) -> Batch:
        return self.batch

    def divided(self, ranges: int) -> list[HeldBucket]:
        """The same rows by so many ranges of hashes, which meet as much of the dataset each."""
        bounds = [(1 << 64) * i // ranges for i in range(ranges + 1)]
        which = np.searchsorted(np.array(bounds[1:-1], np.uint64), self.batch.place.high, side="right")
        return [
            HeldBucket(self.batch.take(np.flatnonzero(which == i)), bounds[i], bounds[i + 1]) for i in range(ranges)
        ]


@dataclass(frozen=True)
class FileBucket:
    """The rows of some neighbouring buckets in files, in the order in which they came."""

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
        # A range without rows still has the columns; a snapshot retracts what it finds there.
        return _from_table(pa.concat_tables([f.read(self.first, self.end) for f in with_rows or self.files[:1]]))


Bucket = HeldBucket | FileBucket


@dataclass(frozen=True)
class SortTask:
    """One part to be sorted into buckets."""

    part: Part
    layout: Layout
    strategy: Strategy
    folder: Path
    objects: DatasetObjects


def hold(parts: Sequence[Part], layout: Layout, strategy: Strategy) -> HeldBucket:
    """A small batch needs no files."""
    tables = [make_batch(part.load(), layout, strategy, part.where) for part in parts]
    return HeldBucket(_joined(tables))


def sort_part(task: SortTask) -> SortedFile:
    """Cast, check, hash and write the rows of one part by bucket."""
    batch = make_batch(task.part.load(), task.layout, task.strategy, task.part.where)
    return write_sorted(batch, task.folder, task.objects, f"{task.objects.folder}/staging/{task.folder.name}")


def sort_spark(
    frame: Any, layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects
) -> list[SortedFile]:
    """Let Spark compute its frame once; its tasks write the rows by bucket, in the order of the frame."""
    sort = partial(_sort_batches, layout, strategy, folder, objects)
    schema = "partition int, number int, path string, size bigint, rows array<bigint>"
    done = sorted(frame.mapInArrow(sort, schema).collect(), key=lambda r: (r["partition"], r["number"]))
    store = None if objects.is_local else objects.store
    return [SortedFile(r["path"], store, tuple(r["rows"]), r["size"]) for r in done]


def _sort_batches(
    layout: Layout, strategy: Strategy, folder: Path, objects: DatasetObjects, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    prefix = f"{objects.folder}/staging/{folder.name}"
    for number, table in enumerate(_gathered(batches)):
        done = write_sorted(make_batch(table, layout, strategy, "the data"), folder, objects, prefix)
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([partition], pa.int32()),
                "number": pa.array([number], pa.int32()),
                "path": [done.path],
                "size": pa.array([done.size], pa.int64()),
                "rows": pa.array([list(done.rows)], pa.list_(pa.int64())),
            }
        )


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= PART_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def grouped(files: Sequence[SortedFile], largest: int | None = None) -> list[FileBucket]:
    """Neighbouring buckets taken together until they are large enough for a slice; all buckets belong to one."""
    rows = np.sum([f.rows for f in files], axis=0)
    width = sum(f.size for f in files) / max(int(rows.sum()), 1)
    most = PART_BYTES if largest is None else largest
    groups: list[FileBucket] = []
    first, held = 0, 0.0
    for bucket in range(BUCKETS):
        weight = float(rows[bucket]) * width
        if held and held + weight > most:
            groups.append(FileBucket(tuple(files), first, bucket))
            first, held = bucket, 0.0
        held += weight
    groups.append(FileBucket(tuple(files), first, BUCKETS))
    return groups


def bucket_of(hashes: Hashes) -> npt.NDArray[np.uint8]:
    """The bucket of each hash."""
    return (hashes.high >> _SHIFT).astype(np.uint8)


def write_sorted(batch: Batch, folder: Path, objects: DatasetObjects, prefix: str) -> SortedFile:
    """Write rows by bucket: into a folder where the dataset is local, else as an object under `prefix`."""
    bucket = bucket_of(batch.place)
    order = np.argsort(bucket, kind="stable")  # of bytes: a counting sort
    table = _to_table(batch).take(pa.array(order)).combine_chunks()
    rows = np.bincount(bucket, minlength=BUCKETS)
    target = folder if objects.is_local else objects.store.staging()
    path = target / f"sorted-{uuid.uuid4().hex}"
    with (
        explained(f"{len(batch):,} rows by key", target),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        at = 0
        for count in rows[rows > 0].tolist():
            for chunk in table.slice(at, count).to_batches():
                writer.write_batch(chunk)
            at += count
    size = path.stat().st_size
    counts = tuple(int(n) for n in rows)
    if objects.is_local:
        return SortedFile(str(path), None, counts, size)
    key = f"{prefix}/{path.name}"
    objects.store.put_file(key, path)
    return SortedFile(key, objects.store, counts, size)


def _to_table(batch: Batch) -> pa.Table:
    """The rows with their hashes and operations as the last columns, which are known by their place: a user's column
    may have any name."""
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
