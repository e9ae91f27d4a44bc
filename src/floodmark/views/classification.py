"""Classification of queries: refreshed by rows, by groups, by join keys, or only as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.errors import BadColumnName, BadView, UnsupportedType
from floodmark.ledger.schema import check_column_name
from floodmark.ledger.types import arrow_schema, canonical_type, check_supported
from floodmark.storage.parquet import Vocabulary
from floodmark.views.analysis import RESERVED_PREFIX, InputSchema, RefreshKind
from floodmark.views.definition import UdfColumn
from floodmark.views.operator_rules import QueryTables, read_flow
from floodmark.views.query_plan import (
    Flow,
    NotIncremental,
    PlanNode,
    Trace,
    UnreadablePlan,
    function_name,
    is_comparable,
    operators,
)


@dataclass(frozen=True)
class SharedColumn:
    """One column of T: its name in the view, and the input column it equals, by alias in lower case."""

    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Classification:
    """How a query is refreshed. `key` has result columns, T first; None if the result columns contain no key."""

    kind: RefreshKind
    why: str | None = None
    t: tuple[SharedColumn, ...] = ()
    key: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Query:
    """An analysed query: its plan, its result's columns, and its tables by alias in lower case."""

    plan: PlanNode
    columns: pa.Schema
    sources: Mapping[str, InputSchema]
    injected: Mapping[str, Mapping[str, str]]  # by alias: injected columns, and the input's columns that they repeat


def classify(query: Query) -> Classification:
    """How the query is refreshed; an unknown construct makes it `whole`."""
    try:
        return _in_parts(query)
    except NotIncremental as reason:
        return Classification("whole", str(reason))
    except UnreadablePlan as error:
        return Classification("whole", f"its plan cannot be read: {error}")


def _in_parts(query: Query) -> Classification:
    for reason in (find_nondeterminism(query.plan), _subquery(query.plan)):
        if reason is not None:
            raise NotIncremental(reason)
    flow = read_flow(query.plan, _tables(query))
    if {table.alias for table in flow.tables} != table_aliases(query.plan):
        raise NotIncremental("it names a dataset in a WITH clause that it does not use")
    if len(flow.output) != len(query.columns):
        raise NotIncremental("its plan cannot be read")
    if flow.operations or len(flow.tables) > 1:
        kind: RefreshKind = "join" if len(flow.tables) > 1 else "groups"
        t = _shared(query, flow)
        if not t:
            raise NotIncremental(_whole_reason(kind, flow))
        return Classification(kind, None, tuple(t.values()), _key(query, flow, t))
    return _of_rows(query, flow)


def _of_rows(query: Query, flow: Flow) -> Classification:
    """Classify rows of one input. T is the input's key; if the result lacks it, T is empty and must be injected."""
    [table] = flow.tables
    source = query.sources[table.alias]
    by_column = _shown(query, flow)
    key = source.key or (source.offset,)
    if any(column not in by_column for column in key):
        return Classification("rows")
    t = tuple(SharedColumn(by_column[column], {table.alias: column}) for column in key)
    return Classification("rows", None, t, tuple(shared.name for shared in t))


def shown_columns(query: Query) -> dict[str, str]:
    """For a query on rows of one input: the input columns that the result shows unchanged, with their result names."""
    return _shown(query, read_flow(query.plan, _tables(query)))


def _shown(query: Query, flow: Flow) -> dict[str, str]:
    names: dict[str, str] = {}
    for attribute, field in zip(flow.output, query.columns, strict=True):
        for _, column in flow.traces.get(attribute.id, ()):
            names.setdefault(column, field.name)
    return names


def _tables(query: Query) -> QueryTables:
    columns = {
        alias: {**{name: name for name in source.schema.names}, **query.injected.get(alias, {})}
        for alias, source in query.sources.items()
    }
    keys = {alias: source.key or (source.offset,) for alias, source in query.sources.items()}
    return QueryTables(columns, keys)


def _shared(query: Query, flow: Flow) -> dict[Trace, SharedColumn]:
    """The result columns by which all tables can be restricted, each once."""
    aliases = {table.number: table.alias for table in flow.tables}
    shared: dict[Trace, SharedColumn] = {}
    for attribute, field in zip(flow.output, query.columns, strict=True):
        trace = flow.traces.get(attribute.id)
        if trace is None or trace in shared or len(trace) < len(aliases) or not is_comparable(attribute.type):
            continue
        columns: dict[str, str] = {}
        for number, column in sorted(trace):
            alias = aliases[number]
            if columns.setdefault(alias, column) != column or column in query.sources[alias].computed:
                break  # a table cannot be restricted by two columns, and old values of computed columns are unknown
        else:
            shared[trace] = SharedColumn(field.name, columns)
    return shared


