"""Schemas as older writers stored them: the FlatBuffers table `Schema` of Arrow, read as a `DataSchema`.

Widths of offsets, dictionaries and views are encodings, not types, and are left out.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from floodmark.chain import schema as s
from floodmark.chain.flatbuffers import EnumKind, OptionalField, Reader, Scalar, TableKind, Text, UnionKind, VectorOf
from floodmark.errors import CorruptBlock


@functools.lru_cache(maxsize=64)
def read_arrow_schema(data: bytes) -> s.DataSchema:
    """The columns of an Arrow schema; `CorruptBlock` if the bytes are not one, or if a type has no place in a chain."""
    reader = Reader(data)
    try:
        found: _Schema = _SCHEMA.read_at(reader, reader.root())
    except struct.error as error:
        raise CorruptBlock(f"The Arrow schema is cut short after {len(data)} bytes.") from error
    return s.DataSchema(tuple(_column(field) for field in found.fields))


class _FloatPrecision(Enum):
    HALF = 0
    SINGLE = 1
    DOUBLE = 2


@dataclass(frozen=True)
class _Int:
    bit_width: int
    is_signed: bool


@dataclass(frozen=True)
class _Float:
    precision: _FloatPrecision


@dataclass(frozen=True)
class _List:
    fixed_length: int | None = None


@dataclass(frozen=True)
class _Struct:
    pass


@dataclass(frozen=True)
class _Map:
    keys_sorted: bool


@dataclass(frozen=True)
class _Unsupported:
    pass


@dataclass(frozen=True)
class _Dictionary:
    """An encoding of a column, which does not change its values."""


@dataclass(frozen=True)
class _Field:
    name: str | None
    nullable: bool
    type: Any
    dictionary: _Dictionary | None
    children: tuple[_Field, ...] | None


@dataclass(frozen=True)
class _Schema:
    endianness: int
    fields: tuple[_Field, ...]


_TEXT, _BOOL, _I16, _I32 = Text(), Scalar("?"), Scalar("h"), Scalar("i")
_UNIT = EnumKind("h", s.TimeUnit)
_TYPE, _FIELD = UnionKind("Arrow type"), TableKind(_Field)


def _table(cls: type[Any], *kinds: Any) -> TableKind:
    table = TableKind(cls)
    table.declare(*kinds)
    return table


_TEXTS, _BYTES, _LIST = (
    _table(s.DataTypeString),
    _table(s.DataTypeBinary, OptionalField(_I32)),
    _table(_List, OptionalField(_I32)),
)
_TYPE.declare(
    {
        1: _table(s.DataTypeNull),
        2: _table(_Int, _I32, _BOOL),
        3: _table(_Float, EnumKind("h", _FloatPrecision)),
        4: _BYTES,
        5: _TEXTS,
        6: _table(s.DataTypeBool),
        7: _table(s.DataTypeDecimal, _I32, _I32),
        8: _table(s.DataTypeDate),
        9: _table(s.DataTypeTime, OptionalField(_UNIT)),
        10: _table(s.DataTypeTimestamp, _UNIT, OptionalField(_TEXT)),
        11: _table(_Unsupported),  # intervals
        12: _LIST,
        13: _table(_Struct),
        14: _table(_Unsupported),  # unions
        15: _BYTES,  # of fixed length
        16: _LIST,  # of fixed length
        17: _table(_Map, _BOOL),
        18: _table(s.DataTypeDuration, OptionalField(_UNIT)),
        19: _BYTES,  # large
        20: _TEXTS,  # large
        21: _LIST,  # large
        22: _table(_Unsupported),  # run-end encoded
        23: _BYTES,  # view
        24: _TEXTS,  # view
        25: _LIST,  # view
        26: _LIST,  # large view
    }
)
_FIELD.declare(OptionalField(_TEXT), _BOOL, _TYPE, OptionalField(_table(_Dictionary)), OptionalField(VectorOf(_FIELD)))
_SCHEMA = _table(_Schema, _I16, VectorOf(_FIELD))

_INTS: dict[tuple[int, bool], s.DataType] = {
    (8, True): s.DataTypeInt8(),
    (16, True): s.DataTypeInt16(),
    (32, True): s.DataTypeInt32(),
    (64, True): s.DataTypeInt64(),
    (8, False): s.DataTypeUInt8(),
    (16, False): s.DataTypeUInt16(),
    (32, False): s.DataTypeUInt32(),
    (64, False): s.DataTypeUInt64(),
}
_FLOATS: dict[_FloatPrecision, s.DataType] = {
    _FloatPrecision.HALF: s.DataTypeFloat16(),
    _FloatPrecision.SINGLE: s.DataTypeFloat32(),
    _FloatPrecision.DOUBLE: s.DataTypeFloat64(),
}


def _column(field: _Field) -> s.DataField:
    return s.DataField(field.name or "", _optional(field))


def _optional(field: _Field) -> s.DataType:
    inner = _type_of(field)
    return s.DataTypeOption(inner) if field.nullable else inner


def _type_of(field: _Field) -> s.DataType:
    children = field.children or ()
    match field.type, children:
        case _Int(bit_width, is_signed), _ if (bit_width, is_signed) in _INTS:
            return _INTS[bit_width, is_signed]
        case _Float(precision), _:
            return _FLOATS[precision]
        case _List(fixed_length), (item,):
            return s.DataTypeList(_optional(item), fixed_length)
        case _Struct(), members:
            return s.DataTypeStruct(tuple(_column(member) for member in members))
        case _Map(keys_sorted), (_Field(children=(key, value)),):
            return s.DataTypeMap(_type_of(key), _optional(value), keys_sorted or None)
        case (s.DataTypeTime() | s.DataTypeDuration()) as timed, _:
            return replace(timed, unit=timed.unit or s.TimeUnit.MILLISECOND)  # Arrow's default
        case _Int() | _List() | _Map() | _Unsupported(), _:
            message = f"Column {field.name!r} of the Arrow schema has a type that a chain cannot describe."
            raise CorruptBlock(message, field=field.name)
        case plain, _:
            found: s.DataType = plain
            return found
