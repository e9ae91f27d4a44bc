"""Random tables for random queries: their columns, values and changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

import floodmark as fm

Row = dict[str, Any]

INT, TEXT, MONEY, REAL = "bigint", "string", "decimal(10,2)", "double"
DAY, TIME, CLOCK, FLAG, LIST, WIDE = "date", "timestamp", "timestamp_ntz", "boolean", "array<bigint>", "decimal(38,6)"

VALUES: Mapping[str, list[Any]] = {
    INT: [None, 0, 1, 1, 2, 3],
    TEXT: [None, "", "a", "a", "A", "b", "ä"],
    MONEY: [None, Decimal("0.00"), Decimal("0.50"), Decimal("2.25"), Decimal("-1.10")],
    REAL: [None, 0.0, -0.0, 0.5, 2.5, float("nan"), float("inf")],
    DAY: [None, date(2024, 2, 29), date(2024, 3, 1), date(1500, 1, 1)],
    TIME: [None, datetime(2024, 3, 31, 1, 30, tzinfo=UTC), datetime(1890, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    CLOCK: [None, datetime(2024, 3, 31, 2, 30), datetime(1, 1, 1)],
    FLAG: [None, True, False],
    LIST: [None, [], [1], [1, None, 1], [2, 3]],
    WIDE: [None, Decimal("123456789012345678901234.000001"), Decimal("-0.000001"), Decimal("0.000000")],
}
ARROW: Mapping[str, pa.DataType] = {
    INT: pa.int64(),
    TEXT: pa.string(),
    MONEY: pa.decimal128(10, 2),
    REAL: pa.float64(),
    DAY: pa.date32(),
    TIME: pa.timestamp("us", "UTC"),
    CLOCK: pa.timestamp("us"),
    FLAG: pa.bool_(),
    LIST: pa.list_(pa.int64()),
    WIDE: pa.decimal128(38, 6),
}


@dataclass(frozen=True)
class Column:
    """A column by its name in SQL, which is quoted if it must be."""

    name: str
    type: str


@dataclass(frozen=True)
class Table:
    """A dataset of the random lake; rows of one without a key may be equal."""

    name: str
    types: Mapping[str, str]
    key: tuple[str, ...] | None
    rows_at_first: int = 8

    @property
    def columns(self) -> list[Column]:
        return [Column(f"`{name.replace('`', '``')}`", type_) for name, type_ in self.types.items()]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, ARROW[type_]) for name, type_ in self.types.items()])

    def create(self, lake: fm.Lake, chance: Random) -> None:
        lake.create(self.name, key=self.key, schema=self.schema)
        if self.rows_at_first:
            lake[self.name].write(self.rows(chance, self.rows_at_first))

    def rows(self, chance: Random, number: int) -> pa.Table:
        """Random rows, at most one for each key."""
        rows: dict[Any, Row] = {}
        for place in range(number):
            row = {name: chance.choice(VALUES[type_]) for name, type_ in self.types.items()}
            for name in self.key or ():
                row[name] = chance.randrange(12) if name == "id" else chance.choice(["a", "b", "c", "d"])
            rows[tuple(row[name] for name in self.key) if self.key else place] = row
        return pa.Table.from_pylist(list(rows.values()), self.schema)

    def change(self, lake: fm.Lake, chance: Random) -> str:
        """Write some rows, or delete some; rarely fold or purge."""
        dataset, kind = lake[self.name], chance.random()
        if kind < 0.03:
            dataset.fold()
            return "fold"
        if kind < 0.06 and dataset.last_offset:
            before = chance.randrange(dataset.last_offset + 1)
            dataset.purge(before)
            return f"purge before {before}"
        if self.key and kind < 0.3:
            keys = self.rows(chance, 3).select(list(self.key))
            dataset.delete(keys)
            return f"delete {keys.to_pylist()}"
        rows = self.rows(chance, chance.randint(1, 4))
        dataset.write(rows)
        return f"write {rows.to_pylist()}"


TABLES = (
    Table("facts", {"id": INT, "g": TEXT, "n": INT, "m": MONEY, "x": REAL}, ("id",)),
    Table("notes", {"g": TEXT, "n": INT}, None),
    Table("kinds", {"g": TEXT, "n": INT, "m": MONEY}, ("g",), 4),
    Table("empty", {"id": INT, "n": INT}, ("id",), 0),
    Table(
        "odd-names",
        {"a.b": TEXT, "id": INT, "wei`rd": DAY, "two words": TIME, "Größe": REAL, "clock": CLOCK, "flag": FLAG,
         "list": LIST, "wide": WIDE},
        ("id", "a.b"),
        6,
    ),
)  # fmt: skip
