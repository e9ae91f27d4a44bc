"""Cursors: how far an external table was read, as a value of one of its columns. Pure.

A position here is a value that somebody else's clock or counter gives, so it is taken with care: a poll reads from the
cursor on, that value included, and from a little before it; rows without a value are read always; and a time that lies
in the future is not believed, as it would hide every row that comes before it gets there.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.transform.errors import BadSource

Value = int | float | Decimal | datetime | date | str | bytes
Overlap = timedelta | int | float | Decimal

USUAL_OVERLAP = timedelta(minutes=10)
"""How much of the past a poll reads again where the cursor is a time: what is dated early may be committed late."""

_EASTERNMOST = timedelta(hours=14)


@dataclass(frozen=True)
class Cursor:
    """The greatest value of a column that was read."""

    column: str
    value: Value

    def to_text(self) -> str:
        """As the chain keeps it."""
        kind, text = _written(self.value)
        return json.dumps({"column": self.column, "type": kind, "value": text}, sort_keys=True)

    @staticmethod
    def from_text(text: str, column: str, type_: pa.DataType) -> Cursor | None:
        """A cursor from the chain; None if it is one of another column, or of another type than this one has now."""
        try:
            said = json.loads(text)
            if said["column"] != column or said["type"] != _kind(type_):
                return None
            return Cursor(column, _read(said["type"], said["value"]))
        except (ValueError, KeyError, TypeError, ArithmeticError):
            return None

    def start(self, overlap: Overlap | None) -> Value:
        """Where the next poll begins, this value included."""
        value: Any = self.value
        less: Any = overlap
        if isinstance(value, date):  # a datetime is one, too
            back: Any = USUAL_OVERLAP if overlap is None else overlap
            if not isinstance(value, datetime):
                back = timedelta(days=-(-back // timedelta(days=1)))  # part of a day is a day
            earliest = datetime.min.replace(tzinfo=value.tzinfo) if isinstance(value, datetime) else date.min
            start: Value = earliest if value - earliest < back else value - back
        elif not less:
            start = value
        else:
            start = value - (math.ceil(less) if isinstance(value, int) else type(value)(less))
        return start


def check_overlap(overlap: Overlap | None, type_: pa.DataType, column: str) -> None:
    """Refuse an overlap that cannot be taken from values of this type."""
    if not overlap:
        return
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    is_number = _kind(type_) in ("int", "float", "decimal")
    if (is_time and isinstance(overlap, timedelta)) or (is_number and not isinstance(overlap, timedelta)):
        return
    fitting = "a timedelta" if is_time else "a number" if is_number else "none"
    raise BadSource(
        f"overlap={overlap!r} cannot be taken from the cursor {column!r}, which is {type_}", hint=f"give {fitting}"
    )


def check_type(type_: pa.DataType, column: str, table: str) -> None:
    """Refuse a cursor whose values have no order to go by."""
    if _kind(type_) is None:
        raise BadSource(
            f"column {column!r} of {table} cannot be a cursor: it is {type_}",
            hint="name a column of times, numbers or text that grows with every change: cursor='updated_at'",
            column=column,
        )


def is_ordered_here(type_: pa.DataType) -> bool:
    """Whether every database orders these values as we do; text goes by the database's collation."""
    return _kind(type_) in ("int", "float", "decimal", "time", "utc", "date")


def greatest(values: pa.Array, now: datetime) -> Value | None:
    """The greatest of a column's values that can be believed; None if there is none."""
    ceiling = _ceiling(values.type, now)
    kept: Any = values.filter(pc.less_equal(values, ceiling)) if ceiling is not None else values
    if pa.types.is_floating(values.type):
        kept = kept.filter(pc.is_finite(kept))
    found: Value | None = pc.max(kept).as_py()
    return found


def last(values: pa.Array) -> Value | None:
    """The last of a column's values, as the database has ordered them."""
    kept = values.drop_null()
    found: Value | None = kept[-1].as_py() if len(kept) else None
    return found


def _ceiling(type_: Any, now: datetime) -> pa.Scalar | None:
    """What no honest clock can show yet: now, or what time it is furthest east if the values do not say where."""
    if pa.types.is_timestamp(type_):
        here = now.astimezone(UTC)
        return pa.scalar(here if type_.tz is not None else (here + _EASTERNMOST).replace(tzinfo=None), type_)
    if pa.types.is_date(type_):
        return pa.scalar((now.astimezone(UTC) + _EASTERNMOST).date(), type_)
    return None


def _kind(type_: Any) -> str | None:
    types = pa.types
    if types.is_integer(type_):
        return "int"
    if types.is_floating(type_):
        return "float"
    if types.is_decimal(type_):
        return "decimal"
    if types.is_timestamp(type_):
        return "time" if type_.tz is None else "utc"
    if types.is_date(type_):
        return "date"
    if types.is_string(type_):
        return "text"
    return "bytes" if types.is_binary(type_) else None


def _written(value: Value) -> tuple[str, str]:
    match value:
        case datetime():
            if value.tzinfo is None:
                return "time", value.isoformat()
            return "utc", value.astimezone(UTC).isoformat()
        case date():
            return "date", value.isoformat()
        case int():
            return "int", str(value)
        case float():
            return "float", repr(value)
        case Decimal():
            return "decimal", str(value)
        case bytes():
            return "bytes", value.hex()
        case str():
            return "text", value


def _read(kind: str, text: str) -> Value:
    match kind:
        case "time" | "utc":
            return datetime.fromisoformat(text)
        case "date":
            return date.fromisoformat(text)
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "decimal":
            return Decimal(text)
        case "bytes":
            return bytes.fromhex(text)
        case _:
            return text
