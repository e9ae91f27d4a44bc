"""The input rows that a row of a view came from.

The query runs again with one more column for each table that it reads: the offsets of the table's rows that a row came
from. A join takes over those of both sides, a group those of all its rows. A window function that looks at other rows
adds those of its frame; a rank adds none. Of a semi join, the partners count; rows that must not exist have no offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.spark_read import table_frame
from floodmark.rows import row_hash
from floodmark.storage.arrays import I64
from floodmark.views.analysis import Analysis
from floodmark.views.catalyst import Catalyst, class_of, frame_of, items, optimize
from floodmark.views.changed_rows import LocalRows, read_all_rows
from floodmark.views.delta_rules import PASSED_OPERATORS
from floodmark.views.evaluator import IsolatedSession, convert_refresh_errors
from floodmark.views.operator_columns import TABLE
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.spark_sql import register_table

_OFFSET = "floodmark_from"
_TYPE = "array<bigint>"
_RANKS = {"RowNumber", "Rank", "DenseRank", "PercentRank", "CumeDist", "NTile"}
"""Window functions that only say at which place a row is."""


class NotTraced(Exception):
    """The query has an operator through which rows cannot be traced."""


@dataclass(frozen=True)
class _Offsets:
    """A column with the offsets of rows of a table."""

    table: str
    attribute: Any

    @property
    def name(self) -> str:
        return str(self.attribute.name())


@dataclass(frozen=True)
class _Traced:
    """A plan whose rows have the columns of an operator, and then these."""

    plan: Any
    offsets: tuple[_Offsets, ...]

    @property
    def attributes(self) -> list[Any]:
        return [one.attribute for one in self.offsets]


@dataclass
class _Tracer:
    """Rebuilds an optimized plan so that its rows carry the offsets that they came from."""

    catalyst: Catalyst
    _numbers: Any = field(default_factory=count)

    def trace(self, plan: Any) -> _Traced:
        name = class_of(plan)
        below = [self.trace(child) for child in items(plan.children())]
        if not below:
            return self._leaf(plan)
        if name in PASSED_OPERATORS and name != "Sort":
            return below[0]
        match name:
            case "Project":
                [one] = below
                columns = [*items(plan.projectList()), *one.attributes]
                return _Traced(self.catalyst.project(columns, one.plan), one.offsets)
            case "Join":
                return self._join(plan, *below)
            case "Aggregate":
                return self._aggregate(plan, *below)
            case "Window":
                return self._window(plan, *below)
            case "Union":
                return self._union(plan, below)
            case "Expand":
                return self._expand(plan, *below)
            case _ if len(below) > 1:
                raise NotTraced(name)
            case _:
                [one] = below
                return self._ordered(plan, plan.withNewChildren(self.catalyst.seq([one.plan])), one.offsets)

    def _ordered(self, plan: Any, traced: Any, offsets: Sequence[_Offsets]) -> _Traced:
        """The plan with the operator's columns first."""
        columns = [*items(plan.output()), *(one.attribute for one in offsets)]
        return _Traced(self.catalyst.project(columns, traced), tuple(offsets))

    def _named(self, table: str, expression: Any) -> tuple[Any, _Offsets]:
        """A new column of offsets: its definition, and the column."""
        name, own_id = f"{_OFFSET}_{next(self._numbers)}", self.catalyst.new_id()
        known = self.catalyst.alias(self.catalyst.expression(f"cast(null as {_TYPE})"), name, own_id)
        return self.catalyst.alias(expression, name, own_id), _Offsets(table, known.toAttribute())

    def _leaf(self, plan: Any) -> _Traced:
        table = table_of_leaf(plan)
        if table is None:
            return _Traced(plan, ())
        columns = []
        for column in items(plan.output()):
            quoted = "`" + str(column.name()).replace("`", "``") + "`"
            columns.append(self.catalyst.alias(self.catalyst.expression(quoted), column.name(), column.exprId()))
        own, offsets = self._named(table, self.catalyst.expression(f"array(`{_OFFSET}`)"))
        return _Traced(self.catalyst.project([*columns, own], self.catalyst.relation(table_name(table))), (offsets,))

    def _join(self, plan: Any, left: _Traced, right: _Traced) -> _Traced:
        match class_of(plan.joinType()).rstrip("$"):
            case "LeftAnti" | "ExistenceJoin":
                joined = plan.withNewChildren(self.catalyst.seq([left.plan, right.plan]))
                return self._ordered(plan, joined, left.offsets)
            case "LeftSemi":
                return self._semi_join(plan, left, right)
            case _:
                joined = plan.withNewChildren(self.catalyst.seq([left.plan, right.plan]))
                return self._ordered(plan, joined, (*left.offsets, *right.offsets))

    def _semi_join(self, plan: Any, left: _Traced, right: _Traced) -> _Traced:
        """Each row of the left side once, with the offsets of all its partners."""
        catalyst = self.catalyst
        columns = [*items(plan.output()), *left.attributes]
        number = catalyst.expression("monotonically_increasing_id()")
        row = catalyst.alias(number, f"floodmark_row_{next(self._numbers)}", catalyst.new_id())
        numbered = catalyst.project([*columns, row], left.plan)
        joined = catalyst.inner_join(numbered, right.plan, plan.condition())
        own = [catalyst.alias(self._call("first(a)", a=one), one.name(), one.exprId()) for one in columns]
        partners = [self._collected(one) for one in right.offsets]
        by = catalyst.alias(catalyst.expression("0L"), row.name(), row.exprId()).toAttribute()
        grouped = catalyst.aggregate([by], [*own, *(named for named, _ in partners)], joined)
        return _Traced(grouped, (*left.offsets, *(one for _, one in partners)))

    def _aggregate(self, plan: Any, below: _Traced) -> _Traced:
        collected = [self._collected(one) for one in below.offsets]
        columns = [*items(plan.aggregateExpressions()), *(named for named, _ in collected)]
        grouped = self.catalyst.aggregate(items(plan.groupingExpressions()), columns, below.plan)
        return _Traced(grouped, tuple(one for _, one in collected))

    def _collected(self, one: _Offsets) -> tuple[Any, _Offsets]:
        """The offsets of all rows of a group."""
        return self._named(one.table, self._call("flatten(collect_list(a))", a=one.attribute))

    def _window(self, plan: Any, below: _Traced) -> _Traced:
        """Rows that ORDER BY leaves open are ordered as in a refresh."""
        catalyst = self.catalyst
        functions = items(plan.windowExpressions())
        over: dict[str, list[Any]] = {one.name: [] for one in below.offsets}
        by_row: list[Any] = []
        by_range: list[Any] = []
        for function in functions:
            window = function.child()
            found = by_row if _is_by_row(window) else by_range
            found.append(function)
            if _function_name(window) in _RANKS:
                continue
            for one in below.offsets:
                frame = catalyst.collect_over(one.attribute, window.windowSpec())
                named = catalyst.alias(frame, f"floodmark_over_{next(self._numbers)}", catalyst.new_id())
                over[one.name].append(named)
                found.append(named)
        rows, partition, order = below.plan, plan.partitionSpec(), items(plan.orderSpec())
        if by_row:
            ties = [catalyst.ascending(column) for column in items(plan.children().apply(0).output())]
            rows = catalyst.window(by_row, partition, catalyst.seq([*order, *ties]), rows, plan.hint())
        if by_range:
            rows = catalyst.window(by_range, partition, plan.orderSpec(), rows, plan.hint())
        named, offsets = [], []
        for one in below.offsets:
            parts = [self._call("array(a)", a=one.attribute), *(found.toAttribute() for found in over[one.name])]
            definition, column = self._named(one.table, self._call("array_distinct(flatten(a))", a=self._joined(parts)))
            named.append(definition)
            offsets.append(column)
        return _Traced(catalyst.project([*items(plan.output()), *named], rows), tuple(offsets))

    def _joined(self, parts: Sequence[Any]) -> Any:
        names = [f"p{number}" for number in range(len(parts))]
        return self._call(f"concat({', '.join(names)})", **dict(zip(names, parts, strict=True)))

    def _union(self, plan: Any, below: Sequence[_Traced]) -> _Traced:
        catalyst = self.catalyst
        every = [(number, one) for number, part in enumerate(below) for one in part.offsets]
        parts, columns = [], []
        for number, (child, part) in enumerate(zip(items(plan.children()), below, strict=True)):
            own = []
            for owner, one in every:
                if owner == number:
                    own.append(one.attribute)
                else:
                    definition, column = self._named(one.table, catalyst.expression(f"cast(array() as {_TYPE})"))
                    own.append(definition)
                    one = column
                if number == 0:
                    columns.append(one)
            parts.append(catalyst.project([*items(child.output()), *own], part.plan))
        return _Traced(plan.withNewChildren(catalyst.seq(parts)), tuple(columns))

    def _expand(self, plan: Any, below: _Traced) -> _Traced:
        projections, output = items(plan.projections()), plan.output()
        for attribute in below.attributes:
            projections = [one.appended(attribute) for one in projections]
            output = output.appended(attribute)
        return _Traced(self.catalyst.expand(projections, output, below.plan), below.offsets)

    def _call(self, text: str, **arguments: Any) -> Any:
        """An expression of SQL over other expressions."""

        def swap(part: Any) -> Any | None:
            return arguments.get(str(part.name())) if class_of(part) == "UnresolvedAttribute" else None

        return self.catalyst.replaced(self.catalyst.expression(text), swap)


