"""Reading a query's plan from its tables up, one rule for each operator that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from floodmark.transform.views.analysed.flow import (
    MOST_KEYS,
    Attribute,
    Flow,
    NotInParts,
    Table,
    Trace,
    classes,
    equalities,
    united,
)
from floodmark.transform.views.analysed.joins import join_type, joined
from floodmark.transform.views.analysed.plan_tree import Node


@dataclass(frozen=True)
class Tables:
    """What plans call the datasets: by alias in lower case the source's column of each column, and its key."""

    columns: Mapping[str, Mapping[str, str]]
    keys: Mapping[str, tuple[str, ...]]  # in the source's columns


def flow_of(plan: Node, tables: Tables) -> Flow:
    """What is known of the rows of a query; `NotInParts` where it has something that ends all knowledge."""
    return _Reading(tables, {}, count()).of(plan)


@dataclass(frozen=True)
class _Reading:
    tables: Tables
    shared: dict[object, Node]  # what WITH names, by Spark's number
    numbers: Iterator[int]

    def of(self, node: Node) -> Flow:
        rule = _RULES.get(node.name)
        if rule is None:
            raise NotInParts(_unknown(node.name))
        return rule(self, node)

    def view(self, node: Node) -> Flow:
        name = _table_name(node)
        if node["isTempView"] is not True or name not in self.tables.columns or len(node.children) != 1:
            raise NotInParts(f"it reads {name!r}, which is no dataset")
        leaf = node.only
        if leaf.children:
            raise NotInParts(_unknown(leaf.name))
        output = tuple(_attribute(item) for item in leaf.expressions("output"))
        known = self.tables.columns[name]
        number = next(self.numbers)
        traces = {a.id: frozenset({(number, known[a.name])}) for a in output if a.name in known}
        by_column = {known[a.name]: a.id for a in output if a.name in known}
        key = self.tables.keys.get(name, ())
        is_keyed = bool(key) and all(column in by_column for column in key)
        keys = (frozenset(by_column[column] for column in key),) if is_keyed else ()
        return Flow(output, (Table(number, name),), traces, keys=keys)

    def passed(self, node: Node) -> Flow:
        return self.of(node.only)

    def filtered(self, node: Node) -> Flow:
        below = self.of(node.only)
        if (condition := node.expression("condition")) is None:
            raise NotInParts(_unknown(node.name))
        same = classes([*below.same, *equalities(condition)])
        return replace(below, traces=united(below.traces, same), same=same)

    def projected(self, node: Node) -> Flow:
        below = self.of(node.only)
        items = node.expressions("projectList")
        output = tuple(_attribute(item) for item in items)
        traces: dict[str, Trace] = {}
        renamed: dict[str, list[str]] = {}
        for item, made in zip(items, output, strict=True):
            if (plain := _plain(item)) is not None:
                renamed.setdefault(plain, []).append(made.id)
                if plain in below.traces:
                    traces[made.id] = below.traces[plain]
            elif (halves := _coalesced(item)) in below.halves:
                traces[made.id] = below.halves[halves]
        there = {a.id for a in output}
        return replace(
            below,
            output=output,
            traces=traces,
            halves={pair: trace for pair, trace in below.halves.items() if pair <= there},
            keys=_renamed(below.keys, renamed),
            same=_still_same(below.same, renamed),
        )

    def distinct(self, node: Node) -> Flow:
        below = self.of(node.only)
        whole_row = frozenset(a.id for a in below.output)
        return replace(below, keys=(*below.keys, whole_row)[:MOST_KEYS], did=below.did | {"group"})

    def grouped(self, node: Node) -> Flow:
        below = self.of(node.only)
        by = node.expressions("groupingExpressions")
        if not by:
            raise NotInParts("it makes one row of all rows: it has aggregate functions and no GROUP BY")
        items = node.expressions("aggregateExpressions")
        output = tuple(_attribute(item) for item in items)
        plain = {_plain(expression) for expression in by}
        traces = {
            made.id: below.traces[source]
            for item, made in zip(items, output, strict=True)
            if (source := _plain(item)) is not None and source in plain and source in below.traces
        }
        said = [(_bare(item), made.id) for item, made in zip(items, output, strict=True)]
        shown = [next((i for bare, i in said if _same(bare, e)), None) for e in by]
        keys = () if None in shown else (frozenset(i for i in shown if i is not None),)
        grouped: dict[str, list[str]] = {}
        for item, made in zip(items, output, strict=True):
            if (source := _plain(item)) in plain and source is not None:
                grouped.setdefault(source, []).append(made.id)
        same = _still_same(below.same, grouped)
        return Flow(output, below.tables, traces, keys=keys, same=same, did=below.did | {"group"})

    def joined(self, node: Node) -> Flow:
        left, right = (self.of(child) for child in node.children)
        condition = node.expression("condition")
        equal = equalities(condition) if condition is not None else ()
        return joined(left, right, join_type(node), equal)

    def with_shared(self, node: Node) -> Flow:
        *definitions, plan = node.children
        for definition in definitions:
            if definition.name != "CTERelationDef":
                raise NotInParts(_unknown(definition.name))
            self.shared[definition["id"]] = definition.only
        return self.of(plan)

    def shared_again(self, node: Node) -> Flow:
        definition = self.shared.get(node["cteId"])
        if definition is None or node["recursive"] is not False:
            raise NotInParts("it uses WITH RECURSIVE")
        made = self.of(definition)
        output = tuple(_attribute(item) for item in node.expressions("output"))
        if len(output) != len(made.output):
            raise NotInParts(_unknown(node.name))
        renamed = {old.id: new.id for old, new in zip(made.output, output, strict=True)}
        if len(renamed) < len(output):
            raise NotInParts("it uses WITH and gives a column of it twice")
        return Flow(
            output,
            made.tables,
            {renamed[i]: trace for i, trace in made.traces.items() if i in renamed},
            keys=_renamed(made.keys, {old: [new] for old, new in renamed.items()}),
            same=_still_same(made.same, {old: [new] for old, new in renamed.items()}),
            did=made.did,
        )