def _key(query: Query, flow: Flow, t: Mapping[Trace, SharedColumn]) -> tuple[str, ...] | None:
    """T and the further columns that identify a row of the result; None if the plan does not show them."""
    first = [shared.name for shared in t.values()]
    best: list[str] | None = None
    for key in flow.keys:
        rest = []
        for attribute, field in zip(flow.output, query.columns, strict=True):
            if attribute.id in key and flow.traces.get(attribute.id) not in t:
                rest.append(field)
        shown = {attribute.id for attribute in flow.output}
        if key <= shown and all(can_be_key(field.type) for field in rest):
            names = list(dict.fromkeys(field.name for field in rest))
            best = names if best is None or len(names) < len(best) else best
    return None if best is None else (*first, *[name for name in best if name not in first])


def can_be_key(data_type: pa.DataType) -> bool:
    """Whether a column of this type can identify rows."""
    return not pa.types.is_nested(data_type) and not pa.types.is_floating(data_type)


def _whole_reason(kind: RefreshKind, flow: Flow) -> str:
    if kind == "join" and len({table.alias for table in flow.tables}) < len(flow.tables):
        return "it joins a dataset with itself, but not on one column of both sides that is in the result"
    if kind == "join":
        return (
            "its joins have no column that is equal (=) in all of the datasets and is in the result; columns of "
            "different types, floats, expressions and computed columns do not count"
        )
    return (
        "it groups by no plain column that is in the result: expressions, floats, nested values and computed columns "
        "do not count"
    )


def table_aliases(plan: PlanNode) -> set[str]:
    """The aliases of all tables anywhere in a plan, in lower case."""
    aliases = set()
    for node in plan.all():
        if node.name == "View" and isinstance(node["desc"], dict):
            aliases.add(str(node["desc"]["identifier"]["table"]).lower())
    return aliases


