"""Analysis of a view's query: the datasets it names, its columns, and how it can be refreshed.

The analysis uses Spark's plan of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from floodmark.derive.inputs import LakeLike
from floodmark.engine.spark_launch import explain_dead_jvm
from floodmark.errors import BadData, BadName, BadQuery, BadView, UnknownDataset
from floodmark.ledger.names import find_input_name
from floodmark.ledger.spark_query import parse_query, parse_select
from floodmark.views import spark_sql
from floodmark.views.analysis import (
    COPY_COLUMN,
    COPY_TYPE,
    KEY_PREFIX,
    OFFSET_COLUMN,
    ROW_COLUMN,
    ROW_TYPE,
    Analysis,
    InputSchema,
    InputUse,
    schemas_digest,
)
from floodmark.views.catalyst import optimize
from floodmark.views.classification import (
    Classification,
    Query,
    can_be_key,
    check_resolved,
    check_result_names,
    classify,
    depends_on_order,
    find_nondeterminism,
    only_passes_through,
    result_columns,
    shown_columns,
    table_aliases,
    udf_field,
)
from floodmark.views.definition import UdfColumn, ViewDefinition
from floodmark.views.delta_rules import Facts, find_rules, key_of
from floodmark.views.operator_columns import keeps_totals
from floodmark.views.query_plan import UnreadablePlan, named_columns, used_columns
from floodmark.views.sources import input_schema_of
from floodmark.views.spark_sql import inject_columns, isolated_session, meaning_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def analyse_for_lake(
    lake: LakeLike,
    definition: ViewDefinition,
    *,
    view: str | None = None,
    known: Analysis | None = None,
    settings: Mapping[str, str] | None = None,
) -> Analysis:
    """Analyse a view's query over the datasets of a lake. Starts Spark.

    `view` is the view's own name, which the query must not read. `known` is an earlier analysis: its names stand for
    the datasets that they named then, even after a rename. `settings` are the Spark settings that affect the meaning
    of the query; None means the current ones of the lake's session.
    """
    with named_in_errors(view):
        return _analyse(lake, definition, view, known, settings)


@contextmanager
def named_in_errors(view: str | None) -> Iterator[None]:
    """Add the name of the view to errors about its query."""
    try:
        yield
    except (BadView, BadQuery, BadData, BadName, UnknownDataset) as error:
        if view is None or "view" in error.facts:
            raise
        facts = {**error.facts, "view": view}
        raise type(error)(f"view {view!r}: {error.message}", hint=error.hint, **facts) from error


def _analyse(
    lake: LakeLike,
    definition: ViewDefinition,
    view: str | None,
    known: Analysis | None,
    settings: Mapping[str, str] | None,
) -> Analysis:
    spark = isolated_session(lake.runtime.session.get(), settings)
    if not hasattr(spark, "_jsparkSession"):
        raise BadView(
            "the plan of a query cannot be read through Spark Connect",
            hint="declare the view with a local or classic Spark session; reading it works with any session",
        )
    sources: dict[str, InputSchema] = {}
    for alias, dataset in _datasets(lake, definition, spark, known).items():
        if view is not None and dataset.name.lower() == view.lower():
            raise BadView(f"view {view!r} would read itself", hint="name another dataset", view=view)
        sources[alias] = input_schema_of(dataset)
    _check_distinct_inputs(sources)
    try:
        with explain_dead_jvm():
            return analyse(spark, definition, sources)
    except BadQuery as error:
        meant = [column.name for column in definition.udfs if f"`{column.name}`" in error.message]
        if not meant:
            raise
        hint = f"a function computes {meant[0]!r} after the query: use it in a second view that reads this view"
        raise BadQuery(error.message, hint=hint, **error.facts) from error


def _check_distinct_inputs(sources: Mapping[str, InputSchema]) -> None:
    """Refuse a query that uses the old and the new name of one dataset."""
    seen: dict[str, str] = {}
    for alias, source in sources.items():
        if (other := seen.setdefault(source.dataset_id, alias)) != alias:
            raise BadView(
                f"{other!r} and {alias!r} are the same dataset in this query", hint=f"write {source.name!r} for both"
            )


def _datasets(
    lake: LakeLike, definition: ViewDefinition, spark: SparkSession, known: Analysis | None
) -> dict[str, Any]:
    uses = () if known is None else known.sources
    called = {use.alias.lower(): find_input_name(lake.store, use.dataset_id, use.alias) for use in uses}
    named = _parse_names(definition, spark)
    datasets: dict[str, Any] = {}
    for alias in named.tables:
        try:
            datasets[alias] = lake[called.get(alias.lower()) or alias]
        except (UnknownDataset, BadName):
            if alias.lower() not in named.defined:
                raise
    return datasets


@dataclass(frozen=True)
class _Names:
    """The tables that a query names, and the names that it defines itself (WITH), in lower case."""

    tables: tuple[str, ...]
    defined: frozenset[str]


def table_names(definition: ViewDefinition, spark: SparkSession) -> tuple[str, ...]:
    """The tables that a query names, as spelled in it, without the names that it defines in WITH."""
    named = _parse_names(definition, spark)
    return tuple(name for name in named.tables if name.lower() not in named.defined)


def _parse_names(definition: ViewDefinition, spark: SparkSession) -> _Names:
    if definition.source is not None:
        return _Names((definition.source,), frozenset())
    parsed = parse_query(spark, definition.query)
    return _Names(parsed.tables, parsed.defined)


# Analysis over given datasets

_CURRENT_TIME = re.compile(r"\b(date|timestamp\w*)\s*r?['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""A time that Spark's parser replaces with the current time, so that the plan does not show it."""

