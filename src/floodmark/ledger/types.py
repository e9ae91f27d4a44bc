"""Arrow, ODF and Spark types: which types a dataset supports, and conversions between the three."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa

from floodmark.chain import schema as odf
from floodmark.errors import UnsupportedType
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


def canonical_type(data_type: pa.DataType, column: str) -> pa.DataType:
    """The type with which a dataset stores such values. Raises `UnsupportedType` with the column if there is none.

    Widths of offsets, dictionaries and views are encodings, not types, and are removed. Seconds become milliseconds
    (Parquet has no seconds). Nanoseconds become microseconds (Spark has no nanoseconds; finer values are refused when
    they are written).
    """
    t: Any = data_type
    types = pa.types
    if types.is_dictionary(t) or types.is_run_end_encoded(t):
        return canonical_type(t.value_type, column)
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
            raise _unsupported(column, t, "use decimal128(38, …) or float64: Spark's decimals have at most 38 digits")
        if t.scale < 0:
            raise _unsupported(column, t, "use scale 0: Parquet has no decimals with a negative scale")
        return pa.decimal128(t.precision, t.scale)
    if types.is_float16(t):
        raise _unsupported(column, t, "cast it to float32: Spark has no 16-bit floats")
    if types.is_null(t):
        raise _unsupported(column, t, "cast it, or give schema=: all values are null, so the type is not known")
    if types.is_large_list(t) or types.is_list(t):
        return pa.list_(pa.field("element", canonical_type(t.value_type, column)))
    if (types.is_fixed_size_list(t) and t.list_size == 0) or (types.is_fixed_size_binary(t) and t.byte_width == 0):
        raise _unsupported(column, t, "leave the column out: values of length 0 cannot be read back")
    if types.is_fixed_size_list(t):
        return pa.list_(pa.field("element", canonical_type(t.value_type, column)), t.list_size)
    if types.is_struct(t):
        if t.num_fields == 0:
            raise _unsupported(column, t, "leave the column out: Parquet cannot store a struct without members")
        members = [f.name.lower() for f in t]
        if "" in members or len(set(members)) < len(members):
            raise _unsupported(column, t, "give each member a different name (case is ignored)")
        return pa.struct([pa.field(f.name, canonical_type(f.type, f"{column}.{f.name}")) for f in t])
    try:
        check_hashable(t)
    except UnsupportedType as error:
        raise _unsupported(column, t, error.hint) from error
    return data_type


def check_supported(data_type: pa.DataType, column: str) -> None:
    """Refuse a canonical type that the logical hash has no rule for (such as a list of structs)."""
    try:
        check_hashable(data_type)
    except UnsupportedType as error:
        raise _unsupported(column, data_type, error.hint) from error


def optional_columns(schema: pa.Schema) -> pa.Schema:
    """The same columns with all fields nullable, nested ones too: a member of a null struct is always null."""
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
    """The ODF type of a canonical Arrow type (without the Option of a nullable field)."""
    t: Any = data_type
    types = pa.types
    for simple, member in _SIMPLE:
        if t.equals(simple):
            result: odf.DataType = member()
            return result
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
    raise _unsupported("?", t, "cast it first: the chain's schema has no such type")


def field_to_odf(field: pa.Field) -> odf.DataField:
    """The ODF field of an Arrow field."""
    return odf.DataField(name=field.name, type=_optional(field))


def _optional(field: pa.Field) -> odf.DataType:
    inner = to_odf(field.type)
    return odf.DataTypeOption(inner=inner) if field.nullable else inner


def field_from_odf(field: odf.DataField) -> pa.Field:
    """The Arrow field of an ODF field."""
    return _field(field.name, field.type)


def _field(name: str, data_type: odf.DataType) -> pa.Field:
    if isinstance(data_type, odf.DataTypeOption):
        return pa.field(name, from_odf(data_type.inner), nullable=True)
    return pa.field(name, from_odf(data_type), nullable=False)


def from_odf(data_type: odf.DataType) -> pa.DataType:
    """The Arrow type of an ODF type. Raises `UnsupportedType` if Arrow has none."""
    try:
        return _from_odf(data_type)
    except (ValueError, OverflowError, TypeError, pa.ArrowException) as error:
        raise _unsupported("?", data_type, f"another program declared it: {error}") from error


def _from_odf(data_type: odf.DataType) -> pa.DataType:
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
            raise _unsupported("?", t, "upgrade floodmark: this release does not know the type")


def _unit(unit: odf.TimeUnit | None) -> Any:
    return "ms" if unit is None else _UNIT_NAMES[unit]


def _unsupported(column: str, data_type: object, why: str) -> UnsupportedType:
    return UnsupportedType(
        f"column {column!r} has type {data_type}, which a dataset cannot hold",
        hint=why,
        column=column,
        data_type=str(data_type),
    )


def widen_decimals(column: Any) -> Any:
    """Decimals of Python in the type that Spark gives them, decimal(38, 18), if all of them fit.

    Arrow gives them the precision of the values that it sees, into which the next value might not fit.
    """
    if not pa.types.is_decimal(column.type):
        return column
    for wide in (pa.decimal128(38, 18), pa.decimal128(38, max(column.type.scale, 0))):
        try:  # through 256 bits, because Arrow does not notice that 128 bits overflow
            return column.cast(pa.decimal256(76, max(column.type.scale, 18))).cast(wide)
        except pa.ArrowInvalid:  # too many digits before or after the point
            continue
    return column


# Spark


def arrow_schema(struct: Any) -> pa.Schema:
    """The Arrow schema of a Spark frame, with instants as microseconds in UTC."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in struct.fields:
        if _needs_spark(field.dataType):
            raise _unsupported_in_spark(field)
        try:
            fields.append(pa.field(field.name, _instants_in_utc(to_arrow_type(field.dataType, timezone="UTC"))))
        except PySparkException as error:
            raise _unsupported_in_spark(field) from error
    return pa.schema(fields)


