"""Plans of operators that keep a state: its content from rows or from changes, and the operator's rows from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from floodmark.views.catalyst import WEIGHT, Catalyst, aggregate_functions, class_of, items
from floodmark.views.operator_columns import limit_of, plain_column
from floodmark.views.operator_state import COLUMN, COUNT, FILLED, KEY, ORDER, SUM
from floodmark.views.query_plan import PlanNode

_VALUE = "floodmark_v"

MARGIN = 100
"""The least number of rows that are kept beyond those that a limit shows."""


def state_name(number: int, node: PlanNode) -> str:
    """The name of an operator's state: it changes with the operator and with all below it."""
    known: dict[str, int] = {}

    def renumber(match: re.Match[str]) -> str:
        return f"#{known.setdefault(match[0], len(known))}"

    text = re.sub(r"'id': \d+, 'jvmId': '[^']*'", renumber, repr(node))
    return f"{number}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class GroupPlan:
    """The plans of an aggregate whose totals are kept. `by` are the ids of its grouping columns."""

    catalyst: Catalyst
    by: tuple[int, ...]
    _by: tuple[Any, ...]
    _functions: tuple[Any, ...]  # in the order of their totals
    _output: tuple[Any, ...]

    @classmethod
    def of(cls, catalyst: Catalyst, node: PlanNode, plan: Any) -> GroupPlan:
        by = tuple(one for item in node.expressions("groupingExpressions") if (one := plain_column(item)) is not None)
        expressions, output = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
        return cls(catalyst, by, tuple(expressions), tuple(aggregate_functions(plan)), tuple(output))

    def totals(self, rows: Any) -> Any:
        """The totals of all groups of some rows."""
        columns = [f"count(1) {COUNT}"]
        for n, function in enumerate(self._functions):
            columns += [f"count(`{_VALUE}{n}`) {FILLED}{n}", *self._sum(n, function, f"`{_VALUE}{n}`")]
        return self._grouped(columns, self.catalyst.project(self._values(), rows))

    def changes(self, rows: Any) -> Any:
        """What changes add to the totals of their groups."""
        columns = [f"sum(`{WEIGHT}`) {COUNT}"]
        for n, function in enumerate(self._functions):
            value = f"`{_VALUE}{n}`"
            signed = f"if(`{WEIGHT}` > 0, {value}, -{value})"
            columns.append(f"sum(if({value} is null, 0, `{WEIGHT}`)) {FILLED}{n}")
            columns += self._sum(n, function, signed)
        return self._grouped(columns, self.catalyst.project([*self._values(), self.catalyst.weight], rows))

    def _grouped(self, columns: Sequence[str], rows: Any) -> Any:
        keys = [f"`{KEY}{n}`" for n in range(len(self._by))]
        by = f" group by {', '.join(keys)}" if keys else ""
        return self.catalyst.select(f"select {', '.join([*keys, *columns])} from input{by}", rows)

    def _sum(self, number: int, function: Any, value: str) -> list[str]:
        return [] if class_of(function.aggregateFunction()) == "Count" else [f"sum({value}) {SUM}{number}"]

    def _values(self) -> list[Any]:
        """The grouping columns, and the value of each function, integers with 64 bits."""
        catalyst = self.catalyst
        named = [catalyst.alias(one, f"{KEY}{n}", catalyst.new_id()) for n, one in enumerate(self._by)]
        for n, function in enumerate(self._functions):
            value = items(function.aggregateFunction().children())[0]
            if (
                "decimal" not in str(value.dataType().sql()).lower()
                and class_of(function.aggregateFunction()) != "Count"
            ):
                value = catalyst.cast(value, "bigint")
            named.append(catalyst.alias(value, f"{_VALUE}{n}", catalyst.new_id()))
        return named

    def rows(self, totals: Any) -> Any:
        """The operator's rows from totals of groups.

        Columns of the totals are named, not identified, so Spark has nothing to rename where a plan has this twice.
        """
        catalyst = self.catalyst
        columns = {str(one.exprId()): f"`{KEY}{n}`" for n, one in enumerate(self._by)}
        results = {str(one.resultId()): self._result(n, one) for n, one in enumerate(self._functions)}

        def swap(expression: Any) -> Any | None:
            match class_of(expression):
                case "AggregateExpression":
                    return results[str(expression.resultId())]
                case "AttributeReference":
                    return catalyst.expression(columns[str(expression.exprId())])
            return None

        shown = []
        for item in self._output:
            value = catalyst.replaced(item, swap)
            is_column = class_of(item) == "AttributeReference"
            shown.append(catalyst.alias(value, item.name(), item.exprId()) if is_column else value)
        return catalyst.project(shown, totals)

    def _result(self, number: int, function: Any) -> Any:
        """The result of a function from its totals."""
        catalyst, bare = self.catalyst, function.aggregateFunction()
        filled, total = f"`{FILLED}{number}`", f"`{SUM}{number}`"
        if class_of(bare) == "Count":
            return catalyst.expression(filled)
        if class_of(bare) == "Sum":
            # With this text Spark resolves the columns in one pass, as it does those of tables.
            return catalyst.expression(f"cast(case when {filled} > 0L then {total} end as {bare.dataType().sql()})")
        sum_of, count_of = items(bare.aggBufferAttributes())
        known = {
            str(sum_of.exprId()): catalyst.expression(f"cast({total} as {sum_of.dataType().sql()})"),
            str(count_of.exprId()): catalyst.expression(filled),
        }

        def swap(expression: Any) -> Any | None:
            return known[str(expression.exprId())] if class_of(expression) == "AttributeReference" else None

        return catalyst.replaced(bare.evaluateExpression(), swap)  # as Average computes it from a sum and a count