_ROWS_NOT_IDENTIFIED = "its result does not identify the rows of its input, and identifying columns cannot be added"

Injected = tuple[tuple[str, str], ...]


def analyse(spark: SparkSession, definition: ViewDefinition, sources: Mapping[str, InputSchema]) -> Analysis:
    """Analyse a view's query over these datasets, given by their names in it.

    The session's tables with these names are replaced, so use a session from `isolated_session`.
    """
    return _Analyser(spark, definition, sources).analysis()


@dataclass(frozen=True)
class _Tables:
    """The tables of a query: for each, some of its input's columns, and the injected columns."""

    sources: Mapping[str, InputSchema]  # by alias
    columns: Mapping[str, tuple[str, ...]]
    inject: Mapping[str, Injected]

    def schemas(self) -> dict[str, pa.Schema]:
        return {
            alias: pa.schema(
                [
                    *[source.schema.field(name) for name in self.columns[alias]],
                    *[pa.field(name, source.type_of(column)) for name, column in self.inject.get(alias, ())],
                ]
            )
            for alias, source in self.sources.items()
        }


@dataclass(frozen=True)
class _AnalysedQuery:
    """A query, its plan over some tables, and its result columns."""

    text: str
    tables: _Tables
    plan: spark_sql.PlannedQuery
    query: Query

    @cached_property
    def classified(self) -> Classification:
        if _CURRENT_TIME.search(self.text):
            return Classification("whole", "it uses a time such as 'now' or 'today'")
        classified = classify(self.query)
        if classified.kind != "whole" and not self.plan.is_deterministic and not depends_on_order(self.query.plan):
            return Classification("whole", "it uses a function whose value may differ in each run")
        return classified

    @property
    def is_deterministic(self) -> bool:
        """Whether the result is the same in each run, but for what SQL leaves open."""
        is_current = _CURRENT_TIME.search(self.text) is not None
        return self.plan.is_deterministic and not is_current and find_nondeterminism(self.query.plan) is None

    def is_equivalent_to(self, other: _AnalysedQuery) -> bool:
        """Whether it has the same result columns and classification, and only passes the injected columns through."""
        injected = {name for pairs in self.tables.inject.values() for name, _ in pairs}
        own = [field for field in self.query.columns if field.name not in injected]
        theirs = [field for field in other.query.columns if field.name not in injected]
        if own != theirs or not only_passes_through(self.query.plan, injected):
            return False
        classified, expected = self.classified, other.classified
        return classified.kind == expected.kind and (classified.kind == "rows" or classified == expected)


