"""Evaluating the query of a view by Spark SQL, over some rows of its sources or over all of them.

Little data goes in and comes out through Arrow, with no more tasks than it needs; much of it stays a Spark frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.engine import Session
from floodmark.ledger.incoming import Frame, SparkFrame
from floodmark.transform.views.analysed.analysis import COPY, OFFSET, ROW, Analysis
from floodmark.transform.views.defined.definition import quoted
from floodmark.transform.views.failing import failing
from floodmark.transform.views.local_frame import local_frame
from floodmark.transform.views.reading.rows import Large, Small

HELD_ROWS = 1 << 18
"""So many rows of sources, and of answers, are held in memory."""

HELD_BYTES = 256 << 20

_ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.localRelationThreshold": "0",  # rows as objects would take the driver longest of all
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(HELD_ROWS),
}
"""For little data: every task and every stage more takes longer than the work."""


class IsolatedSession(Session):
    """A session beside the lake's: tables can be registered in it, and nobody else sees them.

    It has `settings` for what queries mean, or else those of the lake's session, and the latter for all the rest.
    """

    def __init__(self, beside: Session, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._beside = beside
        self._meaning = settings
        self._isolated: Any = None

    def get(self) -> Any:
        from floodmark.transform.views.analysed.settings import isolated

        if self._isolated is None:
            self._isolated = isolated(self._beside.get(), self._meaning)
        return self._isolated

    @property
    def is_local(self) -> bool:
        """Where its tasks run: that is up to the lake's session, and known before either is started."""
        return self._beside.is_local

    def expect_little(self) -> None:
        """Use as few tasks as can be from now on."""
        if self.get() is not self._beside.get():  # Spark Connect has but one, whose settings are not ours
            for name, value in _ONE_TASK.items():
                self.get().conf.set(name, value)


@dataclass(frozen=True)
class Evaluator:
    """Runs the query of one view. `computed` are the columns that functions compute: the query has none of them."""

    view: str
    analysis: Analysis
    computed: frozenset[str]
    session: IsolatedSession

    @property
    def columns(self) -> list[str]:
        """What is taken from the answer to the query."""
        plain = [name for name in self.analysis.stored.names if name not in {*self.computed, ROW, COPY}]
        return [*plain, OFFSET] if self.computed and OFFSET not in plain else plain

    def evaluate(self, inputs: Mapping[str, Small | Large]) -> Frame | SparkFrame:
        """The rows that the query gives for these rows of its sources, by their names in the query."""
        spark = self.session.get()
        small = {alias: given.table for alias, given in inputs.items() if isinstance(given, Small)}
        large = {alias: given.frame for alias, given in inputs.items() if isinstance(given, Large)}
        with failing(self.view):
            if large or _is_much(small.values()):
                handed = {alias: local_frame(table, spark) for alias, table in small.items()}
                return SparkFrame(self._answer(large | handed))
            self.session.expect_little()
            frames = {alias: local_frame(table, spark) for alias, table in small.items()}
            if self.analysis.kind != "rows":
                # In one part, so that Spark knows that nothing has to be moved for groups and joins.
                frames = {alias: frame.coalesce(1) for alias, frame in frames.items()}
            answer = self._answer(frames)
            if self.analysis.kind in ("rows", "groups"):  # not more rows than there were
                return Frame(answer.toArrow())
            held = answer.limit(HELD_ROWS + 1).toArrow()
            return Frame(held) if held.num_rows <= HELD_ROWS else SparkFrame(answer)

    def _answer(self, frames: Mapping[str, Any]) -> Any:
        from floodmark.transform.views.analysed.identity import register, with_identity

        for alias, frame in frames.items():
            register(alias, frame)
        answer = self.session.get().sql(self.analysis.query)
        chosen = answer.select(*[answer[quoted(name)] for name in self.columns])
        return with_identity(chosen, self.analysis.t) if self.analysis.identity else chosen


def _is_much(tables: Collection[pa.Table]) -> bool:
    return any([sum(t.num_rows for t in tables) > HELD_ROWS, sum(t.nbytes for t in tables) > HELD_BYTES])


def empty_answer(columns: Iterable[str], stored: pa.Schema) -> Frame:
    """The answer of a query that was given no rows at all: nobody has to be asked."""
    fields = [stored.field(name) if name in stored.names else pa.field(name, pa.int64()) for name in columns]
    return Frame(pa.schema(fields).empty_table())
