"""A small database for tests of external tables: SQLite in a file, with one table of orders."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ORDERS = "create table orders (id integer primary key, note text, updated_at {type})"


class Shop:
    """A database with a table of orders: id, note, updated_at."""

    def __init__(self, path: Path, type_: str = "timestamp") -> None:
        self.path = path
        self.execute(ORDERS.format(type=type_))

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def source(self) -> str:
        return f"{self.url}#orders"

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as connection:
            yield connection
            connection.commit()

    def execute(self, statement: str) -> None:
        with self.connected() as connection:
            connection.execute(statement)

    def put(self, *rows: tuple[int, Any, Any]) -> None:
        with self.connected() as connection:
            connection.executemany("insert or replace into orders values (?, ?, ?)", rows)

    def delete(self, *ids: int) -> None:
        with self.connected() as connection:
            connection.executemany("delete from orders where id = ?", [(one,) for one in ids])

    def rows(self) -> dict[int, Any]:
        with self.connected() as connection:
            return dict(connection.execute("select id, note from orders").fetchall())


def notes(lake: Any, name: str = "orders") -> dict[int, Any]:
    """What a dataset holds of the orders."""
    table = lake[name].to_arrow()
    return dict(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))


def at(second: float) -> str:
    """A time of one day, as SQLite keeps it."""
    whole = int(second)
    clock = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"2024-01-01 {clock}" + (f".{round((second - whole) * 10**6):06d}" if second != whole else "")
