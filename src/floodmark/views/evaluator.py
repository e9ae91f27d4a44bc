"""Evaluation of a view's query by Spark SQL, over some or all rows of its inputs.

Small data goes through Arrow in both directions and runs in few tasks; large data stays in Spark frames.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.engine.session import Session
from floodmark.engine.spark_launch import explain_dead_jvm
from floodmark.errors import InputMoved, QueryFailed
from floodmark.ledger.data_input import SparkData, TableData
from floodmark.ledger.schema import quote_name
from floodmark.ledger.spark_read import table_frame
from floodmark.views.analysis import COPY_COLUMN, OFFSET_COLUMN, ROW_COLUMN, Analysis
from floodmark.views.changed_rows import LocalRows, SparkRows

MEMORY_ROWS = 1 << 18
"""The most rows of inputs or of a result that are kept in memory."""

MEMORY_BYTES = 256 << 20

_ONE_TASK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.localRelationThreshold": "0",  # converting rows to objects is slow on the driver
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(MEMORY_ROWS),
}
"""For small data, each extra task and stage takes longer than the work."""


class IsolatedSession(Session):
    """A Spark session separate from the lake's: tables registered in it are not visible elsewhere.
    `settings` are the Spark settings that affect the meaning of queries; None means those of the lake's session. All
    other settings come from the lake's session.
    """

    def __init__(self, beside: Session, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._beside = beside
        self._meaning = settings
        self._isolated: Any = None

    def get(self) -> Any:
        from floodmark.views.spark_sql import isolated_session

        if self._isolated is None:
            self._isolated = isolated_session(self._beside.get(), self._meaning)
        return self._isolated

    @property
    def is_local(self) -> bool:
        """Whether its tasks run locally. The lake's session decides, and it is known before either session starts."""
        return self._beside.is_local

    def query(self, view: str, analysis: Analysis) -> Any:
        """The frame of a view's query over the registered tables.

        The query comes from the lake, so it is checked each time: before Spark resolves its names, and after.
        """
        from floodmark.ledger.spark_query import parse_select
        from floodmark.views.analyzer import named_in_errors
        from floodmark.views.classification import check_resolved
        from floodmark.views.spark_sql import resolved_query

        names = [use.alias for use in analysis.sources]
        with named_in_errors(view):
            parse_select(self.get(), analysis.query, names)
            frame = self.get().sql(analysis.query)
            check_resolved(resolved_query(frame).plan, names)
        return frame

    @property
    def has_plans(self) -> bool:
        """Whether the plans of queries can be reached; not so through Spark Connect."""
        return hasattr(self.get(), "_jsparkSession")

    def use_few_tasks(self) -> None:
        """Use as few tasks as possible from now on."""
        if self.get() is not self._beside.get():  # Spark Connect has one session, whose settings are the user's
            for name, value in _ONE_TASK.items():
                self.get().conf.set(name, value)

    def use_many_tasks(self) -> None:
        """Use as many tasks as the lake's session from now on."""
        if self.get() is not self._beside.get():
            for name in _ONE_TASK:
                if (usual := self._beside.get().conf.get(name, None)) is not None:
                    self.get().conf.set(name, usual)


@dataclass(frozen=True)
class Evaluator:
    """Runs the query of one view. `computed` names the columns of functions, which the query does not have."""

    view: str
    analysis: Analysis
    computed: frozenset[str]
    session: IsolatedSession

    @property
    def columns(self) -> list[str]:
        """The columns to select from the query's result."""
        left_out = {*self.computed, ROW_COLUMN, COPY_COLUMN}
        plain = [name for name in self.analysis.stored.names if name not in left_out]
        return [*plain, OFFSET_COLUMN] if self.computed and OFFSET_COLUMN not in plain else plain

    def evaluate(self, inputs: Mapping[str, LocalRows | SparkRows]) -> TableData | SparkData:
        """The query's result for these input rows, given by the inputs' names in the query."""
        spark = self.session.get()
        small = {alias: given.table for alias, given in inputs.items() if isinstance(given, LocalRows)}
        large = {alias: given.frame for alias, given in inputs.items() if isinstance(given, SparkRows)}
        with convert_refresh_errors(self.view):
            if large or _is_much(small.values()):
                handed = {alias: table_frame(table, spark) for alias, table in small.items()}
                return SparkData(self._answer(large | handed))
            self.session.use_few_tasks()
            frames = {alias: table_frame(table, spark) for alias, table in small.items()}
            if self.analysis.kind != "rows":
                # With one partition, Spark plans no shuffle for groups and joins.
                frames = {alias: frame.coalesce(1) for alias, frame in frames.items()}
            answer = self._answer(frames)
            if self.analysis.kind in ("rows", "groups"):  # at most as many rows as the inputs have
                return TableData(answer.toArrow())
            rows = answer.limit(MEMORY_ROWS + 1).toArrow()
            return TableData(rows) if rows.num_rows <= MEMORY_ROWS else SparkData(answer)

    def _answer(self, frames: Mapping[str, Any]) -> Any:
        from floodmark.views.spark_sql import register_table

        for alias, frame in frames.items():
            register_table(alias, frame)
        return self.complete(self.session.query(self.view, self.analysis))

    def complete(self, answer: Any) -> Any:
        """The rows of the query with the columns that the view stores, functions' columns excepted."""
        from floodmark.views.spark_sql import with_identity

        chosen = answer.select(*[answer[quote_name(name)] for name in self.columns])
        return with_identity(chosen, self.analysis.t) if self.analysis.identity else chosen


def _is_much(tables: Collection[pa.Table]) -> bool:
    return any([sum(t.num_rows for t in tables) > MEMORY_ROWS, sum(t.nbytes for t in tables) > MEMORY_BYTES])


def empty_result(columns: Iterable[str], stored: pa.Schema) -> TableData:
    """The result for inputs without rows, without calling Spark."""
    known = set(stored.names)
    fields = [stored.field(name) if name in known else pa.field(name, pa.int64()) for name in columns]
    return TableData(pa.schema(fields).empty_table())


_MISSING_FILE_TEXTS = ("FILE_NOT_EXIST", "PATH_NOT_FOUND", "FileNotFound", "ObjectNotFound", "UnreadableSlice")
"""Parts of the error texts, from Spark and from our tasks in it, for a missing file."""


@contextmanager
def convert_refresh_errors(view: str) -> Iterator[None]:
    """Raise `QueryFailed` if Spark fails, and `InputMoved` if an input was replaced while Spark read it."""
    try:
        with _silence_query_log(), explain_dead_jvm():
            yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):  # by name: neither is imported
            raise
        text = str(getattr(error, "java_exception", None) or error).strip()
        if any(missing in text for missing in _MISSING_FILE_TEXTS):
            raise InputMoved(
                f"the snapshot of the inputs of view {view!r} is no longer readable: {first_line(text)}",
                hint="refresh again: an input may have been replaced; if it fails again, run `floodmark verify`",
                input=view,
            ) from error
        raise QueryFailed(
            f"Spark could not run the query of view {view!r}: {first_line(text)}",
            hint="correct the data or the query (try_cast, try_divide, …) and refresh again; nothing was changed",
            view=view,
        ) from error


def first_line(text: str) -> str:
    """The first line of an error text, without Spark's codes."""
    return re.sub(r"^(\S*Exception: )?\[[A-Z_.]+\] ", "", text).partition(" SQLSTATE")[0].partition("\n")[0].strip()


@contextmanager
def _silence_query_log() -> Iterator[None]:
    """Silence the JSON that PySpark logs to stderr for each failed query; the caller gets the error."""
    if "pyspark" not in sys.modules:
        yield
        return
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