def _function_name(window: Any) -> str:
    function = window.windowFunction()
    return class_of(function.aggregateFunction() if class_of(function) == "AggregateExpression" else function)


def _is_by_row(window: Any) -> bool:
    """Whether a window function looks at rows by number."""
    frame = window.windowSpec().frameSpecification()
    return class_of(frame) == "SpecifiedWindowFrame" and class_of(frame.frameType()) == "RowFrame$"


def table_of_leaf(plan: Any) -> str | None:
    """The name of the table that a leaf reads; None for constant rows."""
    output = plan.output()
    if output.isEmpty() or not output.apply(0).metadata().contains(TABLE):
        return None
    return str(output.apply(0).metadata().getString(TABLE))


def table_name(table: str) -> str:
    """The name under which the rows of a table are registered, with their offsets."""
    return f"floodmark_traced_{table.encode().hex()}"


RowOrigin = Mapping[str, I64]
"""By the name of an input in the query, the offsets of its rows that a row came from."""


def trace_rows(
    view: str, analysis: Analysis, sources: Sequence[ViewInputSnapshot], session: IsolatedSession, rows: pa.Table
) -> list[RowOrigin | None]:
    """Where rows of a view with these visible columns came from; None for a row that the query does not give.

    Equal rows have the offsets of all of them. Raises `NotTraced` for a query with an operator that is not known.
    """
    spark = session.get()
    with convert_refresh_errors(view):
        query = optimize(spark, analysis.query, {source.alias: _schema(source) for source in sources})
        for source in sources:
            _register(source, analysis, session)
        traced = _Tracer(Catalyst(spark)).trace(query.plan)
        frame = frame_of(spark, traced.plan)
        shown = frame.columns[: len(frame.columns) - len(traced.offsets)]
        wanted = rows.select(analysis.columns.names)
        known = pa.schema([analysis.columns.field(name) for name in wanted.column_names])
        equal = {name: column[0] for name, column in zip(shown, wanted.columns, strict=True) if _has_one_value(column)}
        key = [name for name in analysis.key if name in wanted.column_names]
        by = key if len(key) == len(analysis.key) else wanted.column_names
        chosen = {name: value for name, value in equal.items() if wanted.column_names[shown.index(name)] in by}
        found: pa.Table = _filtered(frame, chosen).toArrow()
    own = found.select(shown).rename_columns(wanted.column_names).cast(known)
    places = _places(own, wanted.cast(known), by)
    return [_origin(found, traced.offsets, at, sources) if len(at) else None for at in places]


