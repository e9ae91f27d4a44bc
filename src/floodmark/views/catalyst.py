"""Catalyst's logical plans through py4j: take a query's optimized plan apart, and build plans of its nodes.

Expressions are reused as objects, so nothing is renamed and no SQL text is written. Tables of a built plan are named,
and resolved when it runs: a plan is built once, and reads whatever tables have these names then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from floodmark.ledger.spark_query import convert_query_errors, parse_select
from floodmark.ledger.types import spark_schema
from floodmark.views.classification import check_resolved
from floodmark.views.operator_columns import DROPPED, KEPT, TABLE, TYPES, UNORDERED
from floodmark.views.query_plan import PlanNode, parse_plan
from floodmark.views.spark_sql import register_table, resolved_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_EXCLUDED_RULES = (
    "PropagateEmptyRelation",
    "ConvertToLocalRelation",
    "InferWindowGroupLimit",
    "LimitPushDownThroughWindow",
    "OptimizeLimitZero",
    "EliminateLimits",
    "OptimizeOneRowPlan",
    "EliminateSorts",
    "MergeScalarSubqueries",
)
"""Rules that depend on the data, or that fuse operators. Without them a query has the same plan for any data."""

_SEPARATOR = "\x1e"
_RULES_SETTING = "spark.sql.optimizer.excludedRules"


@dataclass(frozen=True)
class OptimizedQuery:
    """A query as Spark's optimizer leaves it: the plan in the JVM, and the same as a tree."""

    plan: Any
    tree: PlanNode


def optimize(spark: SparkSession, query: str, tables: Mapping[str, pa.Schema]) -> OptimizedQuery:
    """Optimize a query over empty tables with these columns, without rules that depend on data."""
    for alias, schema in tables.items():
        register_table(alias, _unknown_rows(spark, _marked(schema, alias)))
    before = spark.conf.get(_RULES_SETTING, None)
    excluded = [f"{_OPTIMIZER}.{rule}" for rule in _EXCLUDED_RULES]
    spark.conf.set(_RULES_SETTING, ",".join([*([before] if before else []), *excluded]))
    try:
        parse_select(spark, query, tables)  # the query comes from the lake, so it is checked each time
        with convert_query_errors():
            frame = spark.sql(query)
            check_resolved(resolved_query(frame).plan, tables)
            plan = frame._jdf.queryExecution().optimizedPlan()
        plan = _join_values(Catalyst(spark), plan)
    finally:
        if before is None:
            spark.conf.unset(_RULES_SETTING)
        else:
            spark.conf.set(_RULES_SETTING, before)
    return OptimizedQuery(plan, _completed(Catalyst(spark), parse_plan(str(plan.toJSON())), plan))


def _completed(catalyst: Catalyst, tree: PlanNode, plan: Any) -> PlanNode:
    """The tree with what Spark's JSON lacks: names of tables, and what rules need to know about columns."""
    if tree.children:
        below = plan.children()
        children = tuple(_completed(catalyst, child, below.apply(i)) for i, child in enumerate(tree.children))
        more: dict[str, Any] = {}
        if tree.name == "Generate":
            more[DROPPED] = tuple(map(int, str(plan.unrequiredChildIndex().mkString(" ")).split()))
        if tree.name == "Expand":
            output = _texts(plan.output())
            lists = [_texts(projection) for projection in items(plan.projections())]
            more[KEPT] = tuple(at for at, name in enumerate(output) if all(one[at] == name for one in lists))
        if tree.name == "Aggregate":
            more[TYPES] = tuple(map(_value_type, aggregate_functions(plan)))
        if tree.name in ("Window", "Sort"):
            more[UNORDERED] = not catalyst.is_orderable(below.apply(0).output())
        return replace(tree, children=children, fields={**tree.fields, **more})
    output = plan.output()
    if output.isEmpty() or not output.apply(0).metadata().contains(TABLE):
        return tree
    return replace(tree, fields={**tree.fields, TABLE: str(output.apply(0).metadata().getString(TABLE))})


def aggregate_functions(plan: Any) -> list[Any]:
    """The calls of aggregate functions of an Aggregate, each once."""
    calls: dict[str, Any] = {}

    def collect(expression: Any) -> None:
        if class_of(expression) == "AggregateExpression":
            calls.setdefault(str(expression.resultId()), expression)
            return
        for child in items(expression.children()):
            collect(child)

    for item in items(plan.aggregateExpressions()):
        collect(item)
    return list(calls.values())


