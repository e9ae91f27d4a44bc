"""A checkpoint as bytes: a record batch behind a header that tells when it is torn, damaged or another key's.

Columns with nothing but nulls are not stored: hardly any batch has errors, and a column of none would be most of it.
"""

from __future__ import annotations

import hashlib
import json
import struct

import pyarrow as pa

from floodmark.compute.checkpoints.keys import parse_key
from floodmark.compute.errors import BadCheckpoint

MAGIC = b"FMCHECK1"
_HEADER = struct.Struct("<8sIQQQ32s")  # magic, bytes of the key, rows, span, bytes of the batch, sha-256 of all else
_SCHEMA, _KEPT = b"floodmark:schema", b"floodmark:columns"  # of a batch without its columns of nulls
_ALIGNMENT = 64  # a batch in a mapped file is used where it lies


def seal(key: str, batch: pa.RecordBatch) -> bytes:
    """The bytes of a key's checkpoint."""
    stored = _without_nulls(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stored.schema) as writer:
        writer.write_batch(stored)
    body = sink.getvalue()
    name = _encoded(key)
    facts = (MAGIC, len(name), batch.num_rows, _span(key, batch.num_rows), body.size)
    head = _HEADER.pack(*facts, _checksum(facts, name, body)) + name
    return b"".join([head, bytes(_padding(len(head))), body])


def unseal(key: str, data: pa.Buffer) -> pa.RecordBatch:
    """The batch of a key's checkpoint, not copied; `BadCheckpoint` when these are not that checkpoint's bytes."""
    if data.size < _HEADER.size:
        raise _bad(key, "it is empty" if data.size == 0 else "it is cut short")
    *facts, checksum = _HEADER.unpack(data[: _HEADER.size])
    magic, name_length, rows, span, length = facts
    if magic != MAGIC:
        raise _bad(key, "it is something else's file")
    start = _HEADER.size + name_length
    start += _padding(start)
    if data.size != start + length:
        raise _bad(key, f"it has {data.size} bytes instead of {start + length}")
    name = data[_HEADER.size : _HEADER.size + name_length].to_pybytes()
    body = data[start:]
    if _checksum(tuple(facts), name, body) != checksum:
        raise _bad(key, "it does not have the checksum it was written with")
    if name != _encoded(key):
        raise _bad(key, f"it is the checkpoint {name.decode('utf-8', 'replace')!r}")
    try:
        with pa.ipc.open_stream(body) as reader:
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


def _checksum(facts: tuple[object, ...], name: bytes, body: pa.Buffer) -> bytes:
    digest = hashlib.sha256(_HEADER.pack(*facts, b""))
    digest.update(name)
    digest.update(body)
    return digest.digest()


def _padding(length: int) -> int:
    return -length % _ALIGNMENT


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _bad(key: str, problem: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"The checkpoint {key!r} cannot be used: {problem}.",
        hint="Delete it; the next backfill computes its range again.",
        key=key,
        problem=problem,
    )
