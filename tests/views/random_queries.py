"""Random SQL over random tables: every operator that views have rules for, nested, with one right answer each.

A query is deterministic: orders and limits name all columns, and sums are of exact types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from views.random_tables import CLOCK, DAY, FLAG, INT, LIST, MONEY, REAL, TABLES, TEXT, TIME, VALUES, WIDE, Column

EXACT = (INT, MONEY, WIDE)
SUMS = {INT: INT, MONEY: "decimal(20,2)", WIDE: "decimal(38,6)"}
AVERAGES = {INT: REAL, MONEY: "decimal(14,6)", WIDE: "decimal(38,10)"}


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
    """Builds random queries; the same seed gives the same query.

    `views` are parts of the query that are views of their own, in the order in which they read each other; their names
    begin with `prefix`.
    """

    def __init__(self, seed: int, prefix: str = "part") -> None:
        self.chance = Random(seed)
        self.views: dict[str, str] = {}
        self._prefix = prefix
        self._numbers = count()

    def query(self, depth: int) -> Query:
        """A query of at most this many nested operators."""
        if depth == 0:
            return self._table()
        below = self.query(depth - 1)
        if depth > 1 and self.chance.random() < 0.06:
            below = self._view(below)
        operators: Sequence[Callable[[Query], Query]] = (
            self._filtered, self._projected, self._joined, self._joined, self._half_joined, self._combined,
            self._grouped, self._grouped, self._windowed, self._windowed, self._exploded, self._compared,
            self._compared, self._valued, self._total, self._first_rows, self._twice, self._divided,
        )  # fmt: skip
        return self.chance.choice(operators)(below)

    def _view(self, query: Query) -> Query:
        name = f"{self._prefix}{len(self.views)}"
        self.views[name] = query.sql
        return Query(f"select * from {name}", query.columns)

    def _name(self) -> str:
        number = next(self._numbers)
        return self.chance.choice([f"c{number}", f"c{number}", f"c{number}", f"`C.{number}`", f"`ç {number}`"])

    def _column(self, type_: str) -> Column:
        return Column(self._name(), type_)

    def _renamed(self, columns: Sequence[Column]) -> tuple[str, tuple[Column, ...]]:
        """A select list that gives columns new names."""
        renamed = tuple(self._column(column.type) for column in columns)
        pairs = zip(columns, renamed, strict=True)
        return ", ".join(f"{old.name} as {new.name}" for old, new in pairs), renamed

    def _table(self) -> Query:
        table = self.chance.choice(TABLES)
        listed, columns = self._renamed(table.columns)
        return Query(f"select {listed} from `{table.name}`", columns)

    def _literal(self, of: str) -> str:
        value = self.chance.choice([value for value in VALUES[of] if value is not None])
        match of:
            case "string":
                return f"'{value}'"
            case "double":
                return f"double('{value}')"
            case "date" | "timestamp_ntz":
                return f"{of}'{value.isoformat()}'"
            case "timestamp":
                return f"timestamp'{value.isoformat()}'"
            case "array<bigint>":
                return f"cast(array({', '.join('null' if v is None else str(v) for v in value)}) as {of})"
            case "boolean":
                return str(value).lower()
            case _:
                return f"cast('{value}' as {of})"

    def _condition(self, query: Query) -> str:
        column = self.chance.choice(query.columns)
        if column.type not in VALUES:  # a sum or an average
            return f"{column.name} is not null"
        literal = self._literal(column.type)
        forms = [
            f"{column.name} {self.chance.choice(['=', '<', '>=', '<>', '<=>'])} {literal}",
            f"{column.name} is not null",
            f"coalesce({column.name} > {literal}, true)",
            f"{column.name} in ({literal}, {self._literal(column.type)})",
            f"not ({column.name} <= {literal})",
        ]
        if column.type == TEXT:
            forms += [f"{column.name} collate utf8_lcase = {literal}", f"{column.name} like 'a%'"]
        return self.chance.choice(forms)

    def _filtered(self, query: Query) -> Query:
        return Query(f"select * from ({query.sql}) where {self._condition(query)}", query.columns)

    def _expressions(self, query: Query) -> list[tuple[str, str]]:
        """Expressions of single columns, with their types."""
        found = [(f"{one.name} * 2 + 1", INT) for one in query.of(INT)]
        found += [(f"{one.name} % 2", INT) for one in query.of(INT)]
        found += [(f"upper({one.name})", TEXT) for one in query.of(TEXT)]
        found += [(f"coalesce({one.name}, 'none')", TEXT) for one in query.of(TEXT)]
        found += [(f"date_trunc('year', {one.name})", TIME) for one in query.of(TIME)]
        found += [(f"{one.name} + interval '1' day", CLOCK) for one in query.of(CLOCK)]
        found += [(f"{one.name} is null", FLAG) for one in query.of(DAY, WIDE, REAL)]
        found += [(f"case when {one.name} > 1 then {one.name} end", one.type) for one in query.of(REAL, MONEY)]
        found += [(f"array_distinct({one.name})", LIST) for one in query.of(LIST)]
        return found

    def _projected(self, query: Query) -> Query:
        kept = self.chance.sample(query.columns, self.chance.randint(1, len(query.columns)))
        parts, columns = [column.name for column in kept], list(kept)
        known = self._expressions(query)
        for expression, type_ in self.chance.sample(known, min(2, len(known))):
            columns.append(self._column(type_))
            parts.append(f"{expression} as {columns[-1].name}")
        distinct = "distinct " if self.chance.random() < 0.2 else ""
        return Query(f"select {distinct}{', '.join(parts)} from ({query.sql})", tuple(columns))

    def _divided(self, query: Query) -> Query:
        """A division that fails for some rows, which a condition below it leaves out, mostly."""
        if not (numbers := query.of(INT)):
            return self._projected(query)
        one, column = self.chance.choice(numbers).name, self._column(INT)
        guard = f" where {one} <> 0" if self.chance.random() < 0.9 else ""
        return Query(
            f"select *, 12 div {one} as {column.name} from (select * from ({query.sql}){guard})",
            (*query.columns, column),
        )

    def _pair(self, left: Query, right: Query) -> str | None:
        """A condition that makes columns of both sides equal."""
        pairs = [(a, b) for a in left.columns for b in right.columns if a.type == b.type]
        if not pairs:
            return None
        one, other = self.chance.choice(pairs)
        if one.type == TEXT and self.chance.random() < 0.15:
            return f"l.{one.name} collate utf8_lcase = r.{other.name} collate utf8_lcase"
        return f"l.{one.name} {self.chance.choice(['=', '=', '<=>'])} r.{other.name}"

    def _other(self) -> Query:
        return self.query(self.chance.choice([0, 0, 0, 1]))

    def _on(self, left: Query, right: Query) -> str | None:
        """The condition of a join; None if the sides have no columns of one type."""
        on = self._pair(left, right)
        if on is None:
            return None
        kind, a, b = self.chance.random(), left.of(INT), right.of(INT)
        if kind < 0.2 and a and b:
            return f"{on} and l.{self.chance.choice(a).name} <= r.{self.chance.choice(b).name}"
        if kind < 0.3 and (more := self._pair(left, right)):
            return f"{on} and {more}"
        if kind < 0.35 and (more := self._pair(left, right)):
            return f"({on} or {more})"
        if kind < 0.4 and a and b:
            return f"l.{self.chance.choice(a).name} < r.{self.chance.choice(b).name}"
        return on

    def _joined(self, left: Query) -> Query:
        right = self._other()
        on = self._on(left, right)
        if on is None:
            return Query(f"select * from ({left.sql}) l cross join ({right.sql}) r", left.columns + right.columns)
        how = self.chance.choice(["join", "join", "left join", "right join", "full join"])
        return Query(f"select * from ({left.sql}) l {how} ({right.sql}) r on {on}", left.columns + right.columns)

    def _half_joined(self, left: Query) -> Query:
        right = self._other()
        on = self._on(left, right)
        if on is None:
            return self._filtered(left)
        how = self.chance.choice(["left semi join", "left anti join"])
        return Query(f"select * from ({left.sql}) l {how} ({right.sql}) r on {on}", left.columns)

    def _twice(self, query: Query) -> Query:
        """A query joined with itself."""
        listed, columns = self._renamed(query.columns)
        right = Query(f"select {listed} from t", columns)
        on = self._pair(query, right)
        how = self.chance.choice(["join", "left join"])
        return Query(
            f"with t as ({query.sql}) select * from t l {how} ({right.sql}) r on {on}", (*query.columns, *columns)
        )

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
        how = self.chance.choice(
            ["union all", "union all", "union", "intersect", "intersect all", "except", "except all"]
        )
        columns = tuple(self._column(column.type) for column, _ in pairs)
        named = ", ".join(f"{a.name} as {c.name}" for (a, _), c in zip(pairs, columns, strict=True))
        others = ", ".join(b.name for _, b in pairs)
        return Query(f"(select {named} from ({one.sql})) {how} (select {others} from ({other.sql}))", columns)

    def _aggregates(self, query: Query) -> tuple[list[str], list[Column]]:
        parts, columns = ["count(*)"], [self._column(INT)]
        for column in self.chance.sample(query.columns, min(2, len(query.columns))):
            forms = [
                ("count({})", INT),
                ("count(distinct {})", INT),
                ("min({})", column.type),
                ("max({})", column.type),
            ]
            if column.type in EXACT:
                forms += [("sum({})", SUMS[column.type]), ("avg({})", AVERAGES[column.type])]
                forms += [("sum(distinct {})", SUMS[column.type])]
            if column.type == FLAG:
                forms += [("bool_or({})", FLAG), ("count_if({})", INT)]
            form, type_ = self.chance.choice(forms)
            some = f" filter (where {self._condition(query)})" if self.chance.random() < 0.15 else ""
            parts.append(form.format(column.name) + some)
            columns.append(self._column(type_))
        return [f"{part} as {c.name}" for part, c in zip(parts, columns, strict=True)], columns

    def _grouped(self, query: Query) -> Query:
        known = [(one.name, one.type) for one in query.columns] * 2 + self._expressions(query)
        keys = self.chance.sample(known, min(self.chance.randint(1, 3), len(known)))
        named = tuple(self._column(type_) for _, type_ in keys)
        listed = ", ".join(f"{text} as {c.name}" for (text, _), c in zip(keys, named, strict=True))
        below = Query(f"select *, {listed} from ({query.sql})", (*query.columns, *named))
        parts, columns = self._aggregates(query)
        names = ", ".join(key.name for key in named)
        sets = ", ".join([*(f"({key.name})" for key in named), f"({names})", "()"])
        forms = [names] * 5 + [f"rollup({names})", f"cube({names})", f"grouping sets({sets})"]
        how = self.chance.choice(forms)
        if how != names and self.chance.random() < 0.5:
            parts.append(f"grouping_id() as {(number := self._column(INT)).name}")
            columns.append(number)
        having = f" having count(*) {self.chance.choice(['> 1', '< 3'])}" if self.chance.random() < 0.3 else ""
        shown = named if self.chance.random() < 0.8 else ()
        listed = ", ".join([*(key.name for key in shown), *parts])
        return Query(f"select {listed} from ({below.sql}) group by {how}{having}", (*shown, *columns))

    def _total(self, query: Query) -> Query:
        parts, columns = self._aggregates(query)
        return Query(f"select {', '.join(parts)} from ({query.sql})", tuple(columns))

    def _windowed(self, query: Query) -> Query:
        known = [one.name for one in query.columns] * 2 + [text for text, _ in self._expressions(query)]
        by = ", ".join(self.chance.sample(known, min(len(known), self.chance.choice([1, 1, 2]))))
        every = ", ".join(f"{column.name} desc nulls last" for column in query.columns)
        one = self.chance.choice(query.columns)
        ordered, ranked = f"(partition by {by} order by {every}", f"(partition by {by} order by {one.name})"
        functions = [
            (f"row_number() over {ordered})", INT),
            (f"row_number() over {ordered})", INT),
            (f"rank() over {ranked}", INT),
            (f"dense_rank() over {ranked}", INT),
            (f"ntile(2) over {ordered})", INT),
            (f"lag({one.name}) over {ordered})", one.type),
            (f"lead({one.name}, 2) over {ordered})", one.type),
            (f"first_value({one.name}) over {ordered} rows between 1 preceding and current row)", one.type),
            (f"max({one.name}) over (partition by {by})", one.type),
            (f"count({one.name}) over {ranked}", INT),
            (f"count(*) over (partition by {by})", INT),
        ]
        for number in query.of(INT)[:1]:
            functions += [
                (f"sum({number.name}) over {ordered})", INT),
                (f"sum({number.name}) over {ordered} rows between 1 preceding and 1 following)", INT),
                (f"sum({number.name}) over (partition by {by} order by {number.name} "
                 "range between 1 preceding and current row)", INT),
            ]  # fmt: skip
        function, type_ = self.chance.choice(functions)
        column = self._column(type_)
        sql = f"select *, {function} as {column.name} from ({query.sql})"
        if type_ == INT and self.chance.random() < 0.4:
            return Query(f"select * from ({sql}) where {column.name} = 1", (*query.columns, column))
        return Query(sql, (*query.columns, column))

    def _exploded(self, query: Query) -> Query:
        how = self.chance.choice(["explode", "explode_outer", "posexplode"])
        if lists := query.of(LIST):
            one = self.chance.choice(lists)
            array, kept = one.name, [column for column in query.columns if column is not one] or [one]
        elif numbers := query.of(INT):
            array = f"filter(array({(n := self.chance.choice(numbers).name)}, {n} + 1, 7), e -> e is null or e <> 2)"
            kept = list(query.columns)
        else:
            return self._projected(query)
        columns = [self._column(INT) for _ in range(2 if how == "posexplode" else 1)]
        named = ", ".join(column.name for column in columns)
        shown = ", ".join(column.name for column in kept)
        sql = f"select {shown}, {how}({array}) as ({named}) from ({query.sql})"
        return Query(sql, (*kept, *columns))

    def _compared(self, query: Query) -> Query:
        """A subquery in the condition."""
        other = self._other()
        pairs = [(a, b) for a in query.columns for b in other.columns if a.type == b.type]
        if not pairs:
            return self._filtered(query)
        one, two = self.chance.choice(pairs)
        three, four = self.chance.choice(pairs)
        rows, condition = f"({other.sql})", self._condition(query)
        forms = [
            f"{one.name} in (select {two.name} from {rows})",
            f"{one.name} not in (select {two.name} from {rows})",
            f"({one.name}, {three.name}) in (select {two.name}, {four.name} from {rows})",
            f"{one.name} not in (select {two.name} from {rows} where {four.name} = {three.name})",
            f"({one.name} in (select {two.name} from {rows}) or {condition})",
            f"({one.name} not in (select {two.name} from {rows}) or {condition})",
            f"{one.name} >= (select max({two.name}) from {rows})",
            f"exists (select 1 from {rows} where {two.name} = {one.name})",
            f"not exists (select 1 from {rows} where {two.name} = {one.name})",
            f"(not exists (select 1 from {rows} where {two.name} <=> {one.name}) or {condition})",
            f"exists (select 1 from {rows} where {self._condition(other)})",
            f"0 = (select count(*) from {rows} where {two.name} = {one.name})",
            f"1 <= (select count({four.name}) from {rows} where {two.name} = {one.name})",
        ]
        return Query(f"select * from ({query.sql}) where {self.chance.choice(forms)}", query.columns)

    def _valued(self, query: Query) -> Query:
        """A subquery as a value."""
        other = self._other()
        pairs = [(a, b) for a in query.columns for b in other.columns if a.type == b.type]
        value = self.chance.choice(other.columns)
        correlated = f" where {(p := self.chance.choice(pairs))[1].name} = {p[0].name}" if pairs else ""
        forms = [
            (f"(select max({value.name}) from ({other.sql}))", value.type),
            (f"(select count({value.name}) from ({other.sql}))", INT),
            (f"(select min({value.name}) from ({other.sql}){correlated})", value.type),
            (f"(select count(*) from ({other.sql}){correlated})", INT),
        ]
        text, type_ = self.chance.choice(forms)
        column = self._column(type_)
        return Query(f"select *, {text} as {column.name} from ({query.sql})", (*query.columns, column))

    def _first_rows(self, query: Query) -> Query:
        limit = f"limit {self.chance.randint(1, 4)}" + (" offset 1" if self.chance.random() < 0.2 else "")
        return Query(f"select * from ({query.sql}) order by {query.names} {limit}", query.columns)