def _value_type(call: Any) -> str:
    """The type of the value that an aggregate function gets; empty if it gets none or several."""
    values = items(call.aggregateFunction().children())
    return str(values[0].dataType().sql()) if len(values) == 1 else ""


def _texts(expressions: Any) -> list[str]:
    return str(expressions.mkString(_SEPARATOR)).split(_SEPARATOR)


def _join_values(catalyst: Catalyst, plan: Any) -> Any:
    """The plan with each subquery that is one aggregated value as a cross join with the one row of that value."""
    children = items(plan.children())
    below = [_join_values(catalyst, child) for child in children]
    if any(one is not other for one, other in zip(children, below, strict=True)):
        plan = plan.withNewChildren(catalyst.seq(below))
    if class_of(plan) not in ("Filter", "Project") or "scalar-subquery" not in str(plan.expressions().mkString(" ")):
        return plan
    [rows] = below
    values: list[Any] = []

    def swap(expression: Any) -> Any | None:
        if class_of(expression) != "ScalarSubquery" or not _is_one_row(expression.plan()):
            return None
        value = catalyst.alias(items(expression.plan().output())[0], "floodmark_value", catalyst.new_id())
        values.append(catalyst.project([value], _join_values(catalyst, expression.plan())))
        return value.toAttribute()

    if class_of(plan) == "Filter":
        condition = catalyst.replaced(plan.condition(), swap)
        joined = catalyst.filter(condition, catalyst.cross_join(rows, values))
        return catalyst.project(items(rows.output()), joined) if values else plan
    columns = [catalyst.replaced(column, swap) for column in items(plan.projectList())]
    return catalyst.project(columns, catalyst.cross_join(rows, values)) if values else plan


def _is_one_row(plan: Any) -> bool:
    """Whether a plan has exactly one row for any data: an aggregate without GROUP BY."""
    while class_of(plan) == "Project":
        plan = plan.children().apply(0)
    return class_of(plan) == "Aggregate" and bool(plan.groupingExpressions().isEmpty())


def _unknown_rows(spark: SparkSession, schema: Any) -> DataFrame:
    """A table of which the optimizer does not know that it has no rows."""
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession
    context: Any = spark.sparkContext
    return DataFrame(session.createDataFrame(context._jsc.emptyRDD(), session.parseDataType(schema.json())), spark)


def _marked(schema: pa.Schema, alias: str) -> Any:
    """The columns of a table in Spark; each names the table."""
    marked = spark_schema(schema)
    for field in marked.fields:
        field.metadata = {TABLE: alias}
    return marked


