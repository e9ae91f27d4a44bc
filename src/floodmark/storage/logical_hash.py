"""The logical hash: a hash of the records of a slice that does not depend on Parquet.

Each leaf column has a digest. The hash covers the schema and these digests, as `odf/wire.md` describes it. The leaves
of a struct are its fields; a field is null where one of its parents is null. Column digests are separate so that a
slice can get other offsets after a lost race without hashing its data again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.chain.ids import LOGICAL, Multihash
from floodmark.errors import UnsupportedType

_NULL = b"\x00"
_TIME_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_BATCH_ROWS = 1 << 17


def type_id(data_type: pa.DataType) -> bytes:
    """The bytes of a leaf type at the start of the digest of its column; `UnsupportedType` if the type has no rule."""
    t: Any = data_type
    types = pa.types
    if types.is_null(t):
        return struct.pack("<H", 0)
    if types.is_integer(t):
        return struct.pack("<HBQ", 1, int(types.is_signed_integer(t)), t.bit_width)
    if types.is_floating(t):
        return struct.pack("<HQ", 2, t.bit_width)
    if _is_binary(t):
        return struct.pack("<H", 3)
    if _is_string(t):
        return struct.pack("<H", 4)
    if types.is_boolean(t):
        return struct.pack("<H", 5)
    if types.is_decimal128(t) or types.is_decimal256(t):
        return struct.pack("<HQQQ", 6, t.bit_width, t.precision, t.scale)
    if types.is_date(t):
        return struct.pack("<HQH", 7, t.bit_width, int(types.is_date64(t)))
    if types.is_time(t):
        return struct.pack("<HQH", 8, t.bit_width, _TIME_UNITS[t.unit])
    if types.is_timestamp(t):
        zone = b"\x00" if t.tz is None else struct.pack("<Q", len(t.tz.encode())) + t.tz.encode()
        return struct.pack("<HH", 9, _TIME_UNITS[t.unit]) + zone
    if _is_list(t):
        return struct.pack("<H", 11) + type_id(t.value_type)
    raise UnsupportedType(
        f"type {t} has no rule in the logical hash",
        hint="cast it to a number, string, binary, boolean, decimal, date, time, timestamp, or a list of these",
        data_type=str(t),
    )


def schema_leaves(schema: pa.Schema) -> Iterator[tuple[str, int, pa.DataType | None]]:
    """All fields, depth first: name, nesting level, and the type of a leaf (None for a struct)."""
    for field in schema:
        yield from _leaves(field, 0)


def _leaves(field: pa.Field, level: int) -> Iterator[tuple[str, int, pa.DataType | None]]:
    if pa.types.is_struct(field.type):
        yield field.name, level, None
        struct_type: Any = field.type
        for i in range(struct_type.num_fields):
            yield from _leaves(struct_type.field(i), level + 1)
    else:
        yield field.name, level, field.type


def check_hashable(data_type: pa.DataType) -> None:
    """Raise `UnsupportedType` unless every leaf of the type can be hashed."""
    for _, _, leaf in _leaves(pa.field("", data_type), 0):
        if leaf is not None:
            type_id(leaf)


def hashes_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether equal values of both types have equal digests: wide offsets and views are encodings, not other types."""
    if one.equals(other):
        return True
    first, second = (
        [(name, level, leaf and type_id(leaf)) for name, level, leaf in _leaves(pa.field("", data_type), 0)]
        for data_type in (one, other)
    )
    return first == second


def column_digests(column: pa.ChunkedArray) -> list[bytes]:
    """The digest of each leaf of one column."""
    leaf_types = [t for _, _, t in _leaves(pa.field("", column.type), 0) if t is not None]
    hashers = [hashlib.sha3_256(type_id(t)) for t in leaf_types]
    for chunk in column.chunks:
        for start in range(0, len(chunk), _BATCH_ROWS):
            part = chunk.slice(start, _BATCH_ROWS)
            for hasher, leaf in zip(hashers, _flatten(part), strict=True):
                hasher.update(_stream(leaf))
    return [h.digest() for h in hashers]


def table_digests(table: pa.Table, executor: Executor | None = None) -> dict[str, list[bytes]]:
    """The leaf digests of every column by name, hashed in parallel if there is an executor."""
    run = executor.map if executor is not None else map
    return dict(zip(table.column_names, run(column_digests, table.columns), strict=True))


