"""Random SQL over random tables: every operator that views have rules for, nested, with one right answer each.

A query is deterministic: orders and limits name all columns, and sums are of exact types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

import floodmark as fm

Row = dict[str, Any]

INT, TEXT, MONEY, REAL = "bigint", "string", "decimal", "double"
VALUES: dict[str, list[Any]] = {
    INT: [None, 0, 1, 1, 2, 3],
    TEXT: [None, "", "a", "a", "b", "c"],
    MONEY: [None, Decimal("0.00"), Decimal("0.50"), Decimal("2.25"), Decimal("-1.10")],
    REAL: [None, 0.0, 0.5, 2.5, float("nan"), float("inf")],
}
ARROW = {INT: pa.int64(), TEXT: pa.string(), MONEY: pa.decimal128(10, 2), REAL: pa.float64()}


@dataclass(frozen=True)
class Column:
    name: str
    type: str


@dataclass(frozen=True)
class Table:
    """A dataset of the random lake; rows of one without a key may be equal."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] | None

    def create(self, lake: fm.Lake) -> None:
        lake.create(self.name, key=self.key, schema=pa.schema([(c.name, ARROW[c.type]) for c in self.columns]))

    def rows(self, chance: Random, number: int) -> pa.Table:
        """Random rows, at most one for each key."""
        rows: dict[Any, Row] = {}
        for place in range(number):
            row = {c.name: chance.choice(VALUES[c.type]) for c in self.columns}
            for name in self.key or ():
                row[name] = chance.randrange(12) if name == "id" else chance.choice(["a", "b", "c", "d"])
            rows[tuple(row[name] for name in self.key) if self.key else place] = row
        return pa.Table.from_pylist(list(rows.values()), pa.schema([(c.name, ARROW[c.type]) for c in self.columns]))

    def change(self, lake: fm.Lake, chance: Random) -> None:
        """Write some rows, or delete some."""
        if self.key and chance.random() < 0.3:
            lake[self.name].delete(self.rows(chance, 3).select(list(self.key)))
        elif len(rows := self.rows(chance, chance.randint(1, 4))):
            lake[self.name].write(rows)


TABLES = (
    Table(
        "facts",
        (Column("id", INT), Column("g", TEXT), Column("n", INT), Column("m", MONEY), Column("x", REAL)),
        ("id",),
    ),
    Table("notes", (Column("g", TEXT), Column("n", INT)), None),
    Table("kinds", (Column("g", TEXT), Column("n", INT), Column("m", MONEY)), ("g",)),
    Table("empty", (Column("id", INT), Column("n", INT)), ("id",)),
)


@dataclass(frozen=True)
class Query:
    """A SELECT and its columns."""

    sql: str
    columns: tuple[Column, ...]

    def of(self, *types: str) -> list[Column]:
        return [column for column in self.columns if column.type in types]

    @property
    def names(self) -> str:
        return ", ".join(column.name for column in self.columns)


