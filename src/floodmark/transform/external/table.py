"""An external table: a table or view in a database, named so that no password is ever shown or stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from floodmark.errors import FloodmarkError
from floodmark.transform.errors import BadSource, SourceFailed

if TYPE_CHECKING:
    from sqlalchemy import URL

_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|user|uid", re.IGNORECASE)
_HIDDEN = "***"


@dataclass(frozen=True, repr=False)
class ExternalTable:
    """A table or view in a database, by the database's SQLAlchemy URL; `columns` are those to read, by default all."""

    url: str
    table: str
    schema: str | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        rendered = getattr(self.url, "render_as_string", None)  # a SQLAlchemy URL, which hides its password from str()
        if rendered is not None:
            object.__setattr__(self, "url", rendered(hide_password=False))
        if not isinstance(self.url, str) or "://" not in self.url:
            raise BadSource(
                f"the database of external table {self.table!r} is not given by a URL",
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
        """An external table as a user may give it: one, or "URL#table", or "URL#schema.table"."""
        if isinstance(given, ExternalTable):
            return given
        if not isinstance(given, str) or "#" not in given:
            raise BadSource(
                "the source of an external table is not given as one",
                hint="write ExternalTable(url, table), or in one text 'sqlite:///shop.db#orders'",
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
        """What the chain calls it: where it is, without who reads it and with which password."""
        try:
            return f"{_place(parse_url(self.url))}#{self.full_name}"
        except BadSource:
            return f"{self.url.partition('://')[0]}://…#{self.full_name}"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what a database or its driver complains about into an error without secrets in it."""
        from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError

        try:
            yield
        except FloodmarkError:
            raise
        except ModuleNotFoundError as error:
            raise BadSource(
                f"the driver for {self.source} is not installed: there is no module {error.name!r}",
                hint=f"pip install {error.name}, or name another driver in the URL: postgresql+psycopg://…",
            ) from error
        except NoSuchModuleError as error:
            raise BadSource(
                f"there is no SQLAlchemy dialect for {self.source}: {self._without_secrets(error)}",
                hint="check the first word of the URL, or install the package that brings the dialect",
            ) from None
        except (SQLAlchemyError, OSError, ValueError, TypeError) as error:
            # What drivers say may hold the URL or values: it is repeated without secrets, and the original is let go.
            inner = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            raise SourceFailed(
                f"{self.source} could not be read: {type(inner).__name__}: {self._without_secrets(inner)}",
                hint="nothing was written; the next run starts where this one did",
                source=self.source,
            ) from None

    def _without_secrets(self, error: object) -> str:
        text = str(error)
        for secret in sorted(_secrets(self.url), key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text


def parse_url(text: str) -> URL:
    """A database's URL; `BadSource` without repeating it if it is none."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        raise BadSource(
            "the URL of an external table cannot be read as one",
            hint="write dialect://user:password@host/database; write @ and / in a password as %40 and %2F",
        ) from None


def _place(url: URL) -> str:
    """Where a database is, and nothing of who may read it."""
    if "@" in (url.host or ""):  # part of a password that should have been written otherwise
        return f"{url.get_backend_name()}://…"
    port = f":{url.port}" if url.port is not None else ""
    place = f"{url.get_backend_name()}://{url.host or ''}{port}/{url.database or ''}"
    rest = _harmless(url)
    return f"{place}?{hashlib.sha256(rest.encode()).hexdigest()[:12]}" if rest else place


def _harmless(url: URL) -> str:
    """The options of a URL that may say which database it is, without those that are secrets."""
    said = []
    for name, value in sorted(url.query.items()):
        parts = [value] if isinstance(value, str) else list(value)
        if name == "odbc_connect":
            parts = [";".join(p for p in part.split(";") if not _SECRET.search(p.partition("=")[0])) for part in parts]
        elif _SECRET.search(name):
            continue
        said.append(f"{name}={','.join(parts)}")
    return "&".join(said)


def _secrets(text: str) -> set[str]:
    """What must not be repeated: the password and options that are secrets, plain and as a URL has them."""
    try:
        url = parse_url(text)
    except BadSource:
        return {text}
    found = {text} | ({str(url.password)} if url.password else set())
    for name, value in url.query.items():
        for part in [value] if isinstance(value, str) else value:
            if name == "odbc_connect":
                found |= {p.partition("=")[2] for p in part.split(";") if _SECRET.search(p.partition("=")[0])} | {part}
            elif _SECRET.search(name):
                found.add(part)
    found.discard("")
    return found | {quote(one, safe="") for one in found} | {quote_plus(one) for one in found}
