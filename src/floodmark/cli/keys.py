"""Keys on a command line: `id=7 day=2026-11-16`, read as the types of the key's columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.errors import BadKeyValue, NoKey

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.dataset import Dataset

Pairs = list[dict[str, str]]
"""Keys as they were typed, each by column."""


def pairs(arguments: Sequence[str]) -> Pairs:
    """The keys in COLUMN=VALUE arguments; a column that comes again begins the next key."""
    keys: Pairs = [{}]
    for argument in arguments:
        column, equals, text = argument.partition("=")
        if not equals or not column:
            raise click.UsageError(f"{argument!r} is no COLUMN=VALUE, such as id=7.")
        if column in keys[-1]:
            keys.append({})
        keys[-1][column] = text
    if any(set(key) != set(keys[0]) for key in keys):
        raise click.UsageError(f"every key must name the same columns as the first: {', '.join(keys[0])}.")
    return keys


def typed(keys: Pairs, dataset: Dataset) -> pa.Table | None:
    """The keys as the dataset's types; None while it has no columns, and so no row with any key."""
    import pyarrow as pa

    key, name = dataset.strategy.key, dataset.name
    if not key:
        raise NoKey(
            f"dataset {name!r} has no key: all its records are appended",
            hint=f"`floodmark changes {name}` shows them; a key is chosen when a dataset is made: "
            "`floodmark ingest NEW PATH --key COLUMN`",
            name=name,
        )
    for column in keys[0]:
        if column not in key:
            raise NoKey(
                f"{column!r} is no column of the key of {name!r}",
                hint=f"its key is {', '.join(key)}: give {' '.join(f'{c}=…' for c in key)}",
                name=name,
            )
    if (layout := dataset.snapshot().layout) is None:
        return None
    # Of all columns: those of a view's key may be hidden.
    columns = {c: _array([given[c] for given in keys], layout.data.field(c)) for c in keys[0]}
    return pa.table(columns)


def said(keys: Pairs) -> str:
    """The keys as a person would say them: ``id=7, day=2026-11-16 or id=8, day=2026-11-16``."""
    return " or ".join(", ".join(f"{column}={text}" for column, text in key.items()) for key in keys)


def _array(texts: list[str], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    return pa.array(values(texts, field), field.type)


def values(texts: Sequence[str], field: pa.Field) -> list[Any]:
    """Values of a key column, read as its type."""
    return [_value(text, field) for text in texts]


def _value(text: str, field: pa.Field) -> Any:
    """One value, read as its column's type."""
    import pyarrow as pa

    t: Any = field.type
    try:
        if pa.types.is_timestamp(t):
            return pa.scalar(_moment(text, t), t).as_py()
        if pa.types.is_time(t):
            return time.fromisoformat(text)
        if pa.types.is_binary(t):
            return bytes.fromhex(text)
        return pa.scalar(text, pa.string()).cast(t).as_py()
    except (ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadKeyValue(
            f"{text!r} does not fit the key column {field.name!r}, which is {t}",
            hint=f"write it like {field.name}={_example(t)}",
            column=field.name,
        ) from error


def _moment(text: str, timestamp: Any) -> datetime:
    """A time for a column; where that has a zone, Arrow takes one without as UTC, as we do on the command line."""
    moment = datetime.fromisoformat(text)
    if timestamp.tz is None and moment.tzinfo is not None:
        raise ValueError("the column's times have no zone")
    return moment


def _example(t: Any) -> str:
    import pyarrow as pa

    examples = {
        pa.types.is_integer: "7",
        pa.types.is_floating: "2.5",
        pa.types.is_decimal: "2.50",
        pa.types.is_boolean: "true",
        pa.types.is_date: "2026-11-16",
        pa.types.is_time: "08:30:00",
        pa.types.is_binary: "00ff (hexadecimal)",
    }
    if pa.types.is_timestamp(t):
        return "2026-11-16T08:30:00" if t.tz is None else "2026-11-16T08:30:00Z"
    return next((example for fits, example in examples.items() if fits(t)), "…")
