"""Spark's plan of a query as a tree, and the columns that flow through it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlanNode:
    """An operator of a plan, or a part of an expression.

    `fields` has everything else in Spark's JSON: texts, numbers and dictionaries; expressions and the plans of
    subqueries are trees of nodes.
    """

    name: str
    children: tuple[PlanNode, ...]
    fields: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields.get(field)

    @property
    def only(self) -> PlanNode:
        """The one child."""
        if len(self.children) != 1:
            raise UnreadablePlan(f"{self.name} has {len(self.children)} children")
        return self.children[0]

    def expression(self, field: str) -> PlanNode | None:
        """The expression in a field; None if there is none."""
        value = self.fields.get(field)
        return value if isinstance(value, PlanNode) else None

    def expressions(self, field: str) -> tuple[PlanNode, ...]:
        """The expressions in a field that has a list of them."""
        value = self.fields.get(field)
        if not isinstance(value, tuple) or not all(isinstance(item, PlanNode) for item in value):
            raise UnreadablePlan(f"{self.name} has no list of expressions {field}")
        return value

    @property
    def id(self) -> str:
        """The unique id of an attribute; names may repeat."""
        value = self.fields.get("exprId")
        if not isinstance(value, dict) or "id" not in value:
            raise UnreadablePlan(f"{self.name} has no id")
        return f"{value['id']}@{value.get('jvmId')}"

    def all(self) -> Iterator[PlanNode]:
        """This node and all nodes below it, including those in expressions."""
        yield self
        for child in self.children:
            yield from child.all()
        for tree in self.own_nodes():
            yield from tree.all()

    def own_nodes(self) -> Iterator[PlanNode]:
        """The trees in its fields: expressions, and the plans of subqueries."""
        for value in self.fields.values():
            yield from _trees_in(value)

    def own_expressions(self) -> Iterator[PlanNode]:
        """The parts of all expressions of this operator, including subqueries and their parts."""
        for tree in self.own_nodes():
            yield from tree.all()


class UnreadablePlan(ValueError):
    """A plan in an unknown form."""


def parse_plan(text: str) -> PlanNode:
    """Parse the text of Spark's `toJSON`."""
    value = json.loads(text)
    if not _is_tree(value):
        raise UnreadablePlan("this is not a plan")
    return _tree(value)


def operators(plan: PlanNode) -> Iterator[PlanNode]:
    """The operators of a plan, without those in subqueries of expressions."""
    yield plan
    for child in plan.children:
        yield from operators(child)


def function_name(node: str) -> str:
    """The name of a function in SQL, from the name of its node: CollectSet is collect_set()."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node).lower() + "()"


def _tree(items: list[Any]) -> PlanNode:
    """Read a tree from Spark's list of nodes, in which each node comes before its children."""
    rest = iter(items)
    tree = _next(rest)
    if next(rest, None) is not None:
        raise UnreadablePlan("there is more than one root")
    return tree


def _next(rest: Iterator[Any]) -> PlanNode:
    item = next(rest, None)
    if not isinstance(item, dict):
        raise UnreadablePlan("a node is missing")
    children = tuple(_next(rest) for _ in range(int(item["num-children"])))
    fields = {name: _value(value) for name, value in item.items() if name not in ("class", "num-children")}
    return PlanNode(str(item["class"]).rsplit(".", 1)[-1], children, fields)


def _value(value: Any) -> Any:
    if _is_tree(value):
        return _tree(value)
    return tuple(map(_value, value)) if isinstance(value, list) else value


