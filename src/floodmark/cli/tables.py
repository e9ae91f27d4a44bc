"""Tables for people: drawn on a terminal, aligned and plain in a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

Cell = str | None
Row = Sequence[Cell]

NULL = "null"
_GAP = "  "
# Data must not be able to move the cursor, change colours or begin a new line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class Column:
    """The head of a column; numbers stand to the right."""

    name: str
    is_number: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """A table on stdout. Nothing is cut off: what is too wide for a terminal has a line per field."""
    heads = [visible(c.name) for c in columns]
    cells = [[None if cell is None else visible(cell) for cell in row] for row in rows]
    widths = _widths(heads, cells)
    if not sys.stdout.isatty():
        _print_plain(columns, heads, cells, widths)
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # rich puts one space left and right of each column, and one between two
    if sum(widths) + 3 * len(widths) - 1 <= console.width:
        _print_drawn(console, columns, heads, cells)
    else:
        _print_long(console, heads, cells)


def visible(text: str) -> str:
    """The text with its control characters written out."""
    return _CONTROL.sub(lambda m: _SHORT.get(m[0], f"\\u{ord(m[0]):04x}"), text)


def _widths(heads: Sequence[str], cells: Sequence[Row]) -> list[int]:
    from rich.cells import cell_len

    widths = [cell_len(head) for head in heads]
    for row in cells:
        widths = [max(width, cell_len(_shown(cell))) for width, cell in zip(widths, row, strict=True)]
    return widths


def _shown(cell: Cell) -> str:
    return NULL if cell is None else cell


def _print_plain(columns: Sequence[Column], heads: Row, cells: Sequence[Row], widths: Sequence[int]) -> None:
    from rich.cells import cell_len

    for row in (heads, *cells):
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            text = _shown(cell)
            space = " " * (width - cell_len(text))
            padded.append(space + text if column.is_number else text + space)
        click.echo(_GAP.join(padded).rstrip(" "))


def _print_drawn(console: object, columns: Sequence[Column], heads: Sequence[str], cells: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    assert isinstance(console, Console)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=True)
    for column, head in zip(columns, heads, strict=True):
        table.add_column(Text(head), justify="right" if column.is_number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(NULL, style="dim") if cell is None else Text(cell) for cell in row))
    console.print(table)


def _print_long(console: object, heads: Sequence[str], cells: Sequence[Row]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    assert isinstance(console, Console)
    width = max(cell_len(head) for head in heads)
    for i, row in enumerate(cells):
        if i:
            console.print()
        for head, cell in zip(heads, row, strict=True):
            name = Text(head + " " * (width - cell_len(head) + 2), style="bold")
            name.append(_shown(cell), style="dim" if cell is None else "not bold")
            console.print(name, soft_wrap=True)
