"""What a query comes to over tables of given columns: how it is refreshed, what it needs, and what has to be put in.

Spark makes a plan of the query over empty tables, and `classify` decides from that plan. What comes out is checked by a
plan of the very query that will be run, over tables with the very columns that it will have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.ledger.errors import BadQuery
from floodmark.transform.views.analysed import spark_sql
from floodmark.transform.views.analysed.analysis import (
    COPY,
    COPY_TYPE,
    KEY_PREFIX,
    OFFSET,
    ROW,
    ROW_TYPE,
    Analysis,
    SourceSchema,
    SourceUse,
    schemas_digest,
)
from floodmark.transform.views.analysed.classify import (
    Classified,
    Query,
    classify,
    only_passes_on,
    other_tables,
    shown_columns,
    tables_of,
    takes_any_order,
)
from floodmark.transform.views.analysed.result_columns import check_names, result_columns, udf_field
from floodmark.transform.views.analysed.settings import meaning_in
from floodmark.transform.views.analysed.splice import spliced
from floodmark.transform.views.analysed.used import named_columns, used_columns
from floodmark.transform.views.defined.definition import Definition, UdfColumn
from floodmark.transform.views.errors import BadView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PRESENT = re.compile(r"\b(date|timestamp\w*)\s*r?['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""A time that Spark's parser replaces by the present one, so that its plan does not show it any more."""

_NOT_TOLD_APART = "what tells the rows of its source apart is not in the result and cannot be added to the query"

Injected = tuple[tuple[str, str], ...]


def analyse(spark: SparkSession, definition: Definition, sources: Mapping[str, SourceSchema]) -> Analysis:
    """Analyse a view's query over these datasets, by their names in it.

    The session's tables of these names are replaced, so it should be one that `isolated` made.
    """
    return _Analysing(spark, definition, sources).analysis()


@dataclass(frozen=True)
class _Tables:
    """The tables of a query, each with some of its source's columns and what is injected."""

    sources: Mapping[str, SourceSchema]  # by alias
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
class _Analysed:
    """A query, its plan over some tables, and what that makes of it."""

    text: str
    tables: _Tables
    plan: spark_sql.Planned
    query: Query

    @cached_property
    def classified(self) -> Classified:
        if _PRESENT.search(self.text):
            return Classified("whole", "it uses a time such as 'now' or 'today'")
        found = classify(self.query)
        if found.kind != "whole" and not self.plan.is_deterministic and not takes_any_order(self.query.plan):
            return Classified("whole", "it uses a function that may have another value every time")
        return found

    def is_as(self, other: _Analysed) -> bool:
        """Whether it gives the same columns, in the same way; further ones that are injected are only passed on."""
        injected = {name for pairs in self.tables.inject.values() for name, _ in pairs}
        own = [field for field in self.query.columns if field.name not in injected]
        theirs = [field for field in other.query.columns if field.name not in injected]
        if own != theirs or not only_passes_on(self.query.plan, injected):
            return False
        mine, there = self.classified, other.classified
        return mine.kind == there.kind and (mine.kind == "rows" or mine == there)