def _is_tree(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "num-children" in value[0]


def _trees_in(value: Any) -> Iterator[PlanNode]:
    if isinstance(value, PlanNode):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _trees_in(item)


# Known properties of rows

Trace = frozenset[tuple[int, str]]
"""Pairs of a table's number in the plan and its column."""

MAX_KEYS = 4
"""The most keys that are kept per operator."""


class NotIncremental(Exception):
    """The query cannot be refreshed in parts; the text is the reason shown to users."""


@dataclass(frozen=True)
class Attribute:
    """A column that an operator returns."""

    id: str
    name: str
    type: str


@dataclass(frozen=True)
class PlanTable:
    """One occurrence of a dataset in a plan; a dataset that occurs twice has two."""

    number: int
    alias: str


@dataclass(frozen=True)
class Flow:
    """The known properties of the rows that an operator returns."""

    output: tuple[Attribute, ...]
    tables: tuple[PlanTable, ...]
    traces: Mapping[str, Trace] = field(default_factory=dict)
    halves: Mapping[frozenset[str], Trace] = field(default_factory=dict)  # of full joins: of coalesce(a, b)
    keys: tuple[frozenset[str], ...] = ()  # each: columns whose values identify a row
    same: tuple[frozenset[str], ...] = ()  # each: columns that are equal in every row; the sets are disjoint
    operations: frozenset[str] = frozenset()  # "join", "group"


Pairs = tuple[tuple[str, str], ...]
"""Pairs of ids of columns that are equal."""


def unite_traces(traces: Mapping[str, Trace], same: Iterable[frozenset[str]]) -> dict[str, Trace]:
    """The traces, combined for columns that are equal in every row."""
    result = dict(traces)
    for columns in same:
        traced = sorted(columns & traces.keys())
        for a in traced:
            for b in traced:
                result[a] = union_of(result[a], traces[b]) or result[a]
    return result


def merge_equal_columns(same: Iterable[Collection[str]]) -> tuple[frozenset[str], ...]:
    """Merge overlapping sets of equal columns into disjoint sets."""
    merged: list[frozenset[str]] = []
    for columns in same:
        touching = [known for known in merged if known & set(columns)]
        merged = [known for known in merged if known not in touching]
        merged.append(frozenset(columns).union(*touching))
    return tuple(merged)


def union_of(one: Trace, other: Trace) -> Trace | None:
    """The union of two traces; None if they name different columns of one table."""
    union = one | other
    return union if len({number for number, _ in union}) == len(union) else None


def equalities(condition: PlanNode) -> Pairs:
    """The pairs of plain columns of the same type that must be equal for a condition to hold."""
    pairs: list[tuple[str, str]] = []
    rest = [condition]
    while rest:
        part = rest.pop()
        if part.name == "And":
            rest += part.children
        elif part.name in ("EqualTo", "EqualNullSafe"):
            a, b = part.children
            are_plain = a.name == b.name == "AttributeReference"
            if are_plain and is_comparable(str(a["dataType"])) and a["dataType"] == b["dataType"]:
                pairs.append((a.id, b.id))
    return tuple(sorted(pairs))


_COMPARABLE = ("boolean", "byte", "short", "integer", "long", "string", "binary", "date", "timestamp", "timestamp_ntz")


def is_comparable(data_type: str) -> bool:
    """Whether equal values have equal bytes; not so for floats (-0.0, NaN) and collated strings."""
    return data_type in _COMPARABLE or data_type.startswith("decimal(")


# Columns that a query needs


def used_columns(plan: PlanNode) -> Mapping[str, set[str]] | None:
    """The columns that the result depends on, by alias in lower case; None if the plan has unknown operators.

    Columns that are listed but dropped again (as by USING) are left out.
    """
    columns: dict[str, set[str]] = {}
    try:
        _collect_needed(plan, {_id(item) for item in _output(plan, {})}, columns, {})
    except (NotIncremental, UnreadablePlan):
        return None
    return columns


def named_columns(plan: PlanNode) -> Mapping[str, set[str]] | None:
    """Like `used_columns`, plus all columns that the plan names: a named column must exist even if it is unused."""
    columns: dict[str, set[str]] = {}
    needed = used_columns(plan)
    if needed is None:
        return None
    owners: dict[str, tuple[str, str]] = {}
    for node in plan.all():
        if node.name == "View":
            alias = str(node["desc"]["identifier"]["table"]).lower()
            columns[alias] = set(needed.get(alias, ()))
            owners |= {item.id: (alias, str(item["name"])) for item in node.only.expressions("output")}
    for node in operators(plan):
        if node.children:
            for part in node.own_expressions():
                if part.name == "AttributeReference" and part.id in owners:
                    alias, name = owners[part.id]
                    columns[alias].add(name)
    return columns


def _collect_needed(
    node: PlanNode, needed: set[str], columns: dict[str, set[str]], shared: dict[object, PlanNode]
) -> None:
    """Add to `found` the table columns that `node` needs to return the wanted columns."""
    match node.name:
        case "View":
            alias = str(node["desc"]["identifier"]["table"]).lower()
            own = {str(item["name"]) for item in node.only.expressions("output") if item.id in needed}
            columns.setdefault(alias, set()).update(own)
        case "SubqueryAlias" | "ResolvedHint" | "Repartition" | "RebalancePartitions":
            _collect_needed(node.only, needed, columns, shared)
        case "Filter":
            _collect_needed(node.only, needed | _column_ids([node.expression("condition")]), columns, shared)
        case "Sort" | "RepartitionByExpression":
            _collect_needed(node.only, needed | _column_ids(node.own_expressions()), columns, shared)
        case "Project":
            items = [item for item in node.expressions("projectList") if _id(item) in needed]
            _collect_needed(node.only, _column_ids(items), columns, shared)
        case "Aggregate":
            items = [*node.expressions("groupingExpressions"), *node.expressions("aggregateExpressions")]
            _collect_needed(node.only, _column_ids(items), columns, shared)
        case "Distinct":
            _collect_needed(node.only, {_id(item) for item in _output(node.only, shared)}, columns, shared)
        case "Join":
            condition = node.expression("condition")
            below = needed | (_column_ids([condition]) if condition is not None else set())
            for child in node.children:
                _collect_needed(child, below, columns, shared)
        case "WithCTE":
            *definitions, rest = node.children
            for definition in definitions:
                shared[definition["id"]] = definition.only
                _collect_needed(
                    definition.only, set(), columns, shared
                )  # its tables must exist even if they are unused
            _collect_needed(rest, needed, columns, shared)
        case "CTERelationRef" if node["cteId"] in shared and node["recursive"] is False:
            definition = shared[node["cteId"]]
            pairs = zip(node.expressions("output"), _output(definition, shared), strict=True)
            _collect_needed(definition, {_id(inner) for outer, inner in pairs if outer.id in needed}, columns, shared)
        case _:
            raise NotIncremental(node.name)


def _output(node: PlanNode, shared: Mapping[object, PlanNode]) -> tuple[PlanNode, ...]:
    """The items that an operator returns."""
    match node.name:
        case "Project":
            return node.expressions("projectList")
        case "Aggregate":
            return node.expressions("aggregateExpressions")
        case "View":
            return node.only.expressions("output")
        case "CTERelationRef":
            return node.expressions("output")
        case "WithCTE":
            return _output(node.children[-1], shared)
        case "Join":
            left, right = node.children
            is_half = any(word in str(node["joinType"]) for word in ("LeftSemi", "LeftAnti"))
            return _output(left, shared) if is_half else (*_output(left, shared), *_output(right, shared))
        case _:
            return _output(node.only, shared)


def _id(item: PlanNode) -> str:
    return item.id


def _column_ids(expressions: Iterable[PlanNode | None]) -> set[str]:
    """The ids of the columns in expressions; `NotIncremental` for a subquery, which may use any column."""
    ids = set()
    for expression in expressions:
        if expression is None:
            raise NotIncremental("no expression")
        for part in expression.all():
            if isinstance(part["plan"], PlanNode):
                raise NotIncremental("a subquery")
            if part.name == "AttributeReference":
                ids.add(part.id)
    return ids
