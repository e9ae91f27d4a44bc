"""A checkpoint as bytes: a record batch behind a header that tells when it is torn, damaged or another key's.

Columns with nothing but nulls are not stored: hardly any batch has errors, and a column of none would be most of it.
"""

from __future__ import annotations

import json

import pyarrow as pa

from floodmark.compute.checkpoints.keys import parse_key
from floodmark.compute.errors import BadCheckpoint
from floodmark.storage import document
from floodmark.storage.document import Damaged

_KIND = "checkpoint"
_SCHEMA, _KEPT = b"floodmark:schema", b"floodmark:columns"  # of a batch without its columns of nulls
_ALIGNMENT = 64  # a batch in a mapped file is used where it lies


def seal(key: str, batch: pa.RecordBatch) -> bytes:
    """The bytes of a key's checkpoint."""
    stored = _without_nulls(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stored.schema) as writer:
        writer.write_batch(stored)
    facts = {"key": key, "rows": batch.num_rows, "span": _span(key, batch.num_rows)}
    return document.encode(_KIND, 1, facts, {"batch": sink.getvalue()}, _ALIGNMENT)


def unseal(key: str, data: pa.Buffer) -> pa.RecordBatch:
    """The batch of a key's checkpoint, not copied; `BadCheckpoint` when these are not that checkpoint's bytes."""
    try:
        found = document.decode(memoryview(data), _KIND, key)
        body = found.section("batch")
    except Damaged as error:
        raise _bad(key, error.problem) from error
    name, rows, span = (found.facts[fact] for fact in ("key", "rows", "span"))
    if name != key:
        raise _bad(key, f"it is the checkpoint {name!r}")
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch = _with_nulls(reader.read_next_batch(), rows)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise _bad(key, f"its batch cannot be read: {error}") from error
    if batch.num_rows != rows or span != _span(key, rows):
        raise _bad(key, f"it has {batch.num_rows} rows and should have {rows}")
    return batch


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = [i for i, column in enumerate(batch.columns) if column.null_count < len(column)]
    if len(kept) == batch.num_columns or not kept:
        return batch
    notes = {_SCHEMA: batch.schema.serialize().to_pybytes(), _KEPT: json.dumps(kept).encode()}
    schema = pa.schema([batch.schema.field(i) for i in kept], notes)
    return pa.RecordBatch.from_arrays([batch.column(i) for i in kept], schema=schema)


def _with_nulls(stored: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    notes = stored.schema.metadata or {}
    if _SCHEMA not in notes:
        return stored
    schema = pa.ipc.read_schema(pa.py_buffer(notes[_SCHEMA]))
    columns = dict(zip(json.loads(notes[_KEPT]), stored.columns, strict=True))
    arrays = [columns[i] if i in columns else pa.nulls(rows, field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _span(key: str, rows: int) -> int:
    parsed = parse_key(key)
    return rows if parsed is None else parsed.end - parsed.start


def _bad(key: str, problem: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"The checkpoint {key!r} cannot be used: {problem}.",
        hint="Delete it; the next backfill computes its range again.",
        key=key,
        problem=problem,
    )
