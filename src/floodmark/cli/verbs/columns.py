"""`floodmark columns`: the computed columns of a dataset, and how much of each is there."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli import bars, document, words
from floodmark.cli.call import Call, verb
from floodmark.cli.tables import Column, Row, print_table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from floodmark.compute.columns import ColumnStatus
    from floodmark.dataset import Dataset

_COLUMNS = [
    Column("column"),
    Column("type"),
    Column("inputs"),
    Column("function"),
    Column("version"),
    Column("rows", is_number=True),
    Column("done", is_number=True),
    Column("errors", is_number=True),
]


@verb("columns")
@click.argument("name")
@click.option("--errors", metavar="COLUMN", help="Show the rows of this column that failed and were skipped, and why.")
def columns(call: Call, name: str, errors: str | None) -> None:
    """Show computed columns, and how much of each is there.

    \b
    floodmark columns images
    floodmark columns images --errors brightness
    floodmark columns images --json | jq '.columns[] | {name, rows, done}'

    The bars show fragments, which are windows of offsets, from the first to the last. Rows are current rows; those
    that are not computed yet read as null, and `floodmark backfill` computes them.
    """
    dataset = call.lake()[name]
    if errors is not None:
        _show_errors(call, dataset, errors)
        return
    found = dataset.columns()
    if call.as_json:
        document.emit(dataset=dataset.name, columns=[_fields(status) for status in found])
    elif not found:
        call.note(f"{dataset.name} has no computed columns: add_column(), in Python, adds one")
    else:
        print_table(_COLUMNS, [_row(status) for status in found])
        _print_bars(found)


def _fields(status: ColumnStatus) -> dict[str, Any]:
    function = asdict(status.function)
    function.pop("source")
    return {
        "name": status.name,
        "type": str(status.type),
        "nullable": status.nullable,
        "inputs": status.inputs,
        "function": function,
        "generation": status.generation,
        "rows": status.rows,
        "done": status.done,
        "kept": status.kept,
        "errors": status.errors,
        "fragments": [asdict(fragment) for fragment in status.fragments],
    }


def _row(status: ColumnStatus) -> Row:
    function = status.function
    place = f"{function.module}.{function.qualname}" if function.module else function.name
    counts = (f"{status.rows:,}", bars.percent(status.done, status.rows), f"{status.errors:,}")
    return [status.name, str(status.type), ", ".join(status.inputs), place, words.short(function.version), *counts]


def _print_bars(found: Sequence[ColumnStatus]) -> None:
    """A bar for each column, no wider than the terminal; beside its name, or below it if that is long."""
    from rich.cells import cell_len

    fragments = len(found[0].fragments)  # the same for all: they are windows of one sequence of offsets
    if not fragments:
        return
    width = shutil.get_terminal_size().columns
    marks = bars.marks_for(sys.stdout.encoding)
    names = [visible(status.name) for status in found]
    beside = max(map(cell_len, names)) + 2
    below = beside > width // 3
    room = max(1, width - (2 if below else beside) - 1)  # a line that is full to the edge may be wrapped
    lines = [bars.bar([bars.Part(f.rows, f.done, f.kept) for f in status.fragments], room, marks) for status in found]
    click.echo()
    for name, line in zip(names, lines, strict=True):
        click.echo(f"{name}\n  {line}" if below else f"{name}{' ' * (beside - cell_len(name))}{line}")
    together = bars.per_mark(fragments, room)
    scale = f", {together} to a character" if together > 1 else ""
    click.echo(f"{words.many(fragments, 'fragment')}{scale}: {marks.legend(lines)}")


def _show_errors(call: Call, dataset: Dataset, column: str) -> None:
    from floodmark.cli import records

    found = dataset.column_errors(column)
    if call.as_json:
        document.emit(dataset=dataset.name, column=column, errors=records.objects(found))
    elif found.num_rows:
        records.show(call, found.drop_columns(["traceback"]), "row")
    else:
        call.note(f"{dataset.name}.{column}: no row failed")