@dataclass(frozen=True)
class _Analysing:
    spark: SparkSession
    definition: Definition
    sources: Mapping[str, SourceSchema]

    def analysis(self) -> Analysis:
        self._check()
        first = self._first()
        kind = first.classified.kind
        if self.definition.udfs and kind != "rows":
            raise BadView(
                f"functions compute columns of single rows, and this view is none of those: {first.classified.why}",
                hint="leave that out, or make one view with the functions and another one of it",
            )
        for made in self._ways(first):
            if made.is_as(first) and (kind != "rows" or made.classified.t):
                return self._analysis(made, made.classified)
        if self.definition.udfs:
            raise BadView("the rows of the source cannot be told apart in this view", hint="give select= plain columns")
        return self._analysis(first, Classified("whole", _NOT_TOLD_APART))

    def _check(self) -> None:
        for what, text in self.definition.expressions:
            spark_sql.check_expression(self.spark, what, text)
        spark_sql.parsed(self.spark, self.definition.query)
        for alias, source in self.sources.items():
            if not len(source.schema):
                raise BadView(f"dataset {alias!r} has no columns yet", hint="write to it first", source=alias)

    def _first(self) -> _Analysed:
        """The query as it is, over tables with all columns; the names it does not really read are left out."""
        offset = self._offset_for_functions()
        tables = _Tables(self.sources, self._all_columns(self.sources), offset)
        text = self.definition.query
        first = self._analysed(text, tables)
        self._check_tables(first)
        check_names(self._columns(first).names, self.sources)
        read = tables_of(first.query.plan)
        used = {alias: source for alias, source in self.sources.items() if alias.lower() in read}
        return first if len(used) == len(self.sources) else self._analysed(text, self._all(used, offset))

    def _ways(self, first: _Analysed) -> Iterator[_Analysed]:
        """The query as it could be run: with few columns or all, and with what tells rows apart put in somewhere."""
        missing = self._missing(first)
        inject = {**first.tables.inject}
        for alias, pairs in missing.items():
            inject[alias] = tuple(dict.fromkeys((*inject.get(alias, ()), *pairs)))
        injected = tuple(name for pairs in inject.values() for name, _ in pairs)
        for columns in self._choices(first):
            for text in self._texts(first, injected):
                try:
                    yield self._analysed(text, _Tables(first.tables.sources, columns, inject))
                except BadQuery:
                    continue  # what was put in cannot be seen there, or a column was needed after all

    def _choices(self, first: _Analysed) -> Iterator[dict[str, tuple[str, ...]]]:
        """Columns for the tables, as few as possible first. All of them will always do."""
        plan, sources = first.query.plan, first.tables.sources
        found = [used for used in (used_columns(plan), named_columns(plan)) if used is not None]
        seen = [{alias: self._few(alias, used) for alias in sources} for used in found]
        seen.append(self._all_columns(sources))
        for number, columns in enumerate(seen):
            if columns not in seen[:number]:
                yield columns

    def _few(self, alias: str, used: Mapping[str, set[str]]) -> tuple[str, ...]:
        """The used columns, or one where none is: a table of no columns has no rows."""
        schema = self.sources[alias].schema
        return tuple(name for name in schema.names if name in used.get(alias.lower(), ())) or self._least(alias)

    def _least(self, alias: str) -> tuple[str, ...]:
        source = self.sources[alias]
        plain = [name for name in source.schema.names if name not in source.computed]
        return ((plain or source.schema.names)[0],)

    def _texts(self, first: _Analysed, injected: Sequence[str]) -> Iterator[str]:
        if not injected:
            yield first.text
        elif self.definition.sql is not None:
            yield from spliced(spark_sql.parsed(self.spark, first.text), first.text, injected)
        else:
            yield self.definition.composed(injected if self.definition.select else ())  # a star has them already

    def _missing(self, first: _Analysed) -> dict[str, Injected]:
        """What tells the rows of the source apart and is not in the result, with the names to put it in under."""
        if first.classified.kind != "rows":
            return {}
        [(alias, source)] = first.tables.sources.items()
        shown = shown_columns(first.query)
        if not source.key:
            return {} if source.offset in shown else {alias: ((OFFSET, source.offset),)}
        pairs = tuple((KEY_PREFIX + column, column) for column in source.key if column not in shown)
        return {alias: pairs} if pairs else {}

    def _offset_for_functions(self) -> dict[str, Injected]:
        if not self.definition.udfs:
            return {}
        [(alias, source)] = self.sources.items()
        return {alias: ((OFFSET, source.offset),)}

    def _all_columns(self, sources: Mapping[str, SourceSchema]) -> dict[str, tuple[str, ...]]:
        return {alias: tuple(source.schema.names) for alias, source in sources.items()}

    def _all(self, sources: Mapping[str, SourceSchema], inject: Mapping[str, Injected]) -> _Tables:
        return _Tables(sources, self._all_columns(sources), inject)

    def _analysed(self, text: str, tables: _Tables) -> _Analysed:
        plan = spark_sql.planned(self.spark, text, tables.schemas())
        columns = result_columns(plan.frame.schema)
        injected = {alias.lower(): dict(pairs) for alias, pairs in tables.inject.items()}
        sources = {alias.lower(): source for alias, source in tables.sources.items()}
        return _Analysed(text, tables, plan, Query(plan.plan, columns, sources, injected))

    def _check_tables(self, analysed: _Analysed) -> None:
        """Refuse whatever is no dataset, and a query that names none."""
        known = {alias.lower() for alias in self.sources}
        for what in other_tables(analysed.query.plan, known):
            raise BadView(f"the query reads {what}, which is no dataset of the lake", hint="a view is made of datasets")
        if not tables_of(analysed.query.plan):
            raise BadView("the query names no dataset", hint="a view is made of datasets: select … from NAME")

    def _columns(self, analysed: _Analysed) -> pa.Schema:
        """What users see, in their order."""
        injected = {name for pairs in analysed.tables.inject.values() for name, _ in pairs}
        plain = [field for field in analysed.query.columns if field.name not in injected]
        if not self.definition.udfs:
            return pa.schema(plain)
        if [field.name for field in plain] != [n for n, what in self.definition.select if isinstance(what, str)]:
            raise BadView("some text of select= is more than one column", hint="give each column an expression")
        rest = iter(plain)
        return pa.schema(
            [udf_field(what) if isinstance(what, UdfColumn) else next(rest) for _, what in self.definition.select]
        )

    def _analysis(self, made: _Analysed, found: Classified) -> Analysis:
        columns = self._columns(made)
        t = tuple(shared.name for shared in found.t)
        identity = found.key is None
        key = (*t, ROW, COPY) if found.key is None else found.key
        own = {ROW: ROW_TYPE, COPY: COPY_TYPE}
        hidden = [
            pa.field(name, own[name]) if name in own else made.query.columns.field(name)
            for name in key
            if name not in columns.names
        ]
        return Analysis(
            kind=found.kind,
            why=found.why,
            sources=tuple(self._use(alias, made, found) for alias in made.tables.sources),
            columns=columns,
            t=t,
            key=key,
            hidden=pa.schema(hidden),
            query=made.text,
            identity=identity,
            inject={alias: pairs for alias, pairs in made.tables.inject.items() if pairs},
            schemas=schemas_digest(made.tables.sources.values()),
            settings=meaning_in(self.spark),
        )

    def _use(self, alias: str, made: _Analysed, found: Classified) -> SourceUse:
        source = made.tables.sources[alias]
        used = made.tables.columns[alias]
        inputs = {column for udf in self.definition.udfs for column in udf.inputs}
        return SourceUse(
            alias=alias,
            dataset_id=source.dataset_id,
            keys=tuple((shared.name, shared.columns[alias.lower()]) for shared in found.t),
            columns=used,
            computed=tuple(name for name in source.computed if name in used or name in inputs),
        )
