"""The properties of rows in a query's plan: tables, keys and equal columns, by one rule per known operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from floodmark.views.query_plan import (
    MAX_KEYS,
    Attribute,
    Flow,
    NotIncremental,
    Pairs,
    PlanNode,
    PlanTable,
    Trace,
    equalities,
    merge_equal_columns,
    union_of,
    unite_traces,
)


@dataclass(frozen=True)
class QueryTables:
    """The datasets of a query, by alias in lower case: the input column of each plan column, and the key."""

    columns: Mapping[str, Mapping[str, str]]
    keys: Mapping[str, tuple[str, ...]]  # names of input columns


def read_flow(plan: PlanNode, tables: QueryTables) -> Flow:
    """The properties of a query's rows; `NotIncremental` if it has an operator that rules out a partial refresh."""
    return _FlowReader(tables, {}, count()).of(plan)


@dataclass(frozen=True)
class _FlowReader:
    tables: QueryTables
    shared: dict[object, PlanNode]  # the plans of WITH names, by Spark's id
    numbers: Iterator[int]

    def of(self, node: PlanNode) -> Flow:
        rule = _RULES.get(node.name)
        if rule is None:
            raise NotIncremental(_unsupported_reason(node.name))
        return rule(self, node)

    def view(self, node: PlanNode) -> Flow:
        name = _table_name(node)
        if node["isTempView"] is not True or name not in self.tables.columns or len(node.children) != 1:
            raise NotIncremental(f"it reads {name!r}, which is not a dataset")
        leaf = node.only
        if leaf.children:
            raise NotIncremental(_unsupported_reason(leaf.name))
        output = tuple(_attribute(item) for item in leaf.expressions("output"))
        known = self.tables.columns[name]
        number = next(self.numbers)
        traces = {a.id: frozenset({(number, known[a.name])}) for a in output if a.name in known}
        by_column = {known[a.name]: a.id for a in output if a.name in known}
        key = self.tables.keys.get(name, ())
        is_keyed = bool(key) and all(column in by_column for column in key)
        keys = (frozenset(by_column[column] for column in key),) if is_keyed else ()
        return Flow(output, (PlanTable(number, name),), traces, keys=keys)

    def passed(self, node: PlanNode) -> Flow:
        return self.of(node.only)

    def filtered(self, node: PlanNode) -> Flow:
        below = self.of(node.only)
        if (condition := node.expression("condition")) is None:
            raise NotIncremental(_unsupported_reason(node.name))
        same = merge_equal_columns([*below.same, *equalities(condition)])
        return replace(below, traces=unite_traces(below.traces, same), same=same)

    def projected(self, node: PlanNode) -> Flow:
        below = self.of(node.only)
        items = node.expressions("projectList")
        output = tuple(_attribute(item) for item in items)
        traces: dict[str, Trace] = {}
        renamed: dict[str, list[str]] = {}
        for item, attribute in zip(items, output, strict=True):
            if (plain := _column_id(item)) is not None:
                renamed.setdefault(plain, []).append(attribute.id)
                if plain in below.traces:
                    traces[attribute.id] = below.traces[plain]
            elif (halves := _coalesce_ids(item)) in below.halves:
                traces[attribute.id] = below.halves[halves]
        there = {a.id for a in output}
        return replace(
            below,
            output=output,
            traces=traces,
            halves={pair: trace for pair, trace in below.halves.items() if pair <= there},
            keys=_rename_keys(below.keys, renamed),
            same=_rename_equal(below.same, renamed),
        )

    def distinct(self, node: PlanNode) -> Flow:
        below = self.of(node.only)
        whole_row = frozenset(a.id for a in below.output)
        return replace(below, keys=(*below.keys, whole_row)[:MAX_KEYS], operations=below.operations | {"group"})

    def grouped(self, node: PlanNode) -> Flow:
        below = self.of(node.only)
        by = node.expressions("groupingExpressions")
        if not by:
            raise NotIncremental("it aggregates all rows into one: it has aggregate functions and no GROUP BY")
        items = node.expressions("aggregateExpressions")
        output = tuple(_attribute(item) for item in items)
        plain = {_column_id(expression) for expression in by}
        traces = {
            attribute.id: below.traces[source]
            for item, attribute in zip(items, output, strict=True)
            if (source := _column_id(item)) is not None and source in plain and source in below.traces
        }
        bare_items = [(_strip_alias(item), attribute.id) for item, attribute in zip(items, output, strict=True)]
        shown = [next((i for bare, i in bare_items if _same(bare, e)), None) for e in by]
        keys = () if None in shown else (frozenset(i for i in shown if i is not None),)
        grouped: dict[str, list[str]] = {}
        for item, attribute in zip(items, output, strict=True):
            if (source := _column_id(item)) in plain and source is not None:
                grouped.setdefault(source, []).append(attribute.id)
        same = _rename_equal(below.same, grouped)
        return Flow(output, below.tables, traces, keys=keys, same=same, operations=below.operations | {"group"})

    def joined(self, node: PlanNode) -> Flow:
        left, right = (self.of(child) for child in node.children)
        condition = node.expression("condition")
        equal = equalities(condition) if condition is not None else ()
        return join_flows(left, right, join_type(node), equal)

    def with_shared(self, node: PlanNode) -> Flow:
        *definitions, plan = node.children
        for definition in definitions:
            if definition.name != "CTERelationDef":
                raise NotIncremental(_unsupported_reason(definition.name))
            self.shared[definition["id"]] = definition.only
        return self.of(plan)

    def shared_again(self, node: PlanNode) -> Flow:
        definition = self.shared.get(node["cteId"])
        if definition is None or node["recursive"] is not False:
            raise NotIncremental("it uses WITH RECURSIVE")
        flow = self.of(definition)
        output = tuple(_attribute(item) for item in node.expressions("output"))
        if len(output) != len(flow.output):
            raise NotIncremental(_unsupported_reason(node.name))
        renamed = {old.id: new.id for old, new in zip(flow.output, output, strict=True)}
        if len(renamed) < len(output):
            raise NotIncremental("it returns a column of a WITH clause twice")
        return Flow(
            output,
            flow.tables,
            {renamed[i]: trace for i, trace in flow.traces.items() if i in renamed},
            keys=_rename_keys(flow.keys, {old: [new] for old, new in renamed.items()}),
            same=_rename_equal(flow.same, {old: [new] for old, new in renamed.items()}),
            operations=flow.operations,
        )


