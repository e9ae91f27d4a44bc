"""The types of a database's columns as Arrow types, and values of theirs as Arrow columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.transform.errors import SourceFailed

_MOST_DIGITS = 38
_PLAIN = (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeError)


@dataclass(frozen=True)
class SourceColumn:
    """A column of an external table: its name there, and the type that its values get here."""

    name: str
    type: pa.DataType


def arrow_type(declared: Any) -> pa.DataType:
    """The Arrow type for values of a SQLAlchemy type, the same at every poll whatever the rows are.

    What has no counterpart (JSON, UUID, enumerations, addresses, unknown types) becomes text.
    """
    from sqlalchemy import types

    if isinstance(declared, types.Boolean):
        return pa.bool_()
    if isinstance(declared, types.Integer):
        return pa.int64()
    if isinstance(declared, types.Float):  # before Numeric, which it derives from
        return pa.decimal128(_MOST_DIGITS, 9) if declared.asdecimal else pa.float64()
    if isinstance(declared, types.Numeric):
        return _decimal(declared)
    if isinstance(declared, types.DateTime):
        return pa.timestamp("us", "UTC") if declared.timezone else pa.timestamp("us")
    if isinstance(declared, types.Date):
        return pa.date32()
    if isinstance(declared, types.Time):
        return pa.time64("us")
    if isinstance(declared, types.LargeBinary | types.BINARY | types.VARBINARY):
        return pa.binary()
    if isinstance(declared, types.ARRAY) and declared.dimensions in (None, 1):
        return pa.list_(arrow_type(declared.item_type))
    return pa.string()


def _decimal(declared: Any) -> pa.DataType:
    if not declared.asdecimal:
        return pa.float64()
    if declared.precision is None:
        return pa.decimal128(_MOST_DIGITS, 9)
    return pa.decimal128(min(declared.precision, _MOST_DIGITS), min(declared.scale or 0, _MOST_DIGITS))


def column_of(values: Sequence[Any], column: SourceColumn, table: str) -> pa.Array:
    """Values that a driver returned as an Arrow column, or what does not fit."""
    try:
        if pa.types.is_string(column.type):
            return pa.array([_text(value) for value in values], pa.string())
        return _integers(values) if pa.types.is_int64(column.type) else pa.array(values, column.type)
    except _PLAIN as error:
        raise SourceFailed(
            f"column {column.name!r} of {table} has values that are no {column.type}: {error}",
            hint="say what it is to be: OutputSpec(…, schema={…}) with all columns; or leave it out: columns=[…]",
            column=column.name,
        ) from error


def _integers(values: Sequence[Any]) -> pa.Array:
    """Integers that lose nothing: told their type beforehand, Arrow cuts off fractions without a word."""
    found = pa.array(values)
    types = pa.types
    if not any(is_one(found.type) for is_one in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)):
        raise TypeError(f"they are {found.type}")
    return found.cast(pa.int64(), safe=True)


def _text(value: Any) -> str | None:
    """Text as it is; anything else in its one written form, so that the same value is the same at every poll."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
