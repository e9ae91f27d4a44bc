"""The plans of views' changes, built once per definition and process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodmark.derive.positions import NO_POSITION
from floodmark.views.analysis import Analysis
from floodmark.views.catalyst import Catalyst, optimize
from floodmark.views.delta_plan import BuiltPlan, build_delta_plan
from floodmark.views.delta_rules import find_rules
from floodmark.views.delta_run import DeltaRun
from floodmark.views.evaluator import IsolatedSession
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.table_changes import WholeInstead

MOST_PLANS = 64
"""The most definitions whose plans are kept."""


_plans: dict[tuple[object, ...], BuiltPlan] = {}
_lock = threading.Lock()


def plan_of(analysis: Analysis, sources: Iterable[ViewInputSnapshot], session: IsolatedSession) -> BuiltPlan:
    """The plans of a view's changes; `WholeInstead` if this Spark has no rules for its plan."""
    spark: Any = session.get()
    if not hasattr(spark, "_jsparkSession"):
        raise WholeInstead("the plan of a query cannot be read through Spark Connect")
    tables = {source.alias: _columns(source) for source in sources}
    schemas = tuple((alias, str(schema)) for alias, schema in tables.items())
    identity = (id(spark._jvm), analysis.query, schemas, tuple(analysis.settings.items()))
    with _lock:
        known = _plans.get(identity)
    if known is not None:
        return known
    query = optimize(spark, analysis.query, tables)
    reason = find_rules(query.tree, {}).rule.reason
    if reason is not None:
        raise WholeInstead(reason)
    catalyst = Catalyst(spark)
    built = BuiltPlan(catalyst, build_delta_plan(catalyst, query))
    with _lock:
        while len(_plans) >= MOST_PLANS:
            _plans.pop(next(iter(_plans)))
        _plans[identity] = built
    return built


def delta_run(
    analysis: Analysis,
    sources: Sequence[ViewInputSnapshot],
    session: IsolatedSession,
    positions: Mapping[str, int] | None = None,
) -> DeltaRun:
    """A run of a view's plans over these inputs; changes are the records after the positions, by dataset id."""
    since = {source.dataset_id: NO_POSITION for source in sources} if positions is None else positions
    return DeltaRun.of(analysis, plan_of(analysis, sources, session), session, sources, since)


def _columns(source: ViewInputSnapshot) -> pa.Schema:
    layout = source.given.layout
    assert layout is not None  # a view with an input without columns is not refreshed
    return pa.schema([layout.read_schema.field(name) for name in source.columns])