_RULES: Mapping[str, Callable[[_FlowReader, PlanNode], Flow]] = {
    "View": _FlowReader.view,
    "SubqueryAlias": _FlowReader.passed,
    "Sort": _FlowReader.passed,
    "ResolvedHint": _FlowReader.passed,
    "Repartition": _FlowReader.passed,
    "RepartitionByExpression": _FlowReader.passed,
    "RebalancePartitions": _FlowReader.passed,
    "Filter": _FlowReader.filtered,
    "Project": _FlowReader.projected,
    "Distinct": _FlowReader.distinct,
    "Aggregate": _FlowReader.grouped,
    "Join": _FlowReader.joined,
    "WithCTE": _FlowReader.with_shared,
    "CTERelationRef": _FlowReader.shared_again,
}


def _rename_keys(keys: Iterable[frozenset[str]], names: Mapping[str, Sequence[str]]) -> tuple[frozenset[str], ...]:
    """The keys with the column ids of the operator above, without keys that lost a column."""
    return tuple(frozenset(names[i][0] for i in key) for key in keys if all(i in names for i in key))


def _rename_equal(same: Iterable[frozenset[str]], names: Mapping[str, Sequence[str]]) -> tuple[frozenset[str], ...]:
    """The sets of equal columns with the ids of the operator above. A column with two ids equals itself."""
    above = merge_equal_columns(
        [*names.values(), *[[name for i in columns for name in names.get(i, ())] for columns in same]]
    )
    return tuple(columns for columns in above if len(columns) > 1)


def _strip_alias(item: PlanNode) -> PlanNode:
    return item.only if item.name == "Alias" else item


def _column_id(item: PlanNode) -> str | None:
    """The id of the column that an item passes through, renamed or not; None for an expression."""
    bare = _strip_alias(item)
    return bare.id if bare.name == "AttributeReference" else None


def _same(one: PlanNode, other: PlanNode) -> bool:
    """Whether two expressions are the same. Columns are compared by id, not by name."""
    if one.name == other.name == "AttributeReference":
        return one.id == other.id
    if one.name != other.name or len(one.children) != len(other.children) or one.fields != other.fields:
        return False
    return all(map(_same, one.children, other.children))


def _coalesce_ids(item: PlanNode) -> frozenset[str]:
    bare = _strip_alias(item)
    if bare.name != "Coalesce" or len(bare.children) != 2:
        return frozenset()
    if any(child.name != "AttributeReference" for child in bare.children):
        return frozenset()
    return frozenset(child.id for child in bare.children)


def _attribute(item: PlanNode) -> Attribute:
    """The column that a select item gives to the operators above."""
    if item.name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(item))
    if item.name != "Alias":
        raise NotIncremental(_unsupported_reason(item.name))
    bare = item.only
    if bare.name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(bare))
    if bare.name == "Coalesce" and bare.children and bare.children[0].name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(bare.children[0]))
    return Attribute(item.id, str(item["name"]), "?")


def _type(attribute: PlanNode) -> str:
    name = attribute["dataType"]
    return name if isinstance(name, str) else "nested"


def _table_name(node: PlanNode) -> str:
    desc = node["desc"]
    identifier = desc.get("identifier") if isinstance(desc, dict) else None
    return str(identifier.get("table")).lower() if isinstance(identifier, dict) else "?"


