"""An external table in a database, and the Arrow types of its columns. Passwords are never shown or stored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import pyarrow as pa

from floodmark.errors import BadSource, FloodmarkError, SourceFailed

if TYPE_CHECKING:
    from sqlalchemy import URL


_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|user|uid", re.IGNORECASE)
_HIDDEN = "***"


@dataclass(frozen=True, repr=False)
class ExternalTable:
    """A table or view in a database with this SQLAlchemy URL. `columns` are the columns to read, by default all."""

    url: str
    table: str
    schema: str | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        render = getattr(self.url, "render_as_string", None)  # a SQLAlchemy URL object, whose str() hides the password
        if render is not None:
            object.__setattr__(self, "url", render(hide_password=False))
        if not isinstance(self.url, str) or "://" not in self.url:
            raise BadSource(
                f"the database of the external table {self.table!r} is not a URL",
                hint="give a SQLAlchemy URL, such as postgresql://host/database or sqlite:///shop.db",
            )
        if not isinstance(self.table, str) or not self.table:
            raise BadSource("an external table has no name", hint="give a URL and a table: 'sqlite:///shop.db#orders'")
        if self.columns is not None:
            listed = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
            object.__setattr__(self, "columns", listed)

    def __repr__(self) -> str:
        return f"ExternalTable({self.source!r})"

    @staticmethod
    def parse(given: Any) -> ExternalTable:
        """Parse a source: an `ExternalTable`, "URL#table" or "URL#schema.table"."""
        if isinstance(given, ExternalTable):
            return given
        if not isinstance(given, str) or "#" not in given:
            raise BadSource(
                "the source is neither an ExternalTable nor a text with a URL and a table",
                hint="write ExternalTable(url, table), or one text: 'sqlite:///shop.db#orders'",
            )
        url, _, name = given.rpartition("#")
        schema, _, table = name.rpartition(".")
        return ExternalTable(url, table, schema or None)

    @property
    def full_name(self) -> str:
        """The table's name with its schema, if it has one."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def source(self) -> str:
        """The name of the source on the chain: its location without user and password."""
        try:
            return f"{_location(parse_url(self.url))}#{self.full_name}"
        except BadSource:
            return f"{self.url.partition('://')[0]}://…#{self.full_name}"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of a database or its driver to errors without secrets."""
        from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

        try:
            yield
        except FloodmarkError:
            raise
        except ModuleNotFoundError as error:
            raise BadSource(
                f"the driver for {self.source} is not installed: there is no module {error.name!r}",
                hint=f"run `pip install {error.name}`, or name another driver in the URL: postgresql+psycopg://…",
            ) from error
        except NoSuchModuleError as error:
            raise BadSource(
                f"there is no SQLAlchemy dialect for {self.source}: {self._without_secrets(error)}",
                hint="check the first word of the URL, or install the package with this dialect",
            ) from None
        except (SQLAlchemyError, OSError, ValueError, TypeError) as error:
            # A driver's message may contain the URL or values. It is repeated without secrets, and not chained.
            inner = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            raise SourceFailed(
                f"{self.source} could not be read: {type(inner).__name__}: {self._without_secrets(inner)}",
                hint="fix the cause and run again: nothing was written",
                source=self.source,
            ) from None

    def _without_secrets(self, error: object) -> str:
        text = str(error)
        for secret in sorted(_secrets(self.url), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text


def parse_url(text: str) -> URL:
    """Parse a database URL; `BadSource` if it is not valid. The message does not repeat the URL."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise BadSource(
            "the URL of an external table is not a valid URL",
            hint="write dialect://user:password@host/database; write @ and / in a password as %40 and %2F",
        ) from None


def _location(url: URL) -> str:
    """The location of a database without user and password."""
    if "@" in (url.host or ""):  # part of a password that is not escaped
        return f"{url.get_backend_name()}://…"
    port = f":{url.port}" if url.port is not None else ""
    location = f"{url.get_backend_name()}://{url.host or ''}{port}/{url.database or ''}"
    options = _public_options(url)
    return f"{location}?{hashlib.sha256(options.encode()).hexdigest()[:12]}" if options else location


