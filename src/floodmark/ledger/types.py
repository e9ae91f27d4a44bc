"""Arrow types and the types of the chain: which ones a dataset can hold, and how each is written down."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from floodmark.chain import schema as odf
from floodmark.ledger.errors import UnsupportedType
from floodmark.storage.errors import NoHashRule
from floodmark.storage.logical_hash import check_hashable

_UNITS = {
    "s": odf.TimeUnit.SECOND,
    "ms": odf.TimeUnit.MILLISECOND,
    "us": odf.TimeUnit.MICROSECOND,
    "ns": odf.TimeUnit.NANOSECOND,
}
_UNIT_NAMES = {unit: name for name, unit in _UNITS.items()}

_SIMPLE: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), odf.DataTypeBool),
    (pa.int8(), odf.DataTypeInt8),
    (pa.int16(), odf.DataTypeInt16),
    (pa.int32(), odf.DataTypeInt32),
    (pa.int64(), odf.DataTypeInt64),
    (pa.uint8(), odf.DataTypeUInt8),
    (pa.uint16(), odf.DataTypeUInt16),
    (pa.uint32(), odf.DataTypeUInt32),
    (pa.uint64(), odf.DataTypeUInt64),
    (pa.float16(), odf.DataTypeFloat16),
    (pa.float32(), odf.DataTypeFloat32),
    (pa.float64(), odf.DataTypeFloat64),
    (pa.string(), odf.DataTypeString),
    (pa.date32(), odf.DataTypeDate),
    (pa.null(), odf.DataTypeNull),
]


def canonical(data_type: pa.DataType, column: str) -> pa.DataType:
    """The type under which a dataset keeps such values; `UnsupportedType` names the column if it cannot.

    Widths of offsets, dictionaries and views are encodings, not types: they go. Seconds become milliseconds
    (Parquet has none) and nanoseconds microseconds (Spark has none; values finer than that are refused when written).
    """
    t: Any = data_type
    types = pa.types
    if types.is_dictionary(t) or types.is_run_end_encoded(t):
        return canonical(t.value_type, column)
    if types.is_large_string(t) or types.is_string_view(t):
        return pa.string()
    if types.is_large_binary(t) or types.is_binary_view(t):
        return pa.binary()
    if types.is_timestamp(t):
        return pa.timestamp({"s": "ms", "ns": "us"}.get(t.unit, t.unit), t.tz)
    if types.is_date64(t):
        return pa.date32()
    if types.is_time(t):
        return pa.time64("us") if t.unit in ("us", "ns") else pa.time32("ms")
    if types.is_decimal(t):
        if t.precision > 38:
            raise _unsupported(column, t, "Spark's decimals end at 38 digits: use decimal128(38, …) or float64")
        if t.scale < 0:
            raise _unsupported(column, t, "Parquet has no decimals of a negative scale: use scale 0")
        return pa.decimal128(t.precision, t.scale)
    if types.is_float16(t):
        raise _unsupported(column, t, "Spark has no 16-bit floats: cast it to float32")
    if types.is_null(t):
        raise _unsupported(column, t, "it holds no values, so its type is not known: cast it, or give schema=")
    if types.is_large_list(t) or types.is_list(t):
        return pa.list_(pa.field("element", canonical(t.value_type, column)))
    if (types.is_fixed_size_list(t) and t.list_size == 0) or (types.is_fixed_size_binary(t) and t.byte_width == 0):
        raise _unsupported(column, t, "values of no length cannot be read back: leave the column out")
    if types.is_fixed_size_list(t):
        return pa.list_(pa.field("element", canonical(t.value_type, column)), t.list_size)
    if types.is_struct(t):
        if t.num_fields == 0:
            raise _unsupported(column, t, "it holds no values, and Parquet has no place for it: leave the column out")
        members = [f.name.lower() for f in t]
        if "" in members or len(set(members)) < len(members):
            raise _unsupported(column, t, "each member needs a name of its own (capitals do not count)")
        return pa.struct([pa.field(f.name, canonical(f.type, f"{column}.{f.name}")) for f in t])
    try:
        check_hashable(t)
    except NoHashRule as error:
        raise _unsupported(column, t, error.hint) from error
    return data_type


def check_supported(data_type: pa.DataType, column: str) -> None:
    """Refuse, by name, a canonical type that the logical hash has no rule for (such as a list of structs)."""
    try:
        check_hashable(data_type)
    except NoHashRule as error:
        raise _unsupported(column, data_type, error.hint) from error


def optional_columns(schema: pa.Schema) -> pa.Schema:
    """The same columns, optional through and through: a member of a null struct is null, whatever its field says."""
    return pa.schema([pa.field(f.name, _optional_type(f.type)) for f in schema])


def _optional_type(data_type: pa.DataType) -> pa.DataType:
    t: Any = data_type
    types = pa.types
    if types.is_struct(t):
        return pa.struct([pa.field(f.name, _optional_type(f.type)) for f in t])
    if types.is_fixed_size_list(t):
        return pa.list_(pa.field("element", _optional_type(t.value_type)), t.list_size)
    if types.is_list(t):
        return pa.list_(pa.field("element", _optional_type(t.value_type)))
    if types.is_large_list(t):
        return pa.large_list(pa.field("element", _optional_type(t.value_type)))
    return data_type


def to_odf(data_type: pa.DataType) -> odf.DataType:
    """A canonical Arrow type as the chain writes it (without the Option of a nullable field)."""
    t: Any = data_type
    types = pa.types
    for simple, member in _SIMPLE:
        if t.equals(simple):
            made: odf.DataType = member()
            return made
    if types.is_binary(t):
        return odf.DataTypeBinary()
    if types.is_fixed_size_binary(t):
        return odf.DataTypeBinary(fixed_length=t.byte_width)
    if types.is_decimal(t):
        return odf.DataTypeDecimal(precision=t.precision, scale=t.scale)
    if types.is_time(t):
        return odf.DataTypeTime(unit=_UNITS[t.unit])
    if types.is_timestamp(t):
        return odf.DataTypeTimestamp(unit=_UNITS[t.unit], timezone=t.tz)
    if types.is_list(t):
        return odf.DataTypeList(item_type=_optional(t.value_field))
    if types.is_fixed_size_list(t):
        return odf.DataTypeList(item_type=_optional(t.value_field), fixed_length=t.list_size)
    if types.is_struct(t):
        return odf.DataTypeStruct(fields=tuple(field_to_odf(f) for f in t))
    raise _unsupported("?", t, "this type has no place in the chain's schema")


def field_to_odf(field: pa.Field) -> odf.DataField:
    """A field as the chain writes it."""
    return odf.DataField(name=field.name, type=_optional(field))


def _optional(field: pa.Field) -> odf.DataType:
    inner = to_odf(field.type)
    return odf.DataTypeOption(inner=inner) if field.nullable else inner


def field_from_odf(field: odf.DataField) -> pa.Field:
    """The Arrow field of a field of the chain."""
    return _field(field.name, field.type)


def _field(name: str, data_type: odf.DataType) -> pa.Field:
    if isinstance(data_type, odf.DataTypeOption):
        return pa.field(name, from_odf(data_type.inner), nullable=True)
    return pa.field(name, from_odf(data_type), nullable=False)


def from_odf(data_type: odf.DataType) -> pa.DataType:
    """The Arrow type of a type of the chain."""
    t = data_type
    for simple, member in _SIMPLE:
        if isinstance(t, member):
            return simple
    match t:
        case odf.DataTypeBinary():
            return pa.binary() if t.fixed_length is None else pa.binary(t.fixed_length)
        case odf.DataTypeDecimal():
            return pa.decimal128(t.precision, t.scale) if t.precision <= 38 else pa.decimal256(t.precision, t.scale)
        case odf.DataTypeDuration():
            return pa.duration(_unit(t.unit))
        case odf.DataTypeTime():
            unit = _unit(t.unit)
            return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
        case odf.DataTypeTimestamp():
            return pa.timestamp(_unit(t.unit), t.timezone)
        case odf.DataTypeList():
            item = _field("element", t.item_type)
            return pa.list_(item) if t.fixed_length is None else pa.list_(item, t.fixed_length)
        case odf.DataTypeMap():
            return pa.map_(from_odf(t.key_type), _field("value", t.value_type))
        case odf.DataTypeStruct():
            return pa.struct([field_from_odf(f) for f in t.fields])
        case odf.DataTypeOption():
            return from_odf(t.inner)
        case _:
            raise _unsupported("?", t, "this release does not know it")


def _unit(unit: odf.TimeUnit | None) -> Any:
    return "ms" if unit is None else _UNIT_NAMES[unit]


def _unsupported(column: str, data_type: object, why: str) -> UnsupportedType:
    return UnsupportedType(
        f"column {column!r} has type {data_type}, which a dataset cannot hold",
        hint=why,
        column=column,
        data_type=str(data_type),
    )