_INLINE_TABLES = ("OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "UnionLoopRef")


def check_resolved(plan: PlanNode, known: Collection[str]) -> None:
    """Refuse a plan that reads other tables than the known ones, or a value of the session.

    Spark decides only here what a name means: a name of WITH may also be a table of the session, and `user` is a column
    or the name of the user.
    """
    for node in _without_tables(plan, {name.lower() for name in known}):
        if node.name == "View":
            raise _other_table(repr(str(node["desc"]["identifier"]["table"])))
        if node.name.endswith("Relation") and not node.children and node.name not in _INLINE_TABLES:
            raise _other_table(f"a {node.name}")
        if node.name in _SESSION_VALUES:
            raise BadView(
                f"the query uses {function_name(node.name)}, a value of the session that runs it",
                hint="use the columns of its datasets",
            )


_SESSION_VALUES = ("CurrentUser", "VariableReference")
"""What a name without parentheses may mean."""


def _without_tables(plan: PlanNode, known: set[str]) -> Iterator[PlanNode]:
    """The nodes of a plan, without the known tables and what they consist of."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if node.name == "View":
            identifier = node["desc"]["identifier"]
            is_ours = node["isTempView"] is True and not identifier.get("database")
            if is_ours and str(identifier["table"]).lower() in known:
                continue
        yield node
        waiting += [*node.children, *node.own_nodes()]


def _other_table(what: str) -> BadView:
    return BadView(
        f"the query reads {what}, which is not a dataset of the lake", hint="select only from datasets of the lake"
    )


def _subquery(plan: PlanNode) -> str | None:
    for node in operators(plan):
        for part in node.own_expressions():
            if isinstance(part["plan"], PlanNode) or part.name in ("OuterReference", "ListQuery", "Exists"):
                return "it has a subquery in an expression (IN, EXISTS or a single value)"
    return None


_NONDETERMINISTIC = re.compile(
    r"Current\w*|Now|LocalTimestamp|Rand\w*|Uniform|Uuid|Shuffle|MonotonicallyIncreasingID|SparkPartitionID|InputFile\w*"
    r"|SparkVersion|CallMethodViaReflection|\w*Reflect\w*|AesEncrypt|SessionUser|RandomSample|\w*UDF|\w*UDAF|\w*UDTF"
)
_TIMES = ("date", "timestamp", "timestamp_ntz")
_READS_A_TIME = re.compile(r"(Try)?(Parse)?To(Date|Time)\w*")
_CURRENT_TIMES = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def find_nondeterminism(plan: PlanNode) -> str | None:
    """A part of a query whose value may differ in the next run even if no input changed; None if there is none."""
    for node in plan.all():
        if _NONDETERMINISTIC.fullmatch(node.name):
            return f"it uses {function_name(node.name)}, whose value differs in each run"
        is_cast = node.name == "Cast" and node["dataType"] in _TIMES
        if (is_cast or _READS_A_TIME.fullmatch(node.name)) and node.children and _may_mean_now(node.children[0]):
            return "it uses a time such as 'now' or 'today'"
    return None


def _may_mean_now(text: PlanNode) -> bool:
    """Whether a text that is cast to a time may be one that Spark reads as the current time."""
    if text.name == "Literal":
        return _CURRENT_TIMES.match(str(text["value"])) is not None
    return not any(part.name in ("AttributeReference", "LambdaVariable", "NamedLambdaVariable") for part in text.all())


_ORDER_DEPENDENT = ("First", "Last", "CollectList", "CollectSet", "AnyValue", "Mode", "ListAgg", "MaxBy", "MinBy")


def depends_on_order(plan: PlanNode) -> bool:
    """Whether an aggregate function's result may depend on the order of rows in a group."""
    return any(node.name in _ORDER_DEPENDENT for node in plan.all())


def only_passes_through(plan: PlanNode, names: Collection[str]) -> bool:
    """Whether columns with these names are only passed through, and no expression uses them."""
    lowered = {name.lower() for name in names}
    for node in operators(plan):
        if not node.children:
            continue
        for field in node.fields:
            items: Sequence[PlanNode] = (
                node.expressions(field) if field == "projectList" and node.name == "Project" else ()
            )
            bare = [item.only if item.name == "Alias" else item for item in items]
            inner = [part for item in bare if item.name != "AttributeReference" for part in item.all()]
            parts = inner if items else _parts(node, field)
            if any(part.name == "AttributeReference" and str(part["name"]).lower() in lowered for part in parts):
                return False
    return True


def _parts(node: PlanNode, field: str) -> list[PlanNode]:
    return list(PlanNode("", (), {field: node[field]}).own_expressions())


def result_columns(struct: Any) -> pa.Schema:
    """The columns of a Spark frame with the types of a dataset; `UnsupportedType` if one cannot be stored."""
    fields = []
    for field in arrow_schema(struct):
        if pa.types.is_null(field.type):
            raise UnsupportedType(
                f"column {field.name!r} is always null, so its type is unknown",
                hint="add a type: cast(null as string), cast(null as int), …",
                column=field.name,
                data_type=str(field.type),
            )
        kept = canonical_type(field.type, field.name)
        check_supported(kept, field.name)
        fields.append(pa.field(field.name, kept))
    return pa.schema(fields)


def udf_field(column: UdfColumn) -> pa.Field:
    """The column that a function computes, with the type that a dataset stores."""
    return pa.field(column.name, canonical_type(column.type, column.name))


def check_result_names(names: Sequence[str], sources: Mapping[str, InputSchema]) -> None:
    """Refuse duplicate and reserved column names."""
    _check_distinct(names, sources)
    for name in names:
        check_column_name(name, Vocabulary())
        if name.lower().startswith(RESERVED_PREFIX):
            raise BadView(
                f"column name {name!r} is reserved",
                hint=f"rename it: names that begin with {RESERVED_PREFIX!r} are reserved",
                column=name,
            )


def _check_distinct(names: Sequence[str], sources: Mapping[str, InputSchema]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is None:
            seen[name.lower()] = name
            continue
        having = [alias for alias, source in sources.items() if name.lower() in map(str.lower, source.schema.names)]
        where = f": {' and '.join(map(repr, having))} have one each" if len(having) > 1 else ""
        spelled = repr(name) if other == name else f"{other!r} and {name!r} (case is ignored)"
        raise BadColumnName(
            f"its result has two columns {spelled}{where}",
            hint="list the columns instead of *, and rename one of these (… as other_name)",
            columns=[other, name],
            sources=having,
        )