def _has_one_value(column: pa.ChunkedArray) -> bool:
    return len(column.unique()) == 1


def _places(found: pa.Table, wanted: pa.Table, by: Sequence[str]) -> list[I64]:
    """For each row the places of the rows that have its values in some columns.

    The last digits of sums of floats depend on the order of rows, so if there are none, floats are not compared.
    """
    exact = [name for name in by if not pa.types.is_floating(wanted.column(name).type)]
    every, loose = _by_hash(found, by), _by_hash(found, exact)
    pairs = zip(_hash_pairs(wanted, by), _hash_pairs(wanted, exact), strict=True)
    return [np.array(every.get(one) or loose.get(other, []), np.int64) for one, other in pairs]


def _by_hash(rows: pa.Table, names: Sequence[str]) -> dict[tuple[int, int], list[int]]:
    places: dict[tuple[int, int], list[int]] = {}
    for place, pair in enumerate(_hash_pairs(rows, names)):
        places.setdefault(pair, []).append(place)
    return places


def _hash_pairs(rows: pa.Table, names: Sequence[str]) -> list[tuple[int, int]]:
    if not names:
        return [(0, 0)] * rows.num_rows
    hashes = row_hash.hash_rows(rows, list(names))
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


def _origin(
    found: pa.Table, columns: Iterable[_Offsets], places: I64, sources: Iterable[ViewInputSnapshot]
) -> RowOrigin:
    offsets: dict[str, I64] = {source.alias: np.empty(0, np.int64) for source in sources}
    for one in columns:
        values = found.column(one.name).take(pa.array(places)).combine_chunks().flatten().drop_null()
        offsets[one.table] = np.union1d(offsets[one.table], values.to_numpy(zero_copy_only=False).astype(np.int64))
    return offsets


_SIMPLE_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal)
"""The types of values that mean the same in Spark and in Python."""


def _filtered(frame: Any, values: Mapping[str, pa.Scalar]) -> Any:
    """The rows with these values in columns of simple types, which Spark looks for where it reads tables."""
    from pyspark.sql import functions as F  # noqa: N812

    for name, value in values.items():
        column = frame[f"`{name.replace('`', '``')}`"]
        if not value.is_valid:
            frame = frame.where(column.isNull())
        elif any(is_simple(value.type) for is_simple in _SIMPLE_TYPES):
            frame = frame.where(column == F.lit(value.as_py()))
    return frame


def _schema(source: ViewInputSnapshot) -> pa.Schema:
    layout = source.given.layout
    assert layout is not None  # a view with an input without columns is not refreshed
    return pa.schema([layout.read_schema.field(name) for name in source.columns])


def _register(source: ViewInputSnapshot, analysis: Analysis, session: IsolatedSession) -> None:
    """Give Spark the rows of an input with their offsets."""
    layout = source.given.layout
    assert layout is not None
    inject = {source.alias: ((_OFFSET, layout.vocab.offset),)}
    rows = read_all_rows(source, replace(analysis, inject=inject), session)
    spark = session.get()
    frame = table_frame(rows.table, spark) if isinstance(rows, LocalRows) else rows.frame
    register_table(table_name(source.alias), frame)
