"""Output of commands: JSON documents, tables, and formatted numbers and times."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TextIO
from uuid import UUID

import click


def emit(**fields: Any) -> None:
    """Print one JSON object, with a line per list item. Lists may be iterators, which are read item by item."""
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
    """A value as JSON text in ASCII, so that every terminal and locale can print it."""
    return json.dumps(jsonable(value), allow_nan=False)


def jsonable(value: Any) -> Any:
    """A value in a form that JSON can hold. No value is rounded, and only None becomes null."""
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
        case _ if hasattr(value, "nanoseconds"):  # pyarrow's MonthDayNano, an SQL interval
            return f"P{value.months}M{value.days}DT{seconds(value.nanoseconds)}S"
        case list() | tuple():
            return [jsonable(item) for item in value]
        case _:
            return str(value)


def not_finite(value: float) -> str:
    """The name of NaN or an infinity, which JSON numbers cannot express."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def duration(value: timedelta) -> str:
    """An ISO 8601 duration, such as PT90.5S."""
    return f"PT{seconds(value // timedelta(microseconds=1) * 1000)}S"


def seconds(nanoseconds: int) -> str:
    """Nanoseconds as seconds, with all decimal places."""
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 10**9)
    places = f".{rest:09}".rstrip("0") if rest else ""
    return f"{sign}{whole}{places}"


Cell = str | None
TableRow = Sequence[Cell]

NULL = "null"
_GAP = "  "
# Data must not move the cursor, change colours or begin a new line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class TableColumn:
    """The header of a column. Numbers are aligned to the right."""

    name: str
    is_number: bool = False


def print_table(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> None:
    """Print a table. No value is cut off: a table that is too wide for the terminal has a line per field."""
    headers = [escape_control_characters(c.name) for c in columns]
    cells = [[None if cell is None else escape_control_characters(cell) for cell in row] for row in rows]
    widths = _widths(headers, cells)
    if not sys.stdout.isatty():
        _print_plain(columns, headers, cells, widths)
        return
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    # rich puts one space left and right of each column, and one between columns
    if sum(widths) + 3 * len(widths) - 1 <= console.width:
        _print_drawn(console, columns, headers, cells)
    else:
        _print_long(console, headers, cells)


def escape_control_characters(text: str) -> str:
    """The text with its control characters escaped."""
    return _CONTROL.sub(lambda m: _SHORT.get(m[0], f"\\u{ord(m[0]):04x}"), text)


def escape_lines(text: str) -> str:
    """The text with its control characters escaped, except the ends of lines."""
    return "\n".join(map(escape_control_characters, text.split("\n")))


def _widths(headers: Sequence[str], cells: Sequence[TableRow]) -> list[int]:
    from rich.cells import cell_len

    widths = [cell_len(header) for header in headers]
    for row in cells:
        widths = [max(width, cell_len(_shown(cell))) for width, cell in zip(widths, row, strict=True)]
    return widths


def _shown(cell: Cell) -> str:
    return NULL if cell is None else cell


def _print_plain(
    columns: Sequence[TableColumn], headers: TableRow, cells: Sequence[TableRow], widths: Sequence[int]
) -> None:
    from rich.cells import cell_len

    for row in (headers, *cells):
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            text = _shown(cell)
            space = " " * (width - cell_len(text))
            padded.append(space + text if column.is_number else text + space)
        click.echo(_GAP.join(padded).rstrip(" "))


def _print_drawn(
    console: object, columns: Sequence[TableColumn], headers: Sequence[str], cells: Sequence[TableRow]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    assert isinstance(console, Console)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=True)
    for column, header in zip(columns, headers, strict=True):
        table.add_column(Text(header), justify="right" if column.is_number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(NULL, style="dim") if cell is None else Text(cell) for cell in row))
    console.print(table)


def _print_long(console: object, headers: Sequence[str], cells: Sequence[TableRow]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    assert isinstance(console, Console)
    width = max(cell_len(header) for header in headers)
    for i, row in enumerate(cells):
        if i:
            console.print()
        for header, cell in zip(headers, row, strict=True):
            name = Text(header + " " * (width - cell_len(header) + 2), style="bold")
            name.append(_shown(cell), style="dim" if cell is None else "not bold")
            console.print(name, soft_wrap=True)


_STEPS = [("minute", 60), ("hour", 3600), ("day", 86400), ("month", 30 * 86400), ("year", 365 * 86400)]


def format_offset(offset: int) -> str:
    """An offset; a dash for -1, which is no record."""
    return "-" if offset < 0 else str(offset)


def format_value(value: Any) -> str | None:
    """A value as text for a cell; None for null."""
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
            return dumps(value)
        case _:
            return str(jsonable(value))


def format_count(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def with_article(name: str) -> str:
    """``a BatchTransform``, ``an UpdateExternalTable``."""
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def print_notes(notes: Iterable[str], file: TextIO | None = None) -> None:
    """Print sentences below the line of a step."""
    for note in notes:
        click.echo(f"  {escape_control_characters(note)}", file=file)


def format_bytes(count: int) -> str:
    """``812 B``, ``2.7 KB``, ``1.2 GB``."""
    if count < 1000:
        return f"{count} B"
    value = count / 1000
    for unit in ("KB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def shorten_version(version: str) -> str:
    """The version of a function; of a fingerprint, the first 12 characters."""
    return version if len(version) <= 16 else f"{version[:12]}…"


def format_age(moment: datetime, now: datetime) -> str:
    """``3 minutes ago``. A time in the future is printed in full, because a clock must be wrong."""
    passed = int((now - moment).total_seconds())
    if passed < -60:
        return format_time(moment)
    if passed < 5:
        return "just now"
    noun, length = "second", 1
    for step, seconds in _STEPS:
        if passed >= seconds:
            noun, length = step, seconds
    return f"{format_count(passed // length, noun)} ago"


def format_time(moment: datetime) -> str:
    """A time to the second, in UTC when it has a zone."""
    return moment.isoformat(sep=" ", timespec="seconds")
