"""How each operator of a query is maintained: a table of rules over Spark's optimized plan.

`find_rules` is a pure function from a plan to a tree: for each operator the rule by which changes are carried through
it, or the reason why they cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from floodmark.views.operator_columns import (
    UNORDERED,
    Equality,
    Ids,
    aggregate_calls,
    column_id,
    column_ids,
    expression_id,
    has_collation,
    has_row_frame,
    is_nested,
    join_equalities,
    join_kind,
    limit_of,
    output_of,
    own_parts,
    plain_column,
    references,
    table_columns,
    table_of,
    totals_of,
)
from floodmark.views.query_plan import MAX_KEYS, PlanNode, function_name


@dataclass(frozen=True)
class OperatorRule:
    """An operator of a query, how changes are carried through it, and the operators that it reads.

    `why` is the reason why changes cannot be carried through the operator; None if they can.
    """

    operator: str
    detail: str
    rule: str
    why: str | None = None
    children: tuple[OperatorRule, ...] = ()

    @property
    def reason(self) -> str | None:
        """Why the query cannot be maintained in parts: the operator and its reason; None if it can."""
        for child in self.children:
            if (reason := child.reason) is not None:
                return reason
        return self.why

    @property
    def whole_text(self) -> str | None:
        """Why the query cannot be maintained in parts, with the operator; None if it can."""
        for child in self.children:
            if (text := child.whole_text) is not None:
                return text
        return None if self.why is None else f"{self.why} ({self.title})"

    @property
    def title(self) -> str:
        """The operator and what it works on."""
        return f"{self.operator} {self.detail}" if self.detail else self.operator

    def to_json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "detail": self.detail,
            "rule": self.rule,
            "why": self.why,
            "children": [child.to_json() for child in self.children],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OperatorRule:
        """Read what `to_json` wrote."""
        children = tuple(map(cls.from_json, document["children"]))
        why = document["why"]
        return cls(document["operator"], document["detail"], document["rule"], why, children)


@dataclass(frozen=True)
class Facts:
    """What is known of the rows of an operator: its columns, sets of columns that identify a row, and inexact columns.

    The last digits of inexact columns depend on the order in which rows were added up.
    """

    output: tuple[int, ...]
    keys: tuple[Ids, ...] = ()
    inexact: Ids = frozenset()


@dataclass(frozen=True)
class Maintained:
    """An operator with its rule, and the facts about its rows."""

    rule: OperatorRule
    facts: Facts


TableKeys = Mapping[str, tuple[str, ...]]
"""By table, the columns of its key; empty without a key."""


def find_rules(plan: PlanNode, keys: TableKeys) -> Maintained:
    """The rules by which the operators of an optimized plan are maintained."""
    rule = _RULES.get(plan.name)
    limit = limit_of(plan)
    below = [find_rules(child, keys) for child in (plan.children if limit is None else [limit.sorted.only])]
    if rule is None:
        reason = "no rule knows this operator" if plan.children else "it is not a dataset"
        return _whole(plan, below, reason)
    found = rule(plan, [one.facts for one in below], keys)
    subqueries = [part for part in own_parts(plan) if isinstance(part["plan"], PlanNode)]
    if subqueries and found.rule.why is None:
        return _whole(plan, below, "it has a subquery whose value may change")
    return replace(found, rule=replace(found.rule, children=tuple(one.rule for one in below)))


def _whole(plan: PlanNode, below: Iterable[Maintained], why: str) -> Maintained:
    below = list(below)
    known = below[0].facts.output if below else ()
    children = tuple(one.rule for one in below)
    return Maintained(OperatorRule(operator_name(plan), "", "", why, children), Facts(known))


def operator_name(plan: PlanNode) -> str:
    """The name of an operator in texts."""
    return {"LocalRelation": "Rows", "LogicalRDD": "Rows", "OneRowRelation": "Rows"}.get(plan.name, plan.name)


# The rules

_COMPARES_FLOATS = "it compares sums of floating-point numbers, whose last digits depend on the order of the rows"
_NESTED = "it groups by a structure or a map, whose values cannot be looked up"
_COLLATED = "it groups or orders texts with a collation"
_UNORDERED = "it has columns of a type without an order, so equal rows of its order may come in any order"
_BY_ROW = "row by row"


def _rule(plan: PlanNode, rule: str, facts: Facts, detail: str = "", why: str | None = None) -> Maintained:
    return Maintained(OperatorRule(operator_name(plan), detail, rule, why), facts)


def _leaf(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    table = table_of(plan)
    if table is None:
        return _rule(plan, "constant", Facts(output_of(plan)))
    by_name = {str(column["name"]): one for one, column in table_columns(plan).items()}
    key = keys.get(table, ())
    is_keyed = bool(key) and all(name in by_name for name in key)
    known = (frozenset(by_name[name] for name in key),) if is_keyed else ()
    facts = Facts(output_of(plan), known)
    return Maintained(OperatorRule("Table", table, "its changes since the last refresh"), facts)


def _project(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    items = plan.expressions("projectList")
    renamed = {column: expression_id(item) for item in items if (column := plain_column(item)) is not None}
    return _rule(plan, _BY_ROW, _mapped(below[0], items, renamed))


def _mapped(below: Facts, items: tuple[PlanNode, ...], renamed: Mapping[int, int]) -> Facts:
    keys = tuple(frozenset(renamed[i] for i in key) for key in below.keys if all(i in renamed for i in key))
    inexact = frozenset(expression_id(item) for item in items if references(item) & below.inexact)
    return Facts(column_ids(items), keys, inexact)


def _filter(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    condition = plan.expression("condition")
    why = _COMPARES_FLOATS if condition is None or references(condition) & below[0].inexact else None
    return _rule(plan, _BY_ROW, below[0], why=why)


def _passed(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    return _rule(plan, "nothing to do: views have no order", below[0])


def _generate(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    generator = plan.expression("generator")
    why = _COMPARES_FLOATS if generator is None or references(generator) & below[0].inexact else None
    return _rule(plan, _BY_ROW, Facts(output_of(plan), (), below[0].inexact), why=why)


def _expand(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    why = _COMPARES_FLOATS if below[0].inexact else None
    return _rule(plan, _BY_ROW, Facts(output_of(plan)), why=why)


def _union(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    output = below[0].output
    inexact = {
        column for facts in below for column, own in zip(output, facts.output, strict=True) if own in facts.inexact
    }
    return _rule(plan, "the changes of each part", Facts(output, (), frozenset(inexact)))


def _join(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    left, right = below
    how = join_kind(plan)
    output = output_of(plan)
    condition = plan.expression("condition")
    inexact = left.inexact | right.inexact
    equalities = join_equalities(plan)
    facts = Facts(output, _join_keys(how, left, right, equalities), inexact & frozenset(output))
    why = _COMPARES_FLOATS if condition is not None and references(condition) & inexact else None
    if how in ("Inner", "Cross"):
        text = "changes of one side joined with the other side"
        return _rule(plan, text, facts, how.lower(), why)
    if how == "FullOuter":
        if not equalities:
            why = why or "it is a full join without an equality (=) between its sides"
        return _rule(plan, "the join keys that changed: after minus before", facts, "full outer", why)
    if how in _KEPT_SIDE:
        side, other = ("right", "left") if how == "RightOuter" else ("left", "right")
        if not equalities:
            text = f"changes of the {side} side row by row; if the {other} side changes, everything"
        else:
            text = f"changes of the {side} side row by row; of the {other} side by join key, after minus before"
        return _rule(plan, text, facts, _KEPT_SIDE[how], why)
    return _rule(plan, "", facts, how, "no rule knows this type of join")


_KEPT_SIDE = {
    "LeftOuter": "left outer",
    "RightOuter": "right outer",
    "LeftSemi": "left semi",
    "LeftAnti": "left anti",
    "LeftSingle": "single value",
    "ExistenceJoin": "existence",
}


def _join_keys(how: str, left: Facts, right: Facts, equalities: Iterable[Equality]) -> tuple[Ids, ...]:
    """The keys of a join: a key of one side, with what equalities leave open of a key of the other side.

    All matches of a row have its values in the compared columns. A row without a match occurs once.
    """
    pairs = list(equalities)
    of_right = frozenset(one.right for one in pairs if one.left is not None and one.right is not None)
    of_left = frozenset(one.left for one in pairs if one.left is not None and one.right is not None)
    by_left = tuple(a | (b - of_right) for a in left.keys for b in right.keys)
    by_right = tuple(b | (a - of_left) for a in left.keys for b in right.keys)
    match how:
        case "Inner" | "Cross":
            return tuple(dict.fromkeys([*by_left, *by_right]))[:MAX_KEYS]
        case "LeftOuter":
            return by_left[:MAX_KEYS]
        case "RightOuter":
            return by_right[:MAX_KEYS]
        case "LeftSemi" | "LeftAnti" | "LeftSingle" | "ExistenceJoin":
            return left.keys
        case _:
            return ()


EXACT_AGGREGATES = {
    "Count", "CountIf", "Sum", "Average", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg",
    "HyperLogLogPlusPlus", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis",
    "CovSample", "CovPopulation", "Corr", "PearsonCorrelation", "Percentile", "RegrCount",
}  # fmt: skip
"""The aggregate functions whose results do not depend on the order of rows, but for last digits of floats."""

_ROUNDED_AGGREGATES = EXACT_AGGREGATES - {
    "Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr", "BitAndAgg", "BitOrAgg", "BitXorAgg", "HyperLogLogPlusPlus",
    "Percentile",
}  # fmt: skip


def _aggregate(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    by = plan.expressions("groupingExpressions")
    items = plan.expressions("aggregateExpressions")
    facts = Facts(column_ids(items), _group_keys(by, items), _inexact_aggregates(items, below[0]))
    why = _group_reason(by, items, below[0])
    if totals_of(plan) is not None:
        rule = "changes are added to the totals that are kept"
    else:
        rule = "the groups that changed: after minus before" if by else "one group: after minus before"
    return _rule(plan, rule, facts, f"by {_names(by)}" if by else "of all rows", why)


def _group_reason(by: tuple[PlanNode, ...], items: tuple[PlanNode, ...], below: Facts) -> str | None:
    if any(column_id(expression) is None and references(expression) for expression in by):
        return "it groups by an expression that Spark has not split off"
    if any(references(expression) & below.inexact for expression in by):
        return _COMPARES_FLOATS
    for item in items:
        for call in aggregate_calls(item):
            function = call.children[0]
            if function.name not in EXACT_AGGREGATES and not _is_only_value(call):
                return f"the result of {function_name(function.name)} may depend on the order of the rows"
    if any(map(has_collation, (*by, *items))):
        return _COLLATED
    if any(map(is_nested, by)):
        return _NESTED
    return None


def _is_only_value(call: PlanNode) -> bool:
    """Whether it is the `first` by which Spark passes on the one value of a group, for several distinct counts."""
    function, *condition = call.children
    names = {str(part["name"]) for one in condition for part in one.all() if part.name == "AttributeReference"}
    return function.name == "First" and names == {"gid"}


def _group_keys(by: tuple[PlanNode, ...], items: tuple[PlanNode, ...]) -> tuple[Ids, ...]:
    shown: dict[int, int] = {}
    for item in items:
        if (column := plain_column(item)) is not None:
            shown.setdefault(column, expression_id(item))
    columns = [column for expression in by if (column := column_id(expression)) is not None]
    return (frozenset(shown[c] for c in columns),) if all(c in shown for c in columns) else ()


def _inexact_aggregates(items: tuple[PlanNode, ...], below: Facts) -> Ids:
    found = set()
    for item in items:
        functions = [call.children[0] for call in aggregate_calls(item)]
        rounded = [f for f in functions if f.name in _ROUNDED_AGGREGATES and _has_floats(f)]
        if rounded or references(item) & below.inexact:
            found.add(expression_id(item))
    return frozenset(found)


def _has_floats(expression: PlanNode) -> bool:
    return any(part["dataType"] in ("double", "float") for part in expression.all())


def _window(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    by, functions = plan.expressions("partitionSpec"), plan.expressions("windowExpressions")
    inexact = frozenset(expression_id(item) for item in functions if _is_inexact_window(item))
    facts = Facts(output_of(plan), below[0].keys, below[0].inexact | inexact)
    if not by:
        return _rule(plan, "", facts, "", "it has a window without PARTITION BY: one row may change every row")
    why = next((reason for item in functions if (reason := _window_reason(item))), None)
    if plan[UNORDERED] and any(map(has_row_frame, functions)):
        why = _UNORDERED
    if any(map(has_collation, (*by, *functions))):
        why = _COLLATED
    if any(map(is_nested, by)):
        why = _NESTED
    if any(references(part) & below[0].inexact for part in own_parts(plan)):
        why = _COMPARES_FLOATS
    return _rule(plan, "the partitions that changed: after minus before", facts, f"by {_names(by)}", why)


ORDERED_FUNCTIONS = {"RowNumber", "NTile", "Lag", "Lead", "NthValue", "First", "Last"}
"""Window functions whose results depend on the order of rows that ORDER BY leaves open."""

_RANKS = {"Rank", "DenseRank", "PercentRank", "CumeDist"}


def _window_reason(item: PlanNode) -> str | None:
    for part in item.all():
        if part.name == "WindowExpression":
            function = part.children[0]
            bare = function.children[0] if function.name == "AggregateExpression" else function
            known = EXACT_AGGREGATES | ORDERED_FUNCTIONS | _RANKS
            if bare.name not in known:
                return f"the result of {function_name(bare.name)} may depend on the order of the rows"
            if bare.name in ORDERED_FUNCTIONS and not has_row_frame(part):
                return f"the result of {function_name(bare.name)} over a range depends on the order of equal rows"
    return None


def _is_inexact_window(item: PlanNode) -> bool:
    """Whether a window function adds up floats in an order that is left open. Functions over rows have one order."""
    adds_floats = any(part.name in _ROUNDED_AGGREGATES and _has_floats(part) for part in item.all())
    return adds_floats and not has_row_frame(item)


def _names(items: Iterable[PlanNode]) -> str:
    return ", ".join(str(item["name"]) if item.name == "AttributeReference" else "…" for item in items)


MAX_LIMIT = 10_000
"""The most rows of a LIMIT with its OFFSET whose first rows are kept."""


def _limit(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    found, facts = limit_of(plan), below[0]
    if found is None:
        return _rule(plan, "", facts, "", "it has LIMIT or OFFSET without an order, so any rows may be the result")
    if found.skipped + found.shown > MAX_LIMIT:
        return _rule(plan, "", facts, "", f"it has LIMIT or OFFSET with more than {MAX_LIMIT:,} rows")
    why = _COMPARES_FLOATS if facts.inexact else None
    if found.sorted[UNORDERED]:
        why = _UNORDERED
    if any(map(has_collation, found.sorted.expressions("order"))):
        why = _COLLATED
    for projection in found.projections:
        facts = _project(projection, [facts], {}).facts
    text = f"the first {found.skipped + found.shown:,} rows and some more are kept; changes are put in their place"
    return Maintained(OperatorRule("Limit", f"to {found.shown:,} rows", text, why), facts)


def _only_sorted(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    return _rule(plan, "", below[0], "", "it has LIMIT or OFFSET without an order, so any rows may be the result")


def _sample(plan: PlanNode, below: list[Facts], keys: TableKeys) -> Maintained:  # noqa: ARG001
    return _rule(plan, "", below[0], "", "it has TABLESAMPLE")


_RULES: Mapping[str, Callable[[PlanNode, list[Facts], TableKeys], Maintained]] = {
    "LocalRelation": _leaf,
    "LogicalRDD": _leaf,
    "OneRowRelation": _leaf,
    "Range": _leaf,
    "Project": _project,
    "Filter": _filter,
    "Sort": _passed,
    "Repartition": _passed,
    "RepartitionByExpression": _passed,
    "RebalancePartitions": _passed,
    "ResolvedHint": _passed,
    "Generate": _generate,
    "Expand": _expand,
    "Union": _union,
    "Join": _join,
    "Aggregate": _aggregate,
    "Window": _window,
    "GlobalLimit": _limit,
    "LocalLimit": _only_sorted,
    "Offset": _only_sorted,
    "Tail": _only_sorted,
    "Sample": _sample,
}

PASSED_OPERATORS = frozenset(name for name, rule in _RULES.items() if rule is _passed)


def key_of(facts: Facts, allowed: Ids) -> Ids | None:
    """The smallest set of these columns that identifies a row; None if there is none."""
    found = [key for key in facts.keys if key and key <= allowed and not key & facts.inexact]
    return min(found, key=len, default=None)