class QueryMaker:
    """Builds random queries; the same seed gives the same query."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self._numbers = count()

    def query(self, depth: int) -> Query:
        """A query of at most this many nested operators."""
        if depth == 0:
            return self._table()
        below = self.query(depth - 1)
        operators: Sequence[Callable[[Query], Query]] = (
            self._filtered, self._projected, self._joined, self._joined, self._half_joined, self._combined,
            self._grouped, self._grouped, self._windowed, self._exploded, self._compared, self._total, self._first_rows,
        )  # fmt: skip
        return self.chance.choice(operators)(below)

    def _name(self) -> str:
        return f"c{next(self._numbers)}"

    def _table(self) -> Query:
        table = self.chance.choice(TABLES)
        columns = tuple(Column(self._name(), column.type) for column in table.columns)
        renamed = ", ".join(f"{old.name} as {new.name}" for old, new in zip(table.columns, columns, strict=True))
        return Query(f"select {renamed} from {table.name}", columns)

    def _literal(self, of: str) -> str:
        value = self.chance.choice([value for value in VALUES[of] if value is not None])
        return f"'{value}'" if of == TEXT else f"double('{value}')" if of == REAL else str(value)

    def _condition(self, query: Query) -> str:
        column = self.chance.choice(query.columns)
        if column.type not in VALUES:  # a sum or an average
            return f"{column.name} is not null"
        forms = [
            f"{column.name} {self.chance.choice(['=', '<', '>=', '<>', '<=>'])} {self._literal(column.type)}",
            f"{column.name} is not null",
            f"coalesce({column.name} > {self._literal(column.type)}, true)",
        ]
        return self.chance.choice(forms)

    def _filtered(self, query: Query) -> Query:
        return Query(f"select * from ({query.sql}) where {self._condition(query)}", query.columns)

    def _projected(self, query: Query) -> Query:
        kept = self.chance.sample(query.columns, self.chance.randint(1, len(query.columns)))
        parts, columns = [column.name for column in kept], list(kept)
        if numbers := query.of(INT):
            made = Column(self._name(), INT)
            parts.append(f"{self.chance.choice(numbers).name} * 2 + 1 as {made.name}")
            columns.append(made)
        if texts := query.of(TEXT):
            made = Column(self._name(), TEXT)
            parts.append(f"upper({self.chance.choice(texts).name}) as {made.name}")
            columns.append(made)
        return Query(f"select {', '.join(parts)} from ({query.sql})", tuple(columns))

    def _pair(self, left: Query, right: Query) -> str | None:
        """A condition that makes columns of both sides equal."""
        pairs = [(a, b) for a in left.columns for b in right.columns if a.type == b.type]
        if not pairs:
            return None
        one, other = self.chance.choice(pairs)
        return f"l.{one.name} {self.chance.choice(['=', '=', '<=>'])} r.{other.name}"

    def _other(self) -> Query:
        return self.query(self.chance.choice([0, 0, 0, 1]))

    def _joined(self, left: Query) -> Query:
        right = self._other()
        on = self._pair(left, right)
        if on is None:
            return Query(f"select * from ({left.sql}) l cross join ({right.sql}) r", left.columns + right.columns)
        how = self.chance.choice(["join", "join", "left join", "right join", "full join"])
        if self.chance.random() < 0.2 and (a := left.of(INT)) and (b := right.of(INT)):
            on += f" and l.{self.chance.choice(a).name} <= r.{self.chance.choice(b).name}"
        return Query(f"select * from ({left.sql}) l {how} ({right.sql}) r on {on}", left.columns + right.columns)

    def _half_joined(self, left: Query) -> Query:
        right = self._other()
        on = self._pair(left, right)
        if on is None:
            return self._filtered(left)
        how = self.chance.choice(["left semi join", "left anti join"])
        return Query(f"select * from ({left.sql}) l {how} ({right.sql}) r on {on}", left.columns)

    def _combined(self, one: Query) -> Query:
        other = self._other()
        pairs, free = [], list(other.columns)
        for column in one.columns:
            match = next((c for c in free if c.type == column.type), None)
            if match:
                free.remove(match)
                pairs.append((column, match))
        if not pairs:
            return self._filtered(one)
        how = self.chance.choice(["union all", "union all", "union", "intersect", "except", "except all"])
        columns = tuple(Column(self._name(), column.type) for column, _ in pairs)
        named = ", ".join(f"{a.name} as {c.name}" for (a, _), c in zip(pairs, columns, strict=True))
        others = ", ".join(b.name for _, b in pairs)
        return Query(f"(select {named} from ({one.sql})) {how} (select {others} from ({other.sql}))", columns)

    def _aggregates(self, query: Query) -> tuple[list[str], list[Column]]:
        parts, columns = ["count(*)"], [Column(self._name(), INT)]
        for column in self.chance.sample(query.columns, min(2, len(query.columns))):
            exact = column.type in (INT, MONEY)
            functions = ["count({})", "count(distinct {})", "min({})", "max({})"] + ["sum({})", "avg({})"] * exact
            function = self.chance.choice(functions)
            parts.append(function.format(column.name))
            is_same = function in ("min({})", "max({})")
            is_count = function.startswith("count")
            columns.append(
                Column(self._name(), column.type if is_same else INT if is_count else f"{function} of {column.type}")
            )
        return [f"{part} as {c.name}" for part, c in zip(parts, columns, strict=True)], columns

    def _grouped(self, query: Query) -> Query:
        keys = self.chance.sample(query.columns, min(self.chance.randint(1, 2), len(query.columns)))
        parts, columns = self._aggregates(query)
        names = ", ".join(key.name for key in keys)
        how = self.chance.choice([names] * 4 + [f"rollup({names})"])
        having = f" having count(*) {self.chance.choice(['> 1', '< 3'])}" if self.chance.random() < 0.3 else ""
        sql = f"select {names}, {', '.join(parts)} from ({query.sql}) group by {how}{having}"
        return Query(sql, (*keys, *columns))

    def _total(self, query: Query) -> Query:
        parts, columns = self._aggregates(query)
        return Query(f"select {', '.join(parts)} from ({query.sql})", tuple(columns))

    def _windowed(self, query: Query) -> Query:
        by = self.chance.choice(query.columns).name
        every = ", ".join(f"{column.name} desc nulls last" for column in query.columns)
        column = Column(self._name(), INT)
        functions = [f"row_number() over (partition by {by} order by {every})"]
        functions += [f"rank() over (partition by {by} order by {self.chance.choice(query.columns).name})"]
        functions += [f"count(*) over (partition by {by})"]
        if numbers := query.of(INT):
            functions += [f"sum({self.chance.choice(numbers).name}) over (partition by {by} order by {every})"]
        sql = f"select *, {self.chance.choice(functions)} as {column.name} from ({query.sql})"
        if self.chance.random() < 0.4:
            return Query(f"select * from ({sql}) where {column.name} = 1", (*query.columns, column))
        return Query(sql, (*query.columns, column))

    def _exploded(self, query: Query) -> Query:
        if not (numbers := query.of(INT)):
            return self._projected(query)
        one, column = self.chance.choice(numbers).name, Column(self._name(), INT)
        how = self.chance.choice(["explode", "explode_outer"])
        array = f"filter(array({one}, {one} + 1, 7), e -> e is null or e <> 2)"
        return Query(f"select *, {how}({array}) as {column.name} from ({query.sql})", (*query.columns, column))

    def _compared(self, query: Query) -> Query:
        """A subquery in the condition."""
        other = self._other()
        pairs = [(a, b) for a in query.columns for b in other.columns if a.type == b.type]
        if not pairs:
            return self._filtered(query)
        one, two = self.chance.choice(pairs)
        forms = [
            f"{one.name} in (select {two.name} from ({other.sql}))",
            f"{one.name} not in (select {two.name} from ({other.sql}))",
            f"{one.name} >= (select max({two.name}) from ({other.sql}))",
            f"not exists (select 1 from ({other.sql}) where {two.name} = {one.name})",
        ]
        return Query(f"select * from ({query.sql}) where {self.chance.choice(forms)}", query.columns)

    def _first_rows(self, query: Query) -> Query:
        number = self.chance.randint(1, 4)
        return Query(f"select * from ({query.sql}) order by {query.names} limit {number}", query.columns)