@dataclass(frozen=True)
class OrderPlan:
    """The plans of the first rows of an order: `skipped` rows are left out, and then `shown` rows are the result."""

    catalyst: Catalyst
    skipped: int
    shown: int
    columns: tuple[Any, ...]  # of the sorted rows
    _sort: Any
    _projections: tuple[Any, ...]  # above the sorted rows, the lowest first

    @classmethod
    def of(cls, catalyst: Catalyst, node: PlanNode, plan: Any, columns: Sequence[Any]) -> OrderPlan:
        known = limit_of(node)
        assert known is not None
        below = plan
        projections: list[Any] = []
        while class_of(below) != "Sort":
            if class_of(below) == "Project":
                projections.insert(0, below.projectList())
            below = below.children().apply(0)
        return cls(catalyst, known.skipped, known.shown, tuple(columns), below, tuple(projections))

    @property
    def needed(self) -> int:
        """The number of rows without which the result is not known."""
        return self.skipped + self.shown

    @property
    def kept(self) -> int:
        """The number of rows to keep."""
        return self.needed + max(self.needed, MARGIN)

    def first(self, rows: Any) -> Any:
        """The first rows, one more than are kept."""
        return self.catalyst.limit(self.kept + 1, self._sorted(self._named(), rows))

    def changed(self, rows: Any) -> Any:
        """Changes with the names that the state has for columns."""
        return self.catalyst.project([*self._named(), self.catalyst.weight], rows)

    def ordered(self, candidates: Any) -> Any:
        """The numbers of the candidates in order."""
        number = self.catalyst.expression(f"`{ORDER}`")
        named = self.catalyst.alias(number, ORDER, self.catalyst.new_id())
        below = self.catalyst.project([*self._columns(), named], candidates)
        return self._sorted([named.toAttribute()], below)

    def _sorted(self, columns: Iterable[Any], rows: Any) -> Any:
        """All columns decide between rows that ORDER BY leaves open, so there is one order."""
        catalyst = self.catalyst
        order = [*items(self._sort.order()), *(catalyst.ascending(column) for column in self.columns)]
        return catalyst.project(columns, catalyst.sort(order, rows, self._sort.hint()))

    def _named(self) -> list[Any]:
        catalyst = self.catalyst
        return [catalyst.alias(one, f"{COLUMN}{n}", catalyst.new_id()) for n, one in enumerate(self.columns)]

    def _columns(self) -> list[Any]:
        catalyst = self.catalyst
        return [
            catalyst.alias(catalyst.expression(f"`{COLUMN}{n}`"), one.name(), one.exprId())
            for n, one in enumerate(self.columns)
        ]

    def rows(self, first: Any) -> Any:
        """The operator's rows from the rows that it shows."""
        plan = self.catalyst.project(self._columns(), first)
        for projection in self._projections:
            plan = self.catalyst.project(items(projection), plan)
        return plan


StatePlan = GroupPlan | OrderPlan