def _needs_spark(data_type: Any) -> bool:
    """Whether only Spark can read the values: Arrow sees variants, spatial and user-defined types as structs."""
    from pyspark.sql.types import ArrayType, SpatialType, StructType, UserDefinedType, VariantType

    if isinstance(data_type, ArrayType):
        return _needs_spark(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_needs_spark(field.dataType) for field in data_type.fields)
    return isinstance(data_type, VariantType | SpatialType | UserDefinedType)


def _unsupported_in_spark(field: Any) -> UnsupportedType:
    return UnsupportedType(
        f"column {field.name!r} has Spark type {field.dataType.simpleString()}, which a dataset cannot hold",
        hint="cast it to a number, string, binary, date, timestamp, array or struct first",
        column=field.name,
        data_type=field.dataType.simpleString(),
    )


def spark_ready(schema: pa.Schema) -> pa.Schema:
    """The same columns with Arrow types that Spark supports: wider unsigned integers, timestamps in microseconds."""
    return pa.schema([pa.field(f.name, _ready(f.type), f.nullable) for f in schema])


def spark_schema(schema: pa.Schema) -> Any:
    """The columns as a Spark StructType."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    ready = spark_ready(schema)
    return StructType(
        [StructField(f.name, from_arrow_type(f.type, prefer_timestamp_ntz=True), f.nullable) for f in ready]
    )


_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def _ready(data_type: pa.DataType) -> pa.DataType:
    t: Any = data_type
    types = pa.types
    if t in _UNSIGNED:
        return _UNSIGNED[t]
    if types.is_timestamp(t):
        return pa.timestamp("us", None if t.tz is None else "UTC")
    if types.is_time(t):
        return pa.time64("ns")
    if types.is_fixed_size_binary(t):
        return pa.binary()
    if types.is_list(t) or types.is_fixed_size_list(t):
        return pa.list_(pa.field("element", _ready(t.value_type)))
    if types.is_struct(t):
        return pa.struct([pa.field(f.name, _ready(f.type)) for f in t])
    return data_type


def _instants_in_utc(data_type: pa.DataType) -> pa.DataType:
    t: Any = data_type
    types = pa.types
    if types.is_timestamp(t):
        return pa.timestamp("us", None if t.tz is None else "UTC")
    if types.is_list(t):
        return pa.list_(_instants_in_utc(t.value_type))
    if types.is_struct(t):
        return pa.struct([pa.field(f.name, _instants_in_utc(f.type)) for f in t])
    return data_type


def blank_value(data_type: pa.DataType) -> Any:
    """A value of a type that says nothing."""
    types = pa.types
    if types.is_string(data_type) or types.is_large_string(data_type):
        return ""
    if types.is_fixed_size_binary(data_type):
        return bytes(data_type.byte_width)
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return b""
    if types.is_boolean(data_type):
        return False
    if types.is_decimal(data_type):
        return Decimal(0)
    if types.is_list(data_type) or types.is_large_list(data_type):
        return []
    if types.is_struct(data_type):
        struct: Any = data_type
        return {
            f.name: None if f.nullable else blank_value(f.type)
            for f in (struct.field(i) for i in range(struct.num_fields))
        }
    if types.is_floating(data_type) or types.is_integer(data_type):
        return 0
    width = pa.int64() if data_type.bit_width == 64 else pa.int32()
    return pa.array([0], width).cast(data_type)[0].as_py()
