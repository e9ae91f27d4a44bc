"""Polling: the rows of an external table from a cursor on, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.transform.errors import BadSource
from floodmark.transform.external import cursor as cursors
from floodmark.transform.external.cursor import Cursor, Value
from floodmark.transform.external.table import ExternalTable, parse_url
from floodmark.transform.external.types import SourceColumn, arrow_type, column_of
from floodmark.transform.refresh.spool import Spool

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select, Table


@contextmanager
def connected(source: ExternalTable) -> Iterator[Connection]:
    """A connection to the database of a table, closed afterwards: a step leaves nothing open between polls."""
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
class SourceShape:
    """What the database says of a table: its columns, its primary key, and the column that shows changes."""

    source: ExternalTable
    reflected: Table
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]
    cursor: SourceColumn

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, column.type) for column in self.columns])

    def chosen(self, key: Sequence[str], types: pa.Schema | None) -> tuple[SourceColumn, ...]:
        """The columns to read, with the types that they have in the output if it has them already."""
        self._check_there([*(self.source.columns or ()), *key])
        wanted = self.source.columns
        kept = [c for c in self.columns if wanted is None or c.name in (*wanted, *key)]
        known = {} if types is None else {f.name: f.type for f in types}
        return tuple(SourceColumn(c.name, known.get(c.name, c.type)) for c in kept)

    def _check_there(self, names: Sequence[str]) -> None:
        there = [column.name for column in self.columns]
        for name in names:
            if name not in there:
                raise _no_column(self.source, name, there)

    def query(self, columns: Sequence[SourceColumn], start: Value | None, key: Sequence[str]) -> Select[Any]:
        """The rows from `start` on, that value included, and all rows without one; the cursor is the last column."""
        from sqlalchemy import or_, select

        cursor = self.reflected.c[self.cursor.name]
        chosen = select(*[self.reflected.c[column.name] for column in columns], cursor.label("floodmark_cursor"))
        if start is not None:
            chosen = chosen.where(or_(self._from(cursor, start), cursor.is_(None)))
        # Of several rows with one key the last counts: that must be the newest. The greatest text, the database knows.
        unique = bool(self.primary_key) and set(key) >= set(self.primary_key)
        return chosen if unique and cursors.is_ordered_here(self.cursor.type) else chosen.order_by(cursor)

    def _from(self, cursor: Any, start: Value) -> Any:
        from sqlalchemy import String, type_coerce

        if self.reflected.info["dialect"] == "sqlite" and isinstance(start, datetime):
            # It keeps times as text, with or without a fraction: to whole seconds both compare right.
            return type_coerce(cursor, String) >= start.replace(microsecond=0).isoformat(" ")
        return cursor >= start


def look(connection: Connection, source: ExternalTable, cursor: str) -> SourceShape:
    """What the database says of a table; `BadSource` if it or a column is not there."""
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    try:
        info = {"dialect": connection.dialect.name}
        found = Table(
            source.table, MetaData(), schema=source.schema, autoload_with=connection, resolve_fks=False, info=info
        )
    except NoSuchTableError:
        raise _no_table(connection, source) from None
    columns = tuple(SourceColumn(str(c.name), arrow_type(c.type)) for c in found.columns)
    by_name = {column.name: column for column in columns}
    if cursor not in by_name:
        raise _no_column(source, cursor, list(by_name))
    cursors.check_type(by_name[cursor].type, cursor, source.source)
    return SourceShape(source, found, columns, tuple(str(c.name) for c in found.primary_key), by_name[cursor])


def read(
    connection: Connection,
    shape: SourceShape,
    columns: Sequence[SourceColumn],
    query: Select[Any],
    batch_rows: int,
    spool: Spool,
    now: datetime,
) -> Cursor | None:
    """Put the rows of a query on a spool, a batch at a time; the greatest cursor among them, None if there is none."""
    names = [column.name for column in columns]
    table = shape.source.source
    ordered = cursors.is_ordered_here(shape.cursor.type)
    newest: Any = None
    result = connection.execution_options(stream_results=True, max_row_buffer=batch_rows).execute(query)
    for rows in result.partitions(batch_rows):
        *values, seen = zip(*rows, strict=True)
        arrays = [column_of(one, column, table) for one, column in zip(values, columns, strict=True)]
        spool.add(pa.table(arrays, names=names))
        cursor = column_of(seen, shape.cursor, table)
        found: Any = cursors.greatest(cursor, now) if ordered else cursors.last(cursor)
        if found is not None:
            newest = found if newest is None or not ordered else max(newest, found)
    return None if newest is None else Cursor(shape.cursor.name, newest)


def _no_table(connection: Connection, source: ExternalTable) -> BadSource:
    from sqlalchemy import inspect

    looked = inspect(connection)
    names = [*looked.get_table_names(source.schema), *looked.get_view_names(source.schema)]
    near = get_close_matches(source.table, names, 1)
    listed = f"there are {', '.join(sorted(names)[:20])}" if names else "there are no tables"
    return BadSource(
        f"{source.source}: there is no table or view {source.full_name!r}",
        hint=f"did you mean {near[0]!r}?" if near else listed,
    )


def _no_column(source: ExternalTable, name: str, there: list[str]) -> BadSource:
    near = get_close_matches(name, there, 1)
    return BadSource(
        f"{source.source} has no column {name!r}",
        hint=f"did you mean {near[0]!r}?" if near else f"it has {', '.join(there)}",
        column=name,
    )
