"""Spark's types beside Arrow's: what a Spark frame brings, and what a dataset's columns are called in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from floodmark.ledger.errors import UnsupportedType


def arrow_schema(struct: Any) -> pa.Schema:
    """The Arrow schema of a Spark frame; instants are microseconds in UTC."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in struct.fields:
        if _has_encoding_of_its_own(field.dataType):
            raise _unsupported(field)
        try:
            fields.append(pa.field(field.name, _instants_in_utc(to_arrow_type(field.dataType, timezone="UTC"))))
        except PySparkException as error:
            raise _unsupported(field) from error
    return pa.schema(fields)


def _has_encoding_of_its_own(data_type: Any) -> bool:
    """Whether only Spark could read the values: variants, shapes and user-defined types are structs to Arrow."""
    from pyspark.sql.types import ArrayType, SpatialType, StructType, UserDefinedType, VariantType

    if isinstance(data_type, ArrayType):
        return _has_encoding_of_its_own(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_has_encoding_of_its_own(field.dataType) for field in data_type.fields)
    return isinstance(data_type, VariantType | SpatialType | UserDefinedType)


def _unsupported(field: Any) -> UnsupportedType:
    return UnsupportedType(
        f"column {field.name!r} has Spark type {field.dataType.simpleString()}, which a dataset cannot hold",
        hint="cast it to a number, string, binary, date, timestamp, array or struct first",
        column=field.name,
        data_type=field.dataType.simpleString(),
    )


def spark_ready(schema: pa.Schema) -> pa.Schema:
    """The same columns in Arrow types that Spark has: unsigned integers one size up, times in microseconds."""
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
