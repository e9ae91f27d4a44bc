"""Polls of an external table: its columns, the query from a cursor on, reading in bounded memory, and cursors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import BadSource, close_matches
from floodmark.sources.external_table import ExternalTable, SourceColumn, arrow_type, parse_url, to_arrow_column
from floodmark.sources.ingest import Spool
from floodmark.storage.facts import parse_json

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select, Table


@contextmanager
def connect(source: ExternalTable) -> Iterator[Connection]:
    """Connect to the database of a table. The connection is closed afterwards, so none is open between polls."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with source.explained():
        engine = create_engine(parse_url(source.url), poolclass=NullPool, hide_parameters=True)
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


@dataclass(frozen=True)
class SourceTable:
    """A table's definition in the database: its columns, its primary key, and the cursor column."""

    source: ExternalTable
    reflected: Table
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]
    cursor: SourceColumn

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type) for column in self.columns])

    def chosen(self, key: Sequence[str], types: pa.Schema | None) -> tuple[SourceColumn, ...]:
        """The columns to read, with the output's types for columns that it has."""
        self._check_exist([*(self.source.columns or ()), *key])
        requested = self.source.columns
        chosen = [c for c in self.columns if requested is None or c.name in (*requested, *key)]
        known = {} if types is None else {f.name: f.type for f in types}
        return tuple(SourceColumn(c.name, known.get(c.name, c.type)) for c in chosen)

    def _check_exist(self, names: Sequence[str]) -> None:
        existing = [column.name for column in self.columns]
        for name in names:
            if name not in existing:
                raise _no_column(self.source, name, existing)

    def query(self, columns: Sequence[SourceColumn], start: CursorValue | None, key: Sequence[str]) -> Select[Any]:
        """The query for rows from `start` on (inclusive) and rows with a null cursor. The cursor is the last column."""
        from sqlalchemy import or_, select

        cursor = self.reflected.c[self.cursor.name]
        chosen = select(*[self.reflected.c[column.name] for column in columns], cursor.label("floodmark_cursor"))
        if start is not None:
            chosen = chosen.where(or_(self._from(cursor, start), cursor.is_(None)))
        # Of several rows with one key the last counts, so it must be the newest. Only the database can order texts.
        unique = bool(self.primary_key) and set(key) >= set(self.primary_key)
        return chosen if unique and is_ordered_by_python(self.cursor.type) else chosen.order_by(cursor)

    def _from(self, cursor: Any, start: CursorValue) -> Any:
        from sqlalchemy import String, type_coerce

        if self.reflected.info["dialect"] == "sqlite" and isinstance(start, datetime):
            # SQLite stores times as text, with or without a fraction. Compared to whole seconds, both are correct.
            return type_coerce(cursor, String) >= start.replace(microsecond=0).isoformat(" ")
        return cursor >= start


def reflect_table(connection: Connection, source: ExternalTable, cursor: str) -> SourceTable:
    """Read a table's definition from the database; `BadSource` if the table or the cursor column does not exist."""
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    try:
        info = {"dialect": connection.dialect.name}
        reflected = Table(
            source.table, MetaData(), schema=source.schema, autoload_with=connection, resolve_fks=False, info=info
        )
    except NoSuchTableError:
        raise _no_table(connection, source) from None
    columns = tuple(SourceColumn(str(c.name), arrow_type(c.type)) for c in reflected.columns)
    by_name = {column.name: column for column in columns}
    if cursor not in by_name:
        raise _no_column(source, cursor, list(by_name))
    check_cursor_type(by_name[cursor].type, cursor, source.source)
    return SourceTable(source, reflected, columns, tuple(str(c.name) for c in reflected.primary_key), by_name[cursor])


def read_query(
    connection: Connection,
    shape: SourceTable,
    columns: Sequence[SourceColumn],
    query: Select[Any],
    batch_rows: int,
    spool: Spool,
    now: datetime,
) -> Cursor | None:
    """Write the rows of a query to a spool, batch by batch; returns the greatest cursor, None if there is none."""
    names = [column.name for column in columns]
    table = shape.source.source
    ordered = is_ordered_by_python(shape.cursor.type)
    newest: Any = None
    result = connection.execution_options(stream_results=True, max_row_buffer=batch_rows).execute(query)
    for rows in result.partitions(batch_rows):
        *values, seen = zip(*rows, strict=True)
        arrays = [to_arrow_column(one, column, table) for one, column in zip(values, columns, strict=True)]
        spool.add(pa.table(arrays, names=names))
        cursor = to_arrow_column(seen, shape.cursor, table)
        batch_newest: Any = greatest_value(cursor, now) if ordered else last_value(cursor)
        if batch_newest is not None:
            newest = batch_newest if newest is None or not ordered else max(newest, batch_newest)
    return None if newest is None else Cursor(shape.cursor.name, newest)


