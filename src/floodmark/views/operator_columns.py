"""Reading Spark's optimized plans: columns of operators, equalities of joins, totals of aggregates, limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from floodmark.views.query_plan import PlanNode, UnreadablePlan, is_comparable, operators

TABLE = "floodmark.table"
"""The field of a leaf of a plan that names its dataset, and the metadata of its columns in Spark."""

DROPPED = "floodmark.dropped"
"""The field of a Generate that has the numbers of its input's columns that it does not return."""

TYPES = "floodmark.types"
"""The field of an Aggregate that has the type of each function's value, in the order of `totals_of`."""

KEPT = "floodmark.kept"
"""The field of an Expand that has the numbers of the columns that are the same in all its projections."""

UNORDERED = "floodmark.unordered"
"""The field of a Window or Sort that says whether rows of its input cannot be ordered by all their columns."""

Ids = frozenset[int]


def expression_id(item: PlanNode | Mapping[str, Any]) -> int:
    """The id of a column, or of an expression that becomes one."""
    value = item["exprId"]
    if not isinstance(value, dict) or "id" not in value:
        raise UnreadablePlan("a column has no id")
    return int(value["id"])


def plain_column(item: PlanNode) -> int | None:
    """The id of the column that an item passes on, renamed or not; None for an expression."""
    bare = item.only if item.name == "Alias" else item
    return expression_id(bare) if bare.name == "AttributeReference" else None


def references(expression: PlanNode) -> Ids:
    """The ids of all columns that an expression uses."""
    return frozenset(expression_id(part) for part in expression.all() if part.name == "AttributeReference")


def own_parts(plan: PlanNode) -> Iterator[PlanNode]:
    """The parts of the expressions of an operator."""
    return plan.own_expressions()


def output_of(plan: PlanNode) -> tuple[int, ...]:
    """The ids of the columns that an operator returns."""
    match plan.name:
        case "Project":
            return column_ids(plan.expressions("projectList"))
        case "Aggregate":
            return column_ids(plan.expressions("aggregateExpressions"))
        case "Window":
            return (*output_of(plan.only), *column_ids(plan.expressions("windowExpressions")))
        case "Generate":
            dropped = plan[DROPPED]
            kept = [column for at, column in enumerate(output_of(plan.only)) if at not in dropped]
            return (*kept, *column_ids(plan.expressions("generatorOutput")))
        case "Join":
            left, right = map(output_of, plan.children)
            how = join_kind(plan)
            if how in ("LeftSemi", "LeftAnti"):
                return left
            return (*left, _exists_id(plan)) if how == "ExistenceJoin" else (*left, *right)
        case "Union":
            return output_of(plan.children[0])
        case _ if "output" in plan.fields:
            return column_ids(plan.expressions("output"))
        case _:
            return output_of(plan.only)


def column_ids(items: Iterable[PlanNode]) -> tuple[int, ...]:
    return tuple(map(expression_id, items))


def _exists_id(plan: PlanNode) -> int:
    """The id of the column that says whether a row has a partner."""
    [column] = plan["joinType"]["exists"]
    return int(column["exprId"]["id"])


def join_kind(plan: PlanNode) -> str:
    """The type of a join: Inner, LeftOuter, …"""
    value = plan["joinType"]
    if isinstance(value, dict):
        value = value.get("object") or value.get("product-class") or ""
    return str(value).rsplit(".", 1)[-1].rstrip("$")


def conjuncts(condition: PlanNode | None) -> Iterator[PlanNode]:
    """The conditions that must all hold."""
    if condition is not None and condition.name == "And":
        for child in condition.children:
            yield from conjuncts(child)
    elif condition is not None:
        yield condition


def has_collation(expression: PlanNode) -> bool:
    """Whether it compares texts that may be equal although their bytes differ."""
    return any(part.name == "Collate" or "string collate" in str(part["dataType"]) for part in expression.all())


def is_nested(expression: PlanNode) -> bool:
    """Whether it is a structure or a map. Spark does not join by every one of these."""
    return isinstance(kind := expression["dataType"], dict) and kind.get("type") in ("struct", "map")


@dataclass(frozen=True)
class Equality:
    """Two expressions that a join compares, of its left and its right side; their columns if they are plain ones."""

    left: int | None
    right: int | None
    is_null_safe: bool