@dataclass(frozen=True)
class _Analyser:
    spark: SparkSession
    definition: ViewDefinition
    sources: Mapping[str, InputSchema]

    def analysis(self) -> Analysis:
        self._check()
        first = self._first()
        kind = first.classified.kind
        if self.definition.udfs and kind != "rows":
            raise BadView(
                f"functions need the single rows of one input, which this view does not have: {first.classified.why}",
                hint="leave that out, or declare one view with the functions and a second view that reads it",
            )
        for variant in self._variants(first):
            if variant.is_equivalent_to(first) and (kind != "rows" or variant.classified.t):
                analysis = self._analysis(variant, variant.classified)
                return self._by_rules(variant, analysis) if kind in ("whole", "groups") else analysis
        if self.definition.udfs:
            raise BadView("the view does not identify the rows of its input", hint="use plain columns in select=")
        return self._analysis(first, Classification("whole", _ROWS_NOT_IDENTIFIED))

    def _check(self) -> None:
        for what, text in self.definition.expressions:
            spark_sql.check_expression(self.spark, what, text)
        parse_select(self.spark, self.definition.query, self.sources)
        for alias, source in self.sources.items():
            if not len(source.schema):
                raise BadView(f"dataset {alias!r} has no columns yet", hint="write to it first", source=alias)

    def _first(self) -> _AnalysedQuery:
        """The unchanged query over tables with all columns; names that the plan does not read are left out."""
        offset = self._offset_for_functions()
        tables = _Tables(self.sources, self._all_columns(self.sources), offset)
        text = self.definition.query
        first = self._analysed(text, tables)
        self._check_tables(first)
        check_result_names(self._columns(first).names, self.sources)
        read = table_aliases(first.query.plan)
        used = {alias: source for alias, source in self.sources.items() if alias.lower() in read}
        return first if len(used) == len(self.sources) else self._analysed(text, self._all(used, offset))

    def _variants(self, first: _AnalysedQuery) -> Iterator[_AnalysedQuery]:
        """The variants of the query to try: with few or all columns, and with identifying columns injected."""
        missing = self._missing(first)
        inject = {**first.tables.inject}
        for alias, pairs in missing.items():
            inject[alias] = tuple(dict.fromkeys((*inject.get(alias, ()), *pairs)))
        injected = tuple(name for pairs in inject.values() for name, _ in pairs)
        for columns in self._column_choices(first):
            for text in self._texts(first, injected):
                try:
                    yield self._analysed(text, _Tables(first.tables.sources, columns, inject))
                except BadQuery:
                    continue  # the injected columns are not visible there, or the query needs another column

    def _column_choices(self, first: _AnalysedQuery) -> Iterator[dict[str, tuple[str, ...]]]:
        """Sets of columns for the tables, smallest first. The last one has all columns and always works."""
        plan, sources = first.query.plan, first.tables.sources
        column_sets = [used for used in (used_columns(plan), named_columns(plan)) if used is not None]
        seen = [{alias: self._used_or_one(alias, used) for alias in sources} for used in column_sets]
        seen.append(self._all_columns(sources))
        for number, columns in enumerate(seen):
            if columns not in seen[:number]:
                yield columns

    def _used_or_one(self, alias: str, used: Mapping[str, set[str]]) -> tuple[str, ...]:
        """The used columns, or one column if none is used, because a table without columns has no rows."""
        schema = self.sources[alias].schema
        return tuple(name for name in schema.names if name in used.get(alias.lower(), ())) or self._least(alias)

    def _least(self, alias: str) -> tuple[str, ...]:
        source = self.sources[alias]
        plain = [name for name in source.schema.names if name not in source.computed]
        return ((plain or source.schema.names)[0],)

    def _texts(self, first: _AnalysedQuery, injected: Sequence[str]) -> Iterator[str]:
        if not injected:
            yield first.text
        elif self.definition.sql is not None:
            yield from inject_columns(parse_query(self.spark, first.text).plan, first.text, injected)
        else:
            yield self.definition.compose(injected if self.definition.select else ())  # `*` already includes them

    def _missing(self, first: _AnalysedQuery) -> dict[str, Injected]:
        """The columns that identify the input's rows and are not in the result, with the names to inject them under."""
        if first.classified.kind != "rows":
            return {}
        [(alias, source)] = first.tables.sources.items()
        shown = shown_columns(first.query)
        if not source.key:
            return {} if source.offset in shown else {alias: ((OFFSET_COLUMN, source.offset),)}
        pairs = tuple((KEY_PREFIX + column, column) for column in source.key if column not in shown)
        return {alias: pairs} if pairs else {}

    def _offset_for_functions(self) -> dict[str, Injected]:
        if not self.definition.udfs:
            return {}
        [(alias, source)] = self.sources.items()
        return {alias: ((OFFSET_COLUMN, source.offset),)}

    def _all_columns(self, sources: Mapping[str, InputSchema]) -> dict[str, tuple[str, ...]]:
        return {alias: tuple(source.schema.names) for alias, source in sources.items()}

    def _all(self, sources: Mapping[str, InputSchema], inject: Mapping[str, Injected]) -> _Tables:
        return _Tables(sources, self._all_columns(sources), inject)

    def _analysed(self, text: str, tables: _Tables) -> _AnalysedQuery:
        plan = spark_sql.plan_query(self.spark, text, tables.schemas(), self.sources)
        columns = result_columns(plan.frame.schema)
        injected = {alias.lower(): dict(pairs) for alias, pairs in tables.inject.items()}
        sources = {alias.lower(): source for alias, source in tables.sources.items()}
        return _AnalysedQuery(text, tables, plan, Query(plan.plan, columns, sources, injected))

    def _check_tables(self, analysed: _AnalysedQuery) -> None:
        """Refuse a query that reads other tables than datasets, or that names none."""
        check_resolved(analysed.query.plan, self.sources)
        if not table_aliases(analysed.query.plan):
            raise BadView("the query names no dataset", hint="select from a dataset of the lake: select … from NAME")

    def _columns(self, analysed: _AnalysedQuery) -> pa.Schema:
        """The columns that users see, in order."""
        injected = {name for pairs in analysed.tables.inject.values() for name, _ in pairs}
        plain = [field for field in analysed.query.columns if field.name not in injected]
        if not self.definition.udfs:
            return pa.schema(plain)
        if [field.name for field in plain] != [n for n, what in self.definition.select if isinstance(what, str)]:
            raise BadView("a text in select= gives more than one column", hint="write one expression per column")
        rest = iter(plain)
        return pa.schema(
            [udf_field(what) if isinstance(what, UdfColumn) else next(rest) for _, what in self.definition.select]
        )

    def _analysis(self, variant: _AnalysedQuery, classified: Classification) -> Analysis:
        columns = self._columns(variant)
        t = tuple(shared.name for shared in classified.t)
        identity = classified.key is None
        key = (*t, ROW_COLUMN, COPY_COLUMN) if classified.key is None else classified.key
        own = {ROW_COLUMN: ROW_TYPE, COPY_COLUMN: COPY_TYPE}
        hidden = [
            pa.field(name, own[name]) if name in own else variant.query.columns.field(name)
            for name in key
            if name not in columns.names
        ]
        return Analysis(
            kind=classified.kind,
            why=classified.why,
            sources=tuple(self._use(alias, variant, classified) for alias in variant.tables.sources),
            columns=columns,
            t=t,
            key=key,
            hidden=pa.schema(hidden),
            query=variant.text,
            identity=identity,
            inject={alias: pairs for alias, pairs in variant.tables.inject.items() if pairs},
            schemas=schemas_digest(variant.tables.sources.values()),
            settings=meaning_settings(self.spark),
        )

    def _by_rules(self, variant: _AnalysedQuery, analysis: Analysis) -> Analysis:
        """The analysis with the rules of the query's operators.

        Without T, changes are carried through them if each operator has one. With groups, they are carried through if
        totals can be kept: then no row of a group is read again.
        """
        has_rows_twice = analysis.kind == "groups" and analysis.identity
        if not variant.is_deterministic or has_rows_twice or any(use.computed for use in analysis.sources):
            return analysis
        query = optimize(self.spark, variant.text, variant.tables.schemas())
        try:
            maintained = find_rules(query.tree, {alias: source.key for alias, source in self.sources.items()})
        except UnreadablePlan:
            return analysis
        rules = maintained.rule
        if analysis.kind == "groups":
            return replace(analysis, rules=rules) if rules.reason is None and keeps_totals(query.tree) else analysis
        if rules.whole_text is not None:
            return replace(analysis, why=rules.whole_text, rules=rules)
        key = self._natural_key(analysis, maintained.facts)
        if key is None:
            return replace(analysis, kind="changes", why=None, t=(ROW_COLUMN,), rules=rules)
        parts = {"t": key, "key": key, "hidden": pa.schema([]), "identity": False}
        return replace(analysis, kind="changes", why=None, rules=rules, **parts)

    def _natural_key(self, analysis: Analysis, facts: Facts) -> tuple[str, ...] | None:
        """Columns of the result that identify a row; None if there are none."""
        fields = dict(zip(facts.output, analysis.columns, strict=True))
        key = key_of(facts, frozenset(one for one, field in fields.items() if can_be_key(field.type)))
        return None if key is None else tuple(fields[one].name for one in facts.output if one in key)

    def _use(self, alias: str, variant: _AnalysedQuery, classified: Classification) -> InputUse:
        source = variant.tables.sources[alias]
        used = variant.tables.columns[alias]
        inputs = {column for udf in self.definition.udfs for column in udf.inputs}
        return InputUse(
            alias=alias,
            dataset_id=source.dataset_id,
            keys=tuple((shared.name, shared.columns[alias.lower()]) for shared in classified.t),
            columns=used,
            computed=tuple(name for name in source.computed if name in used or name in inputs),
        )