class Catalyst:
    """Builds plans of one session."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._parser: Any = spark._jsparkSession.sessionState().sqlParser()
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._plans = catalyst.plans.logical
        self._expressions = catalyst.expressions
        self._new_project = self._plans.Project
        self._new_alias = self._expressions.Alias
        self._join_type = catalyst.plans.JoinType
        self._no_hint = self._plans.JoinHint.NONE()
        self._option = jvm.scala.Option
        self._to_seq = jvm.PythonUtils.toSeq
        self._nothing = self._option.empty()
        self._empty = self.seq([])
        self._ascending = _singleton(self._expressions, "Ascending")
        self._nulls_first = _singleton(self._expressions, "NullsFirst")

    def seq(self, items: Iterable[Any]) -> Any:
        """A Scala sequence."""
        return self._to_seq(list(items))

    def expression(self, text: str) -> Any:
        """A constant, or a column of a table by name."""
        return self._parser.parseExpression(text)

    def new_id(self) -> Any:
        """A new id for a column."""
        return self._expressions.NamedExpression.newExprId()

    def alias(self, expression: Any, name: str, expression_id: Any) -> Any:
        """An expression as a column with this name and id."""
        return self._new_alias(expression, name, expression_id, self._empty, self._nothing, self._empty)

    def replaced(self, expression: Any, swap: Callable[[Any], Any | None]) -> Any:
        """An expression with some of its parts replaced: those for which `swap` returns another expression."""
        other = swap(expression)
        if other is not None:
            return other
        parts = items(expression.children())
        swapped = [self.replaced(part, swap) for part in parts]
        if all(one is two for one, two in zip(parts, swapped, strict=True)):
            return expression
        return expression.withNewChildren(self.seq(swapped))

    def relation(self, name: str) -> Any:
        """A table by name."""
        return self._parser.parsePlan(f"select * from `{name}`").child()

    def project(self, columns: Iterable[Any], plan: Any) -> Any:
        return self._new_project(self.seq(columns), plan)

    def expand(self, projections: Iterable[Any], output: Any, plan: Any) -> Any:
        return self._plans.Expand(self.seq(projections), output, plan)

    def window(self, functions: Iterable[Any], partition: Any, order: Any, plan: Any, hint: Any) -> Any:
        return self._plans.Window(self.seq(functions), partition, order, plan, hint)

    def ascending(self, column: Any) -> Any:
        """A column to order by."""
        return self._expressions.SortOrder(column, self._ascending, self._nulls_first, self._empty)

    def is_orderable(self, columns: Any) -> bool:
        """Whether rows can be ordered by all these columns."""
        return bool(self._expressions.RowOrdering.isOrderable(columns))

    def semi_join(self, left: Any, right: Any, conditions: Sequence[Any]) -> Any:
        """The rows of the left side that have a partner for which all conditions hold."""
        condition = conditions[0]
        for other in conditions[1:]:
            condition = self._expressions.And(condition, other)
        semi = self._join_type.apply("leftsemi")
        return self._plans.Join(left, right, semi, self._option.apply(condition), self._no_hint)

    def inner_join(self, left: Any, right: Any, condition: Any) -> Any:
        """Each row of the left side with each partner; `condition` is that of another join, or none."""
        return self._plans.Join(left, right, self._join_type.apply("inner"), condition, self._no_hint)

    def aggregate(self, by: Iterable[Any], columns: Iterable[Any], plan: Any) -> Any:
        return self._plans.Aggregate(self.seq(by), self.seq(columns), plan, self._nothing)

    def collect_over(self, column: Any, window: Any) -> Any:
        """The values of a column in a window's frame."""
        collected = self._expressions.aggregate.CollectList(column).toAggregateExpression()
        return self._expressions.WindowExpression(collected, window)

    def same(self, one: Any, other: Any) -> Any:
        """Whether two expressions are equal; null equals null."""
        return self._expressions.EqualNullSafe(one, other)

    def select(self, text: str, plan: Any) -> Any:
        """A SELECT from one table, with a plan in the place of the table."""
        return self._parser.parsePlan(text).withNewChildren(self.seq([plan]))

    def cast(self, expression: Any, kind: str) -> Any:
        """An expression with another type."""
        to = self._parser.parseExpression(f"cast(null as {kind})")
        return to.withNewChildren(self.seq([expression]))

    def sort(self, order: Iterable[Any], plan: Any, hint: Any) -> Any:
        return self._plans.Sort(self.seq(order), True, plan, hint)

    def limit(self, rows: int, plan: Any) -> Any:
        """The first rows."""
        number = self.expression(str(rows))
        return self._plans.GlobalLimit(number, self._plans.LocalLimit(number, plan))

    def filter(self, condition: Any, plan: Any) -> Any:
        return self._plans.Filter(condition, plan)

    def cross_join(self, plan: Any, others: Iterable[Any]) -> Any:
        """Each row with each row of the others."""
        for other in others:
            plan = self._plans.Join(plan, other, self._join_type.apply("cross"), self._nothing, self._no_hint)
        return plan

    def union(self, plans: Sequence[Any]) -> Any:
        return plans[0] if len(plans) == 1 else self._plans.Union(self.seq(plans), False, False)

    def distinct(self, plan: Any) -> Any:
        return self._plans.Distinct(plan)

    @cached_property
    def weight_id(self) -> Any:
        """The id of the weight column, which is the same in all plans."""
        return self.new_id()

    @cached_property
    def weight(self) -> Any:
        """The weight column of changed rows: 1 or -1."""
        return self.constant_weight(1).toAttribute()

    def constant_weight(self, value: int) -> Any:
        """The weight column with this value."""
        return self.alias(self.expression(str(value)), WEIGHT, self.weight_id)

    def table_weight(self) -> Any:
        """The weight column of a table of changes."""
        return self.alias(self.expression(f"`{WEIGHT}`"), WEIGHT, self.weight_id)


WEIGHT = "floodmark_weight"


def _singleton(package: Any, name: str) -> Any:
    """The instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def class_of(node: Any) -> str:
    """The name of the class of a node or expression."""
    return str(node.getClass().getSimpleName())


def items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """A plan as a frame of a session, with the tables that have its names there now."""
    from pyspark.sql.classic.dataframe import DataFrame

    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)
