"""How a query can be refreshed: by rows, by groups, by the keys of its joins, or only as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from floodmark.transform.views.analysed.analysis import Kind, SourceSchema
from floodmark.transform.views.analysed.flow import Flow, NotInParts, Trace, is_comparable
from floodmark.transform.views.analysed.operators import Tables, flow_of
from floodmark.transform.views.analysed.plan_tree import Node, UnreadablePlan, operators


@dataclass(frozen=True)
class Shared:
    """One column of T: what the view calls it, and which column of each source it is, by alias in lower case."""

    name: str
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Classified:
    """How a query is refreshed. `key` are columns of the result, T first; None where the result shows none."""

    kind: Kind
    why: str | None = None
    t: tuple[Shared, ...] = ()
    key: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Query:
    """An analysed query: its plan, its result's columns, and its tables by alias in lower case."""

    plan: Node
    columns: pa.Schema
    sources: Mapping[str, SourceSchema]
    injected: Mapping[str, Mapping[str, str]]  # by alias: further columns of a table, and the source's columns they are


def classify(query: Query) -> Classified:
    """How the query is refreshed; whatever is not recognised is `whole`."""
    try:
        return _in_parts(query)
    except NotInParts as reason:
        return Classified("whole", str(reason))
    except UnreadablePlan as error:
        return Classified("whole", f"its plan cannot be read: {error}")


def _in_parts(query: Query) -> Classified:
    for reason in (changing_by_itself(query.plan), _subquery(query.plan)):
        if reason is not None:
            raise NotInParts(reason)
    flow = flow_of(query.plan, _tables(query))
    if {table.alias for table in flow.tables} != tables_of(query.plan):
        raise NotInParts("it names a dataset in a WITH that it does not use")
    if len(flow.output) != len(query.columns):
        raise NotInParts("its plan cannot be read")
    if flow.did or len(flow.tables) > 1:
        kind: Kind = "join" if len(flow.tables) > 1 else "groups"
        t = _shared(query, flow)
        if not t:
            raise NotInParts(_why_not(kind, flow))
        return Classified(kind, None, tuple(t.values()), _key(query, flow, t))
    return _of_rows(query, flow)


def _of_rows(query: Query, flow: Flow) -> Classified:
    """Rows of one source: T is what tells these apart. Where the result lacks it, T is empty, and so to be injected."""
    [table] = flow.tables
    source = query.sources[table.alias]
    by_column = _shown(query, flow)
    wanted = source.key or (source.offset,)
    if any(column not in by_column for column in wanted):
        return Classified("rows")
    t = tuple(Shared(by_column[column], {table.alias: column}) for column in wanted)
    return Classified("rows", None, t, tuple(shared.name for shared in t))


def shown_columns(query: Query) -> dict[str, str]:
    """Of a query that is rows of one source: the source's columns that its result merely shows, under which names."""
    return _shown(query, flow_of(query.plan, _tables(query)))


def _shown(query: Query, flow: Flow) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute, field in zip(flow.output, query.columns, strict=True):
        for _, column in flow.traces.get(attribute.id, ()):
            found.setdefault(column, field.name)
    return found


def _tables(query: Query) -> Tables:
    columns = {
        alias: {**{name: name for name in source.schema.names}, **query.injected.get(alias, {})}
        for alias, source in query.sources.items()
    }
    keys = {alias: source.key or (source.offset,) for alias, source in query.sources.items()}
    return Tables(columns, keys)


def _shared(query: Query, flow: Flow) -> dict[Trace, Shared]:
    """The columns of the result by which all tables can be restricted, each once."""
    aliases = {table.number: table.alias for table in flow.tables}
    found: dict[Trace, Shared] = {}
    for attribute, field in zip(flow.output, query.columns, strict=True):
        trace = flow.traces.get(attribute.id)
        if trace is None or trace in found or len(trace) < len(aliases) or not is_comparable(attribute.type):
            continue
        columns: dict[str, str] = {}
        for number, column in sorted(trace):
            alias = aliases[number]
            if columns.setdefault(alias, column) != column or column in query.sources[alias].computed:
                break  # one table cannot be restricted in two ways; and old values of computed columns are not known
        else:
            found[trace] = Shared(field.name, columns)
    return found


def _key(query: Query, flow: Flow, t: Mapping[Trace, Shared]) -> tuple[str, ...] | None:
    """T and what else it takes to tell the rows of the result apart; None when the plan does not show it."""
    first = [shared.name for shared in t.values()]
    best: list[str] | None = None
    for key in flow.keys:
        rest = []
        for attribute, field in zip(flow.output, query.columns, strict=True):
            if attribute.id in key and flow.traces.get(attribute.id) not in t:
                rest.append(field)
        shown = {attribute.id for attribute in flow.output}
        if key <= shown and all(_can_be_key(field.type) for field in rest):
            names = list(dict.fromkeys(field.name for field in rest))
            best = names if best is None or len(names) < len(best) else best
    return None if best is None else (*first, *[name for name in best if name not in first])