_REASONS = {
    "GlobalLimit": "it has LIMIT",
    "LocalLimit": "it has LIMIT",
    "Offset": "it has OFFSET",
    "Tail": "it has LIMIT",
    "Sample": "it has TABLESAMPLE",
    "Window": "it uses window functions (OVER)",
    "Generate": "it makes several rows from one (explode, LATERAL VIEW)",
    "Expand": "it groups by ROLLUP, CUBE, GROUPING SETS or sliding windows, or unpivots",
    "Union": "it has UNION",
    "Intersect": "it has INTERSECT",
    "Except": "it has EXCEPT",
    "LateralJoin": "it has a LATERAL subquery",
    "AsOfJoin": "it has an as-of join",
    "OneRowRelation": "it uses literal rows",
    "LocalRelation": "it uses literal rows",
    "Range": "it uses literal rows",
    "UnionLoop": "it uses WITH RECURSIVE",
    "UnionLoopRef": "it uses WITH RECURSIVE",
}


def _unsupported_reason(name: str) -> str:
    return _REASONS.get(name, f"Spark plans it with {name}, which cannot be refreshed in parts")


# Joins


def join_flows(left: Flow, right: Flow, kind: str, equal: Pairs) -> Flow:
    """The join of two sides on these equal columns; further conditions do not matter. `kind` is Spark's join type."""
    rule = _JOINS.get(kind)
    if rule is None:
        raise NotIncremental(f"it has a {kind} join, which cannot be refreshed by its keys")
    return rule(left, right, equal)


def join_type(node: PlanNode) -> str:
    """Spark's name of a join's type."""
    value = node["joinType"]
    if not isinstance(value, dict):
        return str(value)
    return str(value.get("object") or value.get("product-class")).rsplit(".", 1)[-1].rstrip("$")


def _inner(left: Flow, right: Flow, equal: Pairs) -> Flow:
    same = merge_equal_columns([*left.same, *right.same, *equal])
    traces = unite_traces({**left.traces, **right.traces}, same)
    flow = _both(left, right, traces, (*_keys(left, right, equal), *_keys(right, left, equal)))
    return replace(flow, same=same)


def _left(left: Flow, right: Flow, equal: Pairs) -> Flow:
    # Columns of the right side are null in rows without a match, so nothing is known of them above the join.
    return replace(_both(left, right, _preserved_traces(left, right, equal), _keys(left, right, equal)), same=left.same)


def _right(left: Flow, right: Flow, equal: Pairs) -> Flow:
    return replace(
        _both(left, right, _preserved_traces(right, left, equal), _keys(right, left, equal)), same=right.same
    )


def _full(left: Flow, right: Flow, equal: Pairs) -> Flow:
    halves = {}
    for a, b in _cross_equalities(left, right, equal):
        if a in left.traces and b in right.traces:
            halves[frozenset({a, b})] = left.traces[a] | right.traces[b]
    return replace(_both(left, right, {}, ()), halves=halves)


def _semi(left: Flow, right: Flow, equal: Pairs) -> Flow:
    flow = _both(left, right, _preserved_traces(left, right, equal), left.keys)
    return replace(flow, output=left.output, same=left.same)


_JOINS: Mapping[str, Callable[[Flow, Flow, Pairs], Flow]] = {
    "Inner": _inner,
    "Cross": _inner,
    "LeftOuter": _left,
    "RightOuter": _right,
    "FullOuter": _full,
    "LeftSemi": _semi,
    "LeftAnti": _semi,
}


def _both(left: Flow, right: Flow, traces: Mapping[str, Trace], keys: tuple[frozenset[str], ...]) -> Flow:
    return Flow(
        (*left.output, *right.output),
        (*left.tables, *right.tables),
        traces,
        keys=tuple(dict.fromkeys(keys))[:MAX_KEYS],
        operations=left.operations | right.operations | {"join"},
    )


def _preserved_traces(kept: Flow, partner: Flow, equal: Pairs) -> dict[str, Trace]:
    """Traces of the preserved side. Where columns are equal, they include the tables of the other side."""
    traces = dict(kept.traces)
    for a, b in _cross_equalities(kept, partner, equal):
        if a in traces and b in partner.traces:
            traces[a] = union_of(traces[a], partner.traces[b]) or traces[a]
    return unite_traces(traces, kept.same)


def _keys(kept: Flow, partner: Flow, equal: Pairs) -> tuple[frozenset[str], ...]:
    """The keys of a join's result: a key of one side plus a key of the other side.

    All matches of a row have its values in the equal columns, so only the rest of their key is needed. A row without
    a match occurs once. This does not hold for a full join, where both sides may have rows without a match.
    """
    same = {b for _, b in _cross_equalities(kept, partner, equal)}
    return tuple(own | (other - same) for own in kept.keys for other in partner.keys)


def _cross_equalities(left: Flow, right: Flow, equal: Pairs) -> Pairs:
    """The equalities between the two sides, with the left side's column first."""
    of_left, of_right = {a.id for a in left.output}, {a.id for a in right.output}
    turned = [(a, b) if a in of_left else (b, a) for a, b in equal]
    return tuple((a, b) for a, b in turned if a in of_left and b in of_right)