def equality(condition: PlanNode, left: Ids, right: Ids) -> tuple[Equality, bool] | None:
    """A condition as an equality between both sides, and whether its own left side is the join's left; None if not."""
    if condition.name not in ("EqualTo", "EqualNullSafe") or has_collation(condition):
        return None
    if any(map(is_nested, condition.children)):
        return None
    a, b = condition.children
    used = references(a), references(b)
    if not all(used):
        return None
    is_null_safe = condition.name == "EqualNullSafe"
    if used[0] <= left and used[1] <= right:
        return Equality(column_id(a), column_id(b), is_null_safe), True
    if used[0] <= right and used[1] <= left:
        return Equality(column_id(b), column_id(a), is_null_safe), False
    return None


def column_id(expression: PlanNode) -> int | None:
    return expression_id(expression) if expression.name == "AttributeReference" else None


def join_equalities(plan: PlanNode) -> list[Equality]:
    """The equalities between the two sides of a join."""
    left, right = (frozenset(output_of(child)) for child in plan.children)
    found = (equality(one, left, right) for one in conjuncts(plan.expression("condition")))
    return [pair[0] for pair in found if pair is not None]


def table_of(plan: PlanNode) -> str | None:
    """The name of the table that a leaf of a plan reads; None for constant rows."""
    table = plan[TABLE]
    return None if table is None else str(table)


def table_columns(plan: PlanNode) -> dict[int, PlanNode]:
    """The columns of a leaf by id."""
    return {expression_id(column): column for column in plan.expressions("output")}


def is_restrictable(column: PlanNode) -> bool:
    """Whether rows of a table can be looked up by a column: equal values must have equal bytes."""
    return isinstance(column["dataType"], str) and is_comparable(column["dataType"])


# Aggregates, windows and limits


def aggregate_calls(item: PlanNode) -> Iterator[PlanNode]:
    """The calls of aggregate functions in an item."""
    return (part for part in item.all() if part.name == "AggregateExpression")


_TOTALS = {"Count", "Sum", "Average"}
_EXACT_TYPE = re.compile(r"(TINYINT|SMALLINT|INT|BIGINT|DECIMAL\(.*\))$")


def totals_of(plan: PlanNode) -> tuple[PlanNode, ...] | None:
    """The calls of an aggregate whose results follow from counts and exact sums, each once; None if others do not."""
    if plan.name != "Aggregate" or any(column_id(by) is None for by in plan.expressions("groupingExpressions")):
        return None
    calls: dict[int, PlanNode] = {}
    for item in plan.expressions("aggregateExpressions"):
        for call in aggregate_calls(item):
            calls.setdefault(expression_id({"exprId": call["resultId"]}), call)
    types = plan[TYPES]
    if types is None or len(types) != len(calls) or not all(map(_is_total, calls.values(), types)):
        return None
    return tuple(calls.values())


def keeps_totals(plan: PlanNode) -> bool:
    """Whether totals can be kept for every aggregate of a query, and there are some."""
    totals = [totals_of(one) for one in operators(plan) if one.name == "Aggregate"]
    return any(totals) and None not in totals


def _is_total(call: PlanNode, kind: str) -> bool:
    function = call.children[0]
    is_plain = not call["isDistinct"] and len(call.children) == 1 and call.expression("filter") is None
    is_known = function.name in _TOTALS and len(function.children) == 1
    return is_plain and is_known and (function.name == "Count" or _EXACT_TYPE.match(kind) is not None)


def has_row_frame(window_expression: PlanNode) -> bool:
    """Whether a window function looks at rows by number, so that more columns to order by do not change its meaning."""
    for part in window_expression.all():
        if part.name == "SpecifiedWindowFrame":
            return "RowFrame" in str(part["frameType"])
    return False


@dataclass(frozen=True)
class LimitedOrder:
    """The rows of an order that are shown, after some that are skipped."""

    skipped: int
    shown: int
    sorted: PlanNode  # the Sort
    projections: tuple[PlanNode, ...]  # between the Sort and the limit, the lowest first


def limit_of(plan: PlanNode) -> LimitedOrder | None:
    """What a limit shows of an order; None if it is another operator, or shows any rows."""
    if plan.name != "GlobalLimit":
        return None
    shown, skipped, below = _number(plan.expression("limitExpr")), 0, plan.only
    if below.name == "Offset":
        number = _number(below.expression("offsetExpr"))
        if number is None:
            return None
        skipped, below = number, below.only
    if below.name == "LocalLimit":
        below = below.only
    projections: list[PlanNode] = []
    while below.name == "Project":
        projections.insert(0, below)
        below = below.only
    if below.name != "Sort" or not below["global"] or shown is None:
        return None
    return LimitedOrder(skipped, shown, below, tuple(projections))


def _number(expression: PlanNode | None) -> int | None:
    if expression is None or expression.name != "Literal":
        return None
    return int(str(expression["value"]))
