"""Arrow tables as an answer: rows for JSON, cells for people."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa

from floodmark.cli import document
from floodmark.cli.call import Call
from floodmark.cli.tables import Cell, Column, print_table
from floodmark.cli.words import many

_BATCH = 4096

TERMINAL_ROWS = 200
"""How many rows a terminal is given at most, unless the user asked for a number."""


def objects(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row as a JSON object; of columns that share a name, the second is called name_2."""
    names = _distinct(table.column_names)
    for row in _rows(table):
        yield dict(zip(names, row, strict=True))


def show(call: Call, table: pa.Table, noun: str) -> None:
    """Print all rows, but on a terminal only the first of many."""
    shown = table.slice(0, TERMINAL_ROWS) if sys.stdout.isatty() else table
    show_all(shown)
    if (left := table.num_rows - shown.num_rows) > 0:
        call.note(f"… {many(left, f'more {noun}')}: pipe the output to see them all, or use --json")


def show_all(table: pa.Table) -> None:
    """Print all rows."""
    columns = [Column(field.name, _is_number(field.type)) for field in table.schema]
    print_table(columns, [[_cell(value) for value in row] for row in _rows(table)])


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches(max_chunksize=_BATCH):
        columns = [_values(batch.column(i)) for i in range(batch.num_columns)]
        yield from zip(*columns, strict=True)


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        # Python's dates end with the year 9999; Arrow's do not.
        values = [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return str(scalar.cast(pa.string()))


def _cell(value: Any) -> Cell:
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float() if math.isfinite(value):
            return repr(value)
        case datetime():
            return value.isoformat(sep=" ")
        case list() | dict():
            return document.dumps(value)
        case _:
            return str(document.jsonable(value))


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type))


def _distinct(names: list[str]) -> list[str]:
    taken: set[str] = set()
    distinct = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        distinct.append(candidate)
    return distinct
