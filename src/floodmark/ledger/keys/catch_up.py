"""What a key index that lags has missed: the records of slices, read back and hashed a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.ledger.errors import UnreadableSlice
from floodmark.ledger.keys.hashing import hash_rows
from floodmark.ledger.keys.manifest import Shape
from floodmark.ledger.layout import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import Hashes
from floodmark.storage.errors import StorageError

GROUP_ROWS = 2 << 20
"""So many records are indexed at a time."""

_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Hashed:
    """Consecutive records from offset `start` on, hashed; which rows they end is not known yet."""

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


def hashed_since(snapshot: Snapshot, shape: Shape, start: int) -> Iterator[Hashed]:
    """The records from offset `start` on that can still be read, in groups of about `GROUP_ROWS`."""
    waiting: list[Hashed] = []
    for batch in _batches(snapshot, shape, start):
        waiting.append(batch)
        if batch.end - waiting[0].start >= GROUP_ROWS:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _batches(snapshot: Snapshot, shape: Shape, start: int) -> Iterator[Hashed]:
    layout = snapshot.require_layout(snapshot.objects.folder)
    columns = [snapshot.slices.column(name).to_pylist() for name in ("start", "end", "physical")]
    for first, end, physical in zip(*columns, strict=True):
        if end <= start:
            continue
        if first != start:
            raise _unreadable(start, first, f"the slice after record {start - 1} begins with record {first}")
        for batch in _read(snapshot, layout, Multihash(SHA3_256, physical), first, end):
            yield _hashed(batch, layout, shape, start)
            start += batch.num_rows
        if start != end:
            raise _unreadable(first, end, f"it has {start - first} records")


def _read(snapshot: Snapshot, layout: Layout, physical: Multihash, first: int, end: int) -> Iterator[pa.RecordBatch]:
    objects = snapshot.objects
    key = objects.data_key(physical)
    with _readable(first, end):
        path = objects.store.local_path(key)
        with pq.ParquetFile(path if path is not None else objects.store.open(key)) as file:
            there = set(file.schema_arrow.names)
            wanted = [layout.vocab.offset, layout.vocab.op, *(n for n in layout.data.names if n in there)]
            yield from file.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False)


def _hashed(batch: pa.RecordBatch, layout: Layout, shape: Shape, start: int) -> Hashed:
    offsets = batch.column(layout.vocab.offset).to_numpy(zero_copy_only=False)
    if not np.array_equal(offsets, np.arange(start, start + batch.num_rows)):
        raise _unreadable(start, start + batch.num_rows, "its records are not numbered one after the other")
    op = batch.column(layout.vocab.op).to_numpy(zero_copy_only=False).astype(np.int32)
    # Columns that were added later are not in old slices; nulls do not count, so nothing needs to stand for them.
    fields = [f for f in layout.data if f.name in batch.schema.names]
    table = pa.Table.from_batches([batch]).select([f.name for f in fields]).cast(pa.schema(fields))
    return Hashed(
        start,
        hash_rows(table, shape.key),
        hash_rows(table, [f.name for f in fields]),
        op,
        hash_rows(table, shape.lookup) if shape.has_prefix else None,
    )


def _joined(parts: list[Hashed]) -> Hashed:
    lookups = [p.lookup for p in parts if p.lookup is not None]
    return Hashed(
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
        hint="a file of the dataset is missing or damaged: verify says which",
    )
