"""The plans of views' changes, built once per definition and process, and runs of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from floodmark.derive.positions import NO_POSITION
from floodmark.views.analysis import Analysis
from floodmark.views.catalyst import Catalyst, OptimizedQuery, optimize
from floodmark.views.delta_plan import build_delta_plan
from floodmark.views.delta_rules import find_rules
from floodmark.views.delta_run import DeltaRun, TooManyGroups
from floodmark.views.evaluator import IsolatedSession
from floodmark.views.operator_state import StateLost
from floodmark.views.plan_terms import BuiltPlan
from floodmark.views.sources import ViewInputSnapshot
from floodmark.views.table_changes import WholeInstead

MOST_PLANS = 64
"""The most definitions whose plans are kept."""


class _Cache:
    """Values by definition; the oldest ones are dropped."""

    def __init__(self) -> None:
        self._values: dict[tuple[object, ...], Any] = {}
        self._lock = threading.Lock()

    def get(self, identity: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """The value with this identity; made if there is none."""
        with self._lock:
            known = self._values.get(identity)
        if known is not None:
            return known
        made = make()
        with self._lock:
            while len(self._values) >= MOST_PLANS:
                self._values.pop(next(iter(self._values)))
            self._values[identity] = made
        return made


_queries, _plans = _Cache(), _Cache()


def plan_of(
    analysis: Analysis,
    sources: Iterable[ViewInputSnapshot],
    session: IsolatedSession,
    without: frozenset[str] = frozenset(),
) -> BuiltPlan:
    """The plans of a view's changes; `WholeInstead` if this Spark has no rules for its plan.

    `without` are the names of states that cannot be kept.
    """
    spark: Any = session.get()
    if not hasattr(spark, "_jsparkSession"):
        raise WholeInstead("the plan of a query cannot be read through Spark Connect")
    tables = {source.alias: _columns(source) for source in sources}
    schemas = tuple((alias, str(schema)) for alias, schema in tables.items())
    identity = (spark.sparkContext.applicationId, analysis.query, schemas, tuple(analysis.settings.items()))
    query: OptimizedQuery = _queries.get(identity, lambda: optimize(spark, analysis.query, tables))
    reason = find_rules(query.tree, {}).rule.reason
    if reason is not None:
        raise WholeInstead(reason)
    is_checked = str(spark.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"  # else sums may overflow

    def build() -> BuiltPlan:
        catalyst = Catalyst(spark)
        plan = build_delta_plan(catalyst, query, lambda name: is_checked and name not in without)
        return BuiltPlan(catalyst, plan)

    built: BuiltPlan = _plans.get((*identity, without), build)
    return built


def delta_run(
    analysis: Analysis,
    sources: Sequence[ViewInputSnapshot],
    session: IsolatedSession,
    positions: Mapping[str, int],
    states: Mapping[str, str | None],
    load: Callable[[str], pa.Table],
) -> DeltaRun:
    """A run of a view's plans over these inputs. Changes are the records after the positions, by dataset id.

    `states` are the states that the last refresh stored, None for one that cannot be kept; `load` reads one.
    """
    without = frozenset(name for name, file in states.items() if file is None)
    built = plan_of(analysis, sources, session, without)
    if any(state.name not in states for state in built.plan.states):
        raise StateLost("the plan of its query has changed since the last refresh")
    return DeltaRun.of(analysis, built, session, sources, positions, load)


def run_whole(
    analysis: Analysis,
    sources: Sequence[ViewInputSnapshot],
    session: IsolatedSession,
    without: frozenset[str] = frozenset(),
) -> tuple[Any, DeltaRun, frozenset[str]]:
    """The whole result of a view's query as a frame, with the states of its run, and those that cannot be kept."""
    nothing = {source.dataset_id: NO_POSITION for source in sources}
    while True:
        built = plan_of(analysis, sources, session, without)
        run = DeltaRun.of(analysis, built, session, sources, nothing, _no_state)
        try:
            return run.whole(), run, without
        except TooManyGroups as state:
            without |= {str(state)}


def _no_state(name: str) -> pa.Table:
    raise StateLost(f"state {name} is computed")


def _columns(source: ViewInputSnapshot) -> pa.Schema:
    layout = source.given.layout
    assert layout is not None  # a view with an input without columns is not refreshed
    return pa.schema([layout.read_schema.field(name) for name in source.columns])