def _can_be_key(data_type: pa.DataType) -> bool:
    return not pa.types.is_nested(data_type) and not pa.types.is_floating(data_type)


def _why_not(kind: Kind, flow: Flow) -> str:
    if kind == "join" and len({table.alias for table in flow.tables}) < len(flow.tables):
        return "it joins a dataset with itself, and not by one column of both that is in the result"
    if kind == "join":
        return (
            "its joins have no column that is equal (=) in all of the datasets and is in the result; columns of "
            "different types, floats, expressions and computed columns do not count"
        )
    return (
        "it groups by no plain column that is in the result: expressions, floats, nested values and computed columns "
        "do not count"
    )


def tables_of(plan: Node) -> set[str]:
    """The aliases of all tables anywhere in a plan, in lower case."""
    found = set()
    for node in plan.all():
        if node.name == "View" and isinstance(node["desc"], dict):
            found.add(str(node["desc"]["identifier"]["table"]).lower())
    return found


_MADE_HERE = ("OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "UnionLoopRef")


def other_tables(plan: Node, known: set[str]) -> Iterator[str]:
    """What a plan reads that is none of the known tables."""
    for node in plan.all():
        if node.name == "View":
            identifier = node["desc"]["identifier"]
            name = str(identifier["table"])
            if node["isTempView"] is not True or identifier.get("database") or name.lower() not in known:
                yield repr(name)
        elif node.name.endswith("Relation") and not node.children and node.name not in _MADE_HERE:
            yield f"a {node.name}"


def _subquery(plan: Node) -> str | None:
    for node in operators(plan):
        for part in node.own_expressions():
            if isinstance(part["plan"], Node) or part.name in ("OuterReference", "ListQuery", "Exists"):
                return "it has a subquery in an expression (IN, EXISTS or a single value)"
    return None


_BY_ITSELF = re.compile(
    r"Current\w*|Now|LocalTimestamp|Rand\w*|Uniform|Uuid|Shuffle|MonotonicallyIncreasingID|SparkPartitionID|InputFile\w*"
    r"|SparkVersion|CallMethodViaReflection|\w*Reflect\w*|AesEncrypt|SessionUser|RandomSample|\w*UDF|\w*UDAF|\w*UDTF"
)
_TIMES = ("date", "timestamp", "timestamp_ntz")
_READS_A_TIME = re.compile(r"(Try)?(Parse)?To(Date|Time)\w*")
_MOMENTS = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def changing_by_itself(plan: Node) -> str | None:
    """What in a query may have another value next time, though no source has changed."""
    for node in plan.all():
        if _BY_ITSELF.fullmatch(node.name):
            return f"it uses {_function(node.name)}, which has another value every time"
        is_cast = node.name == "Cast" and node["dataType"] in _TIMES
        if (is_cast or _READS_A_TIME.fullmatch(node.name)) and node.children and _may_mean_now(node.children[0]):
            return "it uses a time such as 'now' or 'today'"
    return None


def _may_mean_now(text: Node) -> bool:
    """Whether a text that becomes a time may be one of those that Spark reads as the present."""
    if text.name == "Literal":
        return _MOMENTS.match(str(text["value"])) is not None
    return not any(part.name in ("AttributeReference", "LambdaVariable", "NamedLambdaVariable") for part in text.all())


def _function(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() + "()"


_DECIDED_BY_ORDER = ("First", "Last", "CollectList", "CollectSet", "AnyValue", "Mode", "ListAgg", "MaxBy", "MinBy")


def takes_any_order(plan: Node) -> bool:
    """Whether some aggregate function may answer this or that, by the order in which it meets the rows of its group."""
    return any(node.name in _DECIDED_BY_ORDER for node in plan.all())


def only_passes_on(plan: Node, names: Collection[str]) -> bool:
    """Whether columns of these names are shown and nothing else: no expression has them in it."""
    wanted = {name.lower() for name in names}
    for node in operators(plan):
        if not node.children:
            continue
        for field in node.fields:
            items: Sequence[Node] = node.expressions(field) if field == "projectList" and node.name == "Project" else ()
            bare = [item.only if item.name == "Alias" else item for item in items]
            inner = [part for item in bare if item.name != "AttributeReference" for part in item.all()]
            parts = inner if items else _parts(node, field)
            if any(part.name == "AttributeReference" and str(part["name"]).lower() in wanted for part in parts):
                return False
    return True


def _parts(node: Node, field: str) -> list[Node]:
    return list(Node("", (), {field: node[field]}).own_expressions())
