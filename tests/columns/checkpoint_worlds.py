"""Small checkpoints for tests: a computation, its batches, and what a store's files look like from outside."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns.checkpoint_batch import ERROR, ERROR_TYPE, ROWADDR
from floodmark.columns.checkpoint_store import CheckpointStore, path_of_checkpoint
from floodmark.columns.checkpoints import RangeCheckpoint
from floodmark.derive.checkpoint_key import CheckpointPrefix, hash_text, range_key
from floodmark.storage.store import Store

DATASET = "did:odf:abc"
COLUMN = pa.field("brightness", pa.float64())
PREFIX = CheckpointPrefix("bright", "v1", "brightness", hash_text(None), hash_text(DATASET), hash_text("inputs"))


def range_batch(rows: Sequence[int], column: pa.Field = COLUMN) -> pa.RecordBatch:
    """Computed rows: the value of address n is n."""
    values = pa.array(list(rows), pa.int64()).cast(column.type)
    schema = pa.schema([(ROWADDR, pa.int64()), (column.name, column.type), (ERROR, ERROR_TYPE)])
    arrays = [pa.array(list(rows), pa.int64()), values, pa.nulls(len(rows), ERROR_TYPE)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def put_range(
    store: CheckpointStore, start: int, end: int, prefix: CheckpointPrefix = PREFIX, fragment: int = 0
) -> str:
    """Store all rows of [start, end); the key."""
    key = range_key(prefix.text, fragment, start, end)
    store.put(key, range_batch(range(start, end)))
    return key


def values_of(store: CheckpointStore, found: Sequence[RangeCheckpoint]) -> dict[int, float]:
    """Address → value of everything in some checkpoints."""
    rows: dict[int, float] = {}
    for checkpoint in found:
        batch = store.get(checkpoint.key)
        assert checkpoint.rows == BitMap(batch.column(ROWADDR).to_pylist())
        rows |= dict(zip(batch.column(ROWADDR).to_pylist(), batch.column(COLUMN.name).to_pylist(), strict=True))
    return rows


def object_of(store: CheckpointStore, key: str) -> str:
    """The store's key of a checkpoint's bytes."""
    place = path_of_checkpoint(key)
    (found,) = [i.key for i in raw(store).list(store.folder) if i.key.endswith(f"{place.group.name}/{place.leaf}")]
    return found


def raw(store: CheckpointStore) -> Store:
    return store.store