_RULES: Mapping[str, Callable[[_Reading, Node], Flow]] = {
    "View": _Reading.view,
    "SubqueryAlias": _Reading.passed,
    "Sort": _Reading.passed,
    "ResolvedHint": _Reading.passed,
    "Repartition": _Reading.passed,
    "RepartitionByExpression": _Reading.passed,
    "RebalancePartitions": _Reading.passed,
    "Filter": _Reading.filtered,
    "Project": _Reading.projected,
    "Distinct": _Reading.distinct,
    "Aggregate": _Reading.grouped,
    "Join": _Reading.joined,
    "WithCTE": _Reading.with_shared,
    "CTERelationRef": _Reading.shared_again,
}


def _renamed(keys: Iterable[frozenset[str]], names: Mapping[str, Sequence[str]]) -> tuple[frozenset[str], ...]:
    """Keys by what their columns are called above, without those that have lost one."""
    return tuple(frozenset(names[i][0] for i in key) for key in keys if all(i in names for i in key))


def _still_same(same: Iterable[frozenset[str]], names: Mapping[str, Sequence[str]]) -> tuple[frozenset[str], ...]:
    """Columns that are equal by what they are called above; one that is there under two names equals itself."""
    above = classes([*names.values(), *[[name for i in columns for name in names.get(i, ())] for columns in same]])
    return tuple(columns for columns in above if len(columns) > 1)


def _bare(item: Node) -> Node:
    return item.only if item.name == "Alias" else item


def _plain(item: Node) -> str | None:
    """The id of the column that an item merely passes on, under its own name or another."""
    bare = _bare(item)
    return bare.id if bare.name == "AttributeReference" else None


def _same(one: Node, other: Node) -> bool:
    """Whether two expressions are the same; columns are by their ids, however they are spelled."""
    if one.name == other.name == "AttributeReference":
        return one.id == other.id
    if one.name != other.name or len(one.children) != len(other.children) or one.fields != other.fields:
        return False
    return all(map(_same, one.children, other.children))


def _coalesced(item: Node) -> frozenset[str]:
    bare = _bare(item)
    if bare.name != "Coalesce" or len(bare.children) != 2:
        return frozenset()
    if any(child.name != "AttributeReference" for child in bare.children):
        return frozenset()
    return frozenset(child.id for child in bare.children)


def _attribute(item: Node) -> Attribute:
    """What an item of a list is to the operators above."""
    if item.name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(item))
    if item.name != "Alias":
        raise NotInParts(_unknown(item.name))
    bare = item.only
    if bare.name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(bare))
    if bare.name == "Coalesce" and bare.children and bare.children[0].name == "AttributeReference":
        return Attribute(item.id, str(item["name"]), _type(bare.children[0]))
    return Attribute(item.id, str(item["name"]), "?")


def _type(attribute: Node) -> str:
    said = attribute["dataType"]
    return said if isinstance(said, str) else "nested"


def _table_name(node: Node) -> str:
    said = node["desc"]
    identifier = said.get("identifier") if isinstance(said, dict) else None
    return str(identifier.get("table")).lower() if isinstance(identifier, dict) else "?"


_WORDS = {
    "GlobalLimit": "it has LIMIT",
    "LocalLimit": "it has LIMIT",
    "Offset": "it has OFFSET",
    "Tail": "it has LIMIT",
    "Sample": "it has TABLESAMPLE",
    "Window": "it uses window functions (OVER)",
    "Generate": "it makes several rows of one (explode, LATERAL VIEW)",
    "Expand": "it groups by ROLLUP, CUBE, GROUPING SETS or sliding windows, or unpivots",
    "Union": "it has UNION",
    "Intersect": "it has INTERSECT",
    "Except": "it has EXCEPT",
    "LateralJoin": "it has a LATERAL subquery",
    "AsOfJoin": "it has a join that is not by equality",
    "OneRowRelation": "it uses rows that are written in the query",
    "LocalRelation": "it uses rows that are written in the query",
    "Range": "it uses rows that are written in the query",
    "UnionLoop": "it uses WITH RECURSIVE",
    "UnionLoopRef": "it uses WITH RECURSIVE",
}


def _unknown(name: str) -> str:
    return _WORDS.get(name, f"Spark plans it with {name}, of which it is not known how to refresh it in parts")
