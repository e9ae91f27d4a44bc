"""The smallest worlds of the meta's tests: keys that are numbers, two inputs, and commits that follow each other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from floodmark.functions.failures import failed_keys_schema
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.arrays import Hashes
from floodmark.storage.memory import MemoryStore
from floodmark.transforms.meta import TransformMeta
from floodmark.transforms.meta_entries import RunInfo

KEYS = pa.schema([("type", pa.int64())])  # named as a column of failures is, on purpose
INPUTS = ("a", "b")


def objects_in_memory():
    return DatasetObjects(MemoryStore(), "features")


def hashes(keys):
    """Distinct hashes, of which several share a high half, spread over the whole range."""
    numbers = np.array(sorted(keys), np.uint64)
    return Hashes((numbers % np.uint64(7)) * np.uint64((1 << 64) // 7), numbers * np.uint64(1 << 58))


def failures(keys, *, now=0, attempts=1, state="retry", due=None):
    rows, half = sorted(keys), hashes(keys)
    columns = [rows, half.high, half.low]
    facts = ("ValueError", "bad", "Traceback …", attempts, now, now, state, due, True)
    columns += [[value] * len(rows) for value in facts]
    schema = failed_keys_schema(KEYS)
    return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def run(number, a=-1, b=-1):
    return RunInfo(f"run-{number}", 1000 * number, {"a": a, "b": b})


def committed(draft, objects):
    """What the next run loads."""
    draft.put(objects)
    draft.close()
    return TransformMeta.load(objects, draft.checkpoint.physical_hash, draft.meta.tiers)