def compose_hash(schema: pa.Schema, digests: Sequence[bytes]) -> Multihash:
    """The logical hash from the schema and the digests of the leaf columns, in order."""
    hasher = hashlib.sha3_256()
    for name, level, _ in schema_leaves(schema):
        encoded = name.encode()
        hasher.update(struct.pack("<Q", len(encoded)) + encoded + struct.pack("<Q", level))
    for digest in digests:
        hasher.update(digest)
    return Multihash(LOGICAL, hasher.digest())


def logical_hash(table: pa.Table) -> Multihash:
    """The logical hash of a whole table."""
    digests = table_digests(table)
    return compose_hash(table.schema, [d for name in table.column_names for d in digests[name]])


def _flatten(array: pa.Array) -> Iterator[pa.Array]:
    """The leaf arrays of an array, with the nulls of their parents applied."""
    if pa.types.is_struct(array.type):
        struct_array: Any = array
        for child in struct_array.flatten():
            yield from _flatten(child)
    else:
        yield array


def _stream(array: pa.Array) -> Any:
    """The bytes that a leaf array adds to the digest of its column, as one buffer."""
    if array.null_count == 0 and _is_fixed(array.type):
        return _fixed_buffer(array)
    return _payload(_encode(array))


def _encode(array: pa.Array) -> pa.LargeBinaryArray:
    """Each value as the bytes it adds to the digest, never null."""
    t: Any = array.type
    encoded: Any
    if pa.types.is_null(t):
        return pa.nulls(len(array), pa.large_binary()).fill_null(_NULL)
    if pa.types.is_boolean(t):
        truth: Any = pc.add(pc.cast(array, pa.uint8()), pa.scalar(1, pa.uint8()))
        encoded = _fixed_as_binary(truth, 1)
    elif _is_string(t) or _is_binary(t):
        payload: Any = array.cast(pa.large_binary())
        encoded = _with_length(pc.binary_length(payload), payload)
    elif _is_list(t):
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
        encoded = _with_length(lengths, _list_payload(array, lengths))
        if array.null_count:
            encoded = pc.if_else(array.is_null(), pa.scalar(_NULL, pa.large_binary()), encoded)
    else:
        encoded = _fixed_as_binary(array, t.bit_width // 8)
    return encoded.fill_null(_NULL) if encoded.null_count else encoded


def _list_payload(array: Any, lengths: Any) -> Any:
    """The items of each list, encoded and joined."""
    items = _encode(array.flatten())
    starts = np.frombuffer(items.buffers()[1], np.int64)[items.offset : items.offset + len(items) + 1]
    bounds = np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int64)
    if len(items) == 0:
        starts = np.zeros(1, np.int64)
    offsets = pa.py_buffer(np.ascontiguousarray(starts[bounds]))
    data = items.buffers()[2] or pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.large_binary(), len(array), [None, offsets, data])


def _with_length(lengths: Any, payload: Any) -> Any:
    prefix = _fixed_as_binary(lengths.cast(pa.int64()), 8)
    return pc.binary_join_element_wise(prefix, payload, pa.scalar(b"", pa.large_binary()))


def _fixed_as_binary(array: Any, width: int) -> Any:
    validity, values = array.buffers()[:2]
    view = pa.Array.from_buffers(pa.binary(width), len(array), [validity, values], offset=array.offset)
    return view.cast(pa.large_binary())


def _fixed_buffer(array: Any) -> Any:
    width = array.type.bit_width // 8
    values = array.buffers()[1]
    if values is None:
        return b""
    return values.slice(array.offset * width, len(array) * width)


def _payload(array: Any) -> Any:
    """The bytes between the first and the last value of a binary array."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return b""
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def _is_fixed(t: pa.DataType) -> bool:
    types = pa.types
    return not (types.is_null(t) or types.is_boolean(t) or _is_string(t) or _is_binary(t) or _is_list(t))


def _is_binary(t: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t) or types.is_fixed_size_binary(t)
    ) and not types.is_decimal(t)


def _is_string(t: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(t) or types.is_large_string(t) or types.is_string_view(t))


def _is_list(t: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(t) or types.is_large_list(t) or types.is_fixed_size_list(t))
