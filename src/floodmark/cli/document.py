"""Answers as JSON: one document, stable keys, and no value lost on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import click


def emit(**fields: Any) -> None:
    """Print one JSON object. Lists have a line per item, and may be iterators: they are never held as a whole."""
    click.echo("{")
    for i, (key, value) in enumerate(fields.items()):
        last = i == len(fields) - 1
        _emit_field(key, value, "" if last else ",")
    click.echo("}")


def _emit_field(key: str, value: Any, comma: str) -> None:
    name = json.dumps(key)
    if not isinstance(value, list | Iterator):
        click.echo(f"  {name}: {dumps(value)}{comma}")
        return
    opened = False
    for item in value:
        click.echo(f"  {name}: [\n    {dumps(item)}" if not opened else f",\n    {dumps(item)}", nl=False)
        opened = True
    click.echo(f"\n  ]{comma}" if opened else f"  {name}: []{comma}")


def dumps(value: Any) -> str:
    """A value as JSON text, in ASCII, so that no terminal and no locale can spoil it."""
    return json.dumps(jsonable(value), allow_nan=False)


def jsonable(value: Any) -> Any:
    """A value as JSON can hold it: nothing is rounded, and nothing becomes null that was not."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else not_finite(value)
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return duration(value)
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case dict():
            return {str(key): jsonable(item) for key, item in value.items()}
        case _ if hasattr(value, "nanoseconds"):  # pyarrow's MonthDayNano: an interval of SQL
            return f"P{value.months}M{value.days}DT{seconds(value.nanoseconds)}S"
        case list() | tuple():
            return [jsonable(item) for item in value]
        case _:
            return str(value)


def not_finite(value: float) -> str:
    """The name of a number that JSON has none for."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def duration(value: timedelta) -> str:
    """An ISO 8601 duration, such as PT90.5S."""
    return f"PT{seconds(value // timedelta(microseconds=1) * 1000)}S"


def seconds(nanoseconds: int) -> str:
    """Nanoseconds as seconds, with as many places as there are."""
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 10**9)
    places = f".{rest:09}".rstrip("0") if rest else ""
    return f"{sign}{whole}{places}"
