"""Analysing a view's query over the datasets of a lake: which ones it names, and what it comes to over these.

What a query comes to is found in `analysing`, from Spark's plan of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from floodmark.ledger.errors import BadData, BadName, BadQuery, UnknownDataset
from floodmark.ledger.names import find_source
from floodmark.transform.lakes import LakeLike
from floodmark.transform.views.analysed import spark_sql
from floodmark.transform.views.analysed.analysing import analyse
from floodmark.transform.views.analysed.analysis import Analysis, SourceSchema, schemas_digest
from floodmark.transform.views.analysed.settings import isolated
from floodmark.transform.views.defined.definition import Definition
from floodmark.transform.views.errors import BadView
from floodmark.transform.views.reading.sources import schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SourceSchema", "analyse", "analyse_in", "named_in_errors", "schemas_digest", "table_names"]


def analyse_in(
    lake: LakeLike,
    definition: Definition,
    *,
    view: str | None = None,
    known: Analysis | None = None,
    settings: Mapping[str, str] | None = None,
) -> Analysis:
    """Analyse a view's query over the datasets of a lake. Starts Spark.

    `view` is the view's own name, which the query must not read. The names that `known` has are those of the datasets
    that it had then, whatever they are called now. The query means what it means with these settings; None are those
    of the lake's session.
    """
    with named_in_errors(view):
        return _analysed(lake, definition, view, known, settings)


@contextmanager
def named_in_errors(view: str | None) -> Iterator[None]:
    """Say which view it is in whatever is said against its query."""
    try:
        yield
    except (BadView, BadQuery, BadData, BadName, UnknownDataset) as error:
        if view is None or "view" in error.facts:
            raise
        facts = {**error.facts, "view": view}
        raise type(error)(f"view {view!r}: {error.message}", hint=error.hint, **facts) from error


def _analysed(
    lake: LakeLike,
    definition: Definition,
    view: str | None,
    known: Analysis | None,
    settings: Mapping[str, str] | None,
) -> Analysis:
    spark = isolated(lake.runtime.session.get(), settings)
    if not hasattr(spark, "_jsparkSession"):
        raise BadView(
            "the plan of a query cannot be read through Spark Connect",
            hint="declare the view with a session that is not remote; it can be read with any",
        )
    found: dict[str, SourceSchema] = {}
    for alias, dataset in _datasets(lake, definition, spark, known).items():
        if view is not None and dataset.name.lower() == view.lower():
            raise BadView(f"view {view!r} would be made from itself", hint="name another dataset", view=view)
        found[alias] = schema_of(dataset)
    _check_once(found)
    try:
        return analyse(spark, definition, found)
    except BadQuery as error:
        meant = [column.name for column in definition.udfs if f"`{column.name}`" in error.message]
        if not meant:
            raise
        hint = f"a function computes {meant[0]!r}, after the query: use it in a view on this one"
        raise BadQuery(error.message, hint=hint, **error.facts) from error


def _check_once(sources: Mapping[str, SourceSchema]) -> None:
    """Refuse two names for one dataset: one that it had, and one that it has now."""
    seen: dict[str, str] = {}
    for alias, source in sources.items():
        if (other := seen.setdefault(source.dataset_id, alias)) != alias:
            raise BadView(
                f"{other!r} and {alias!r} are one dataset in this query", hint=f"write {source.name!r} for both"
            )


def _datasets(lake: LakeLike, definition: Definition, spark: SparkSession, known: Analysis | None) -> dict[str, Any]:
    uses = () if known is None else known.sources
    called = {use.alias.lower(): find_source(lake.store, use.dataset_id, use.alias) for use in uses}
    named = _named(definition, spark)
    found: dict[str, Any] = {}
    for alias in named.tables:
        try:
            found[alias] = lake[called.get(alias.lower()) or alias]
        except (UnknownDataset, BadName):
            if alias.lower() not in named.defined:
                raise
    return found


def table_names(definition: Definition, spark: SparkSession) -> tuple[str, ...]:
    """The tables that a query names, as it spells them, without the names that it defines itself."""
    named = _named(definition, spark)
    return tuple(name for name in named.tables if name.lower() not in named.defined)


def _named(definition: Definition, spark: SparkSession) -> spark_sql.Named:
    if definition.source is not None:
        return spark_sql.Named((definition.source,), frozenset())
    return spark_sql.named(spark_sql.parsed(spark, definition.query))