def _public_options(url: URL) -> str:
    """The options of a URL that may identify the database, without secrets."""
    options = []
    for name, value in sorted(url.query.items()):
        parts = [value] if isinstance(value, str) else list(value)
        if name == "odbc_connect":
            parts = [";".join(p for p in part.split(";") if not _SECRET.search(p.partition("=")[0])) for part in parts]
        elif _SECRET.search(name):
            continue
        options.append(f"{name}={','.join(parts)}")
    return "&".join(options)


def _secrets(text: str) -> set[str]:
    """The texts that messages must not contain: the password and secret options, plain and URL-quoted."""
    try:
        url = parse_url(text)
    except BadSource:
        return {text}
    plain = {text} | ({str(url.password)} if url.password else set())
    for name, value in url.query.items():
        for part in [value] if isinstance(value, str) else value:
            if name == "odbc_connect":
                plain |= {p.partition("=")[2] for p in part.split(";") if _SECRET.search(p.partition("=")[0])} | {part}
            elif _SECRET.search(name):
                plain.add(part)
    plain.discard("")
    return plain | {quote(one, safe="") for one in plain} | {quote_plus(one) for one in plain}


# Types

_MOST_DIGITS = 38
_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeError)


@dataclass(frozen=True)
class SourceColumn:
    """A column of an external table: its name in the database, and the Arrow type of its values."""

    name: str
    type: pa.DataType


def arrow_type(declared: Any) -> pa.DataType:
    """The Arrow type for a SQLAlchemy type. It does not depend on the rows, so it is the same at every poll.

    Types without an Arrow counterpart (JSON, UUID, enumerations, addresses, unknown types) become text.
    """
    from sqlalchemy import types

    if isinstance(declared, types.Boolean):
        return pa.bool_()
    if isinstance(declared, types.Integer):
        return pa.int64()
    if isinstance(declared, types.Float):  # before Numeric, which it derives from
        return pa.decimal128(_MOST_DIGITS, 9) if declared.asdecimal else pa.float64()
    if isinstance(declared, types.Numeric):
        return _decimal(declared)
    if isinstance(declared, types.DateTime):
        return pa.timestamp("us", "UTC") if declared.timezone else pa.timestamp("us")
    if isinstance(declared, types.Date):
        return pa.date32()
    if isinstance(declared, types.Time):
        return pa.time64("us")
    if isinstance(declared, types.LargeBinary | types.BINARY | types.VARBINARY):
        return pa.binary()
    if isinstance(declared, types.ARRAY) and declared.dimensions in (None, 1):
        return pa.list_(arrow_type(declared.item_type))
    return pa.string()


def _decimal(declared: Any) -> pa.DataType:
    if not declared.asdecimal:
        return pa.float64()
    if declared.precision is None:
        return pa.decimal128(_MOST_DIGITS, 9)
    return pa.decimal128(min(declared.precision, _MOST_DIGITS), min(declared.scale or 0, _MOST_DIGITS))


def to_arrow_column(values: Sequence[Any], column: SourceColumn, table: str) -> pa.Array:
    """Convert values from a driver to an Arrow column; `SourceFailed` if a value does not fit."""
    try:
        if pa.types.is_string(column.type):
            return pa.array([_text(value) for value in values], pa.string())
        return _integers(values) if pa.types.is_int64(column.type) else pa.array(values, column.type)
    except _CONVERSION_ERRORS as error:
        raise SourceFailed(
            f"column {column.name!r} of {table} has values that are not {column.type}: {error}",
            hint="set its type: OutputSpec(…, schema={…}) with all columns; or leave it out: columns=[…]",
            column=column.name,
        ) from error


def _integers(values: Sequence[Any]) -> pa.Array:
    """Convert values to integers without loss: with a type given, Arrow would truncate fractions silently."""
    inferred = pa.array(values)
    types = pa.types
    allowed = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    if not any(is_allowed(inferred.type) for is_allowed in allowed):
        raise TypeError(f"they are {inferred.type}")
    return inferred.cast(pa.int64(), safe=True)


def _text(value: Any) -> str | None:
    """Convert a value to text. Equal values have equal texts at every poll."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
