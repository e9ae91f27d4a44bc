"""Which columns of its tables a query needs: the others are not read, and may be of no matter to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from floodmark.transform.views.analysed.flow import NotInParts
from floodmark.transform.views.analysed.plan_tree import Node, UnreadablePlan, operators


def used_columns(plan: Node) -> Mapping[str, set[str]] | None:
    """By alias in lower case the columns that the result depends on; None when the plan has operators not known here.

    Columns that are listed on the way and then left out again (as USING does) are not among them.
    """
    found: dict[str, set[str]] = {}
    try:
        _need(plan, {_id(item) for item in _output(plan, {})}, found, {})
    except (NotInParts, UnreadablePlan):
        return None
    return found


def named_columns(plan: Node) -> Mapping[str, set[str]] | None:
    """The same, with all columns that the plan speaks of: what a query lists by name has to be there, used or not."""
    found: dict[str, set[str]] = {}
    needed = used_columns(plan)
    if needed is None:
        return None
    owners: dict[str, tuple[str, str]] = {}
    for node in plan.all():
        if node.name == "View":
            alias = str(node["desc"]["identifier"]["table"]).lower()
            found[alias] = set(needed.get(alias, ()))
            owners |= {item.id: (alias, str(item["name"])) for item in node.only.expressions("output")}
    for node in operators(plan):
        if node.children:
            for part in node.own_expressions():
                if part.name == "AttributeReference" and part.id in owners:
                    alias, name = owners[part.id]
                    found[alias].add(name)
    return found


def _need(node: Node, wanted: set[str], found: dict[str, set[str]], shared: dict[object, Node]) -> None:
    """Note what `node` needs of its tables so as to yield the wanted columns."""
    match node.name:
        case "View":
            alias = str(node["desc"]["identifier"]["table"]).lower()
            own = {str(item["name"]) for item in node.only.expressions("output") if item.id in wanted}
            found.setdefault(alias, set()).update(own)
        case "SubqueryAlias" | "ResolvedHint" | "Repartition" | "RebalancePartitions":
            _need(node.only, wanted, found, shared)
        case "Filter":
            _need(node.only, wanted | _spoken([node.expression("condition")]), found, shared)
        case "Sort" | "RepartitionByExpression":
            _need(node.only, wanted | _spoken(node.own_expressions()), found, shared)
        case "Project":
            items = [item for item in node.expressions("projectList") if _id(item) in wanted]
            _need(node.only, _spoken(items), found, shared)
        case "Aggregate":
            items = [*node.expressions("groupingExpressions"), *node.expressions("aggregateExpressions")]
            _need(node.only, _spoken(items), found, shared)
        case "Distinct":
            _need(node.only, {_id(item) for item in _output(node.only, shared)}, found, shared)
        case "Join":
            condition = node.expression("condition")
            below = wanted | (_spoken([condition]) if condition is not None else set())
            for child in node.children:
                _need(child, below, found, shared)
        case "WithCTE":
            *definitions, rest = node.children
            for definition in definitions:
                shared[definition["id"]] = definition.only
                _need(definition.only, set(), found, shared)  # its tables have to be there in any case
            _need(rest, wanted, found, shared)
        case "CTERelationRef" if node["cteId"] in shared and node["recursive"] is False:
            definition = shared[node["cteId"]]
            pairs = zip(node.expressions("output"), _output(definition, shared), strict=True)
            _need(definition, {_id(inner) for outer, inner in pairs if outer.id in wanted}, found, shared)
        case _:
            raise NotInParts(node.name)


def _output(node: Node, shared: Mapping[object, Node]) -> tuple[Node, ...]:
    """The items that an operator yields."""
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


def _id(item: Node) -> str:
    return item.id


def _spoken(expressions: Iterable[Node | None]) -> set[str]:
    """The ids of the columns that expressions speak of; a subquery may speak of any."""
    found = set()
    for expression in expressions:
        if expression is None:
            raise NotInParts("no expression")
        for part in expression.all():
            if isinstance(part["plan"], Node):
                raise NotInParts("a subquery")
            if part.name == "AttributeReference":
                found.add(part.id)
    return found