def _no_table(connection: Connection, source: ExternalTable) -> BadSource:
    from sqlalchemy import inspect

    inspector = inspect(connection)
    names = [*inspector.get_table_names(source.schema), *inspector.get_view_names(source.schema)]
    near = close_matches(source.table, names)
    listed = f"the database has {', '.join(sorted(names)[:20])}" if names else "the database has no tables"
    return BadSource(
        f"{source.source}: there is no table or view {source.full_name!r}",
        hint=f"did you mean {near[0]!r}?" if near else listed,
    )


def _no_column(source: ExternalTable, name: str, existing: list[str]) -> BadSource:
    near = close_matches(name, existing)
    return BadSource(
        f"{source.source} has no column {name!r}",
        hint=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(existing)}",
        column=name,
    )


# Cursors

CursorValue = int | float | Decimal | datetime | date | str | bytes
Overlap = timedelta | int | float | Decimal

DEFAULT_OVERLAP = timedelta(minutes=10)
"""How far back a poll reads again if the cursor is a time, because a row may be committed after a later-dated one."""

_EASTERNMOST = timedelta(hours=14)


@dataclass(frozen=True)
class Cursor:
    """The greatest value that was read of the cursor column."""

    column: str
    value: CursorValue

    def to_text(self) -> str:
        """The text that the chain stores."""
        kind, text = _encode(self.value)
        return json.dumps({"column": self.column, "type": kind, "value": text}, sort_keys=True)

    @staticmethod
    def from_text(text: str, column: str, type_: pa.DataType) -> Cursor | None:
        """Parse a stored cursor; None if it is of another column, or the column has another type now."""
        try:
            stored = parse_json(text)
            if stored["column"] != column or stored["type"] != _kind(type_):
                return None
            return Cursor(column, _decode(stored["type"], stored["value"]))
        except (ValueError, KeyError, TypeError, ArithmeticError):
            return None

    def start(self, overlap: Overlap | None) -> CursorValue:
        """The start of the next poll (inclusive)."""
        value: Any = self.value
        distance: Any = overlap
        if isinstance(value, date):  # a datetime is also a date
            back: Any = DEFAULT_OVERLAP if overlap is None else overlap
            if not isinstance(value, datetime):
                back = timedelta(days=-(-back // timedelta(days=1)))  # round up to whole days
            earliest = datetime.min.replace(tzinfo=value.tzinfo) if isinstance(value, datetime) else date.min
            start: CursorValue = earliest if value - earliest < back else value - back
        elif not distance:
            start = value
        else:
            start = value - (math.ceil(distance) if isinstance(value, int) else type(value)(distance))
        return start


def check_overlap(overlap: Overlap | None, type_: pa.DataType, column: str) -> None:
    """Refuse an overlap that cannot be subtracted from values of this type."""
    if not overlap:
        return
    is_time = pa.types.is_timestamp(type_) or pa.types.is_date(type_)
    is_number = _kind(type_) in ("int", "float", "decimal")
    if (is_time and isinstance(overlap, timedelta)) or (is_number and not isinstance(overlap, timedelta)):
        return
    hint = "give a timedelta" if is_time else "give a number" if is_number else "leave out overlap"
    raise BadSource(f"overlap={overlap!r} cannot be subtracted from the cursor {column!r}, which is {type_}", hint=hint)


def check_cursor_type(type_: pa.DataType, column: str, table: str) -> None:
    """Refuse a cursor column whose type has no usable order."""
    if _kind(type_) is None:
        raise BadSource(
            f"column {column!r} of {table} cannot be a cursor: it is {type_}",
            hint="name a column of times, numbers or text that grows with every change: cursor='updated_at'",
            column=column,
        )


def is_ordered_by_python(type_: pa.DataType) -> bool:
    """Whether every database orders these values as Python does. The order of text depends on the collation."""
    return _kind(type_) in ("int", "float", "decimal", "time", "utc", "date")


def greatest_value(values: pa.Array, now: datetime) -> CursorValue | None:
    """The greatest plausible value of a column: not in the future, and finite. None if there is none."""
    ceiling = _ceiling(values.type, now)
    plausible: Any = values.filter(pc.less_equal(values, ceiling)) if ceiling is not None else values
    if pa.types.is_floating(values.type):
        plausible = plausible.filter(pc.is_finite(plausible))
    value: CursorValue | None = pc.max(plausible).as_py()
    return value


def last_value(values: pa.Array) -> CursorValue | None:
    """The last value of a column that is not null, in the order of the database."""
    present = values.drop_null()
    value: CursorValue | None = present[-1].as_py() if len(present) else None
    return value


def _ceiling(type_: Any, now: datetime) -> pa.Scalar | None:
    """The greatest plausible time: now, or without a time zone, now in the easternmost time zone."""
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


def _encode(value: CursorValue) -> tuple[str, str]:
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


def _decode(kind: str, text: str) -> CursorValue:
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
