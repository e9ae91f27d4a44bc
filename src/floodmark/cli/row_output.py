"""Arrow tables as JSON rows and as printed tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from floodmark.cli import output
from floodmark.cli.command import Invocation
from floodmark.cli.output import TableColumn, format_count, print_table
from floodmark.ledger.python_values import python_list

_BATCH = 4096

TERMINAL_ROWS = 200
"""Most rows that a terminal shows, unless the user gives a number."""


def row_objects(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row as a JSON object. If two columns share a name, the second is called name_2."""
    names = _distinct(table.column_names)
    for row in _rows(table):
        yield dict(zip(names, row, strict=True))


def print_first_rows(call: Invocation, table: pa.Table, noun: str) -> None:
    """Print all rows; on a terminal at most TERMINAL_ROWS."""
    shown = table.slice(0, TERMINAL_ROWS) if sys.stdout.isatty() else table
    print_rows(shown)
    if (left := table.num_rows - shown.num_rows) > 0:
        call.note(f"… {format_count(left, f'more {noun}')}: pipe the output to see them all, or use --json")


def print_rows(table: pa.Table) -> None:
    """Print all rows."""
    columns = [TableColumn(field.name, _is_number(field.type)) for field in table.schema]
    print_table(columns, [[output.format_value(value) for value in row] for row in _rows(table)])


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches(max_chunksize=_BATCH):
        columns = [python_list(batch.column(i)) for i in range(batch.num_columns)]
        yield from zip(*columns, strict=True)


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
