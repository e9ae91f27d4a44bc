"""Taking in a batch: the rows of one write, staged once, as buckets for the columns that the dataset has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.engine import run
from floodmark.ledger.conform import check_columns
from floodmark.ledger.incoming import Incoming, SparkFrame
from floodmark.ledger.layout import Layout
from floodmark.ledger.merge.batch import accepting, make_batch
from floodmark.ledger.merge.buckets import (
    Bucket,
    HeldBucket,
    SortedFile,
    SortTask,
    grouped,
    hold,
    sort_part,
    sort_spark,
)
from floodmark.ledger.merge.results import ResultBucket
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.parts import PART_BYTES
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.spark_types import arrow_schema
from floodmark.ledger.stage import Staged, here, incoming_schema, stage
from floodmark.ledger.strategy import Strategy

Runner = Callable[..., list[Any]]


@dataclass(frozen=True)
class Taken:
    """Buckets, and where their work is to be done: by Spark's tasks, or in this process."""

    buckets: Sequence[Bucket | ResultBucket]
    run: Runner

    @property
    def rows(self) -> int:
        return sum(bucket.rows for bucket in self.buckets)


@dataclass
class Intake:
    """One write's data. A stream can be read only once, so what is staged stays so, whatever the columns become."""

    data: Incoming
    objects: DatasetObjects
    runtime: Runtime
    folder: Path
    _staged: Staged | None = field(default=None, repr=False)

    def take(self, layout: Layout, strategy: Strategy) -> Taken:
        """The rows, checked and hashed: in memory if they are few, else in files by ranges of their keys' hashes."""
        if isinstance(self.data, SparkFrame) and not self.objects.is_local:
            # Where Spark reaches the store it stages as Parquet instead, in half the time of handing rows to Python.
            return self._divided(
                self._computed(layout, strategy), partial(run, session=self.runtime.session), layout, strategy
            )
        if self._staged is None:
            accepted = accepting(layout, strategy, incoming_schema(self.data))
            self._staged = stage(self.data, accepted, self.folder, self.objects, self.runtime)
        staged = self._staged
        if not staged.parts:
            return held(_no_rows(layout, strategy), layout, strategy)
        if len(staged.parts) == 1:
            return Taken([hold(staged.parts, layout, strategy)], here())
        tasks = [SortTask(part, layout, strategy, self.folder, self.objects) for part in staged.parts]
        return self._divided(staged.run(tasks, sort_part), staged.run, layout, strategy)

    def _computed(self, layout: Layout, strategy: Strategy) -> list[SortedFile]:
        assert isinstance(self.data, SparkFrame)
        frame = self.data.frame
        schema = arrow_schema(frame.schema)
        check_columns(schema, accepting(layout, strategy, schema), "the data")
        return sort_spark(frame, layout, strategy, self.folder, self.objects)

    def _divided(self, files: list[SortedFile], runner: Runner, layout: Layout, strategy: Strategy) -> Taken:
        if not files:
            return held(_no_rows(layout, strategy), layout, strategy)
        small = sum(f.size for f in files) <= PART_BYTES
        return Taken(grouped(files), here() if small else runner)


def held(table: pa.Table, layout: Layout, strategy: Strategy) -> Taken:
    """Rows in memory as one bucket."""
    return Taken([HeldBucket(make_batch(table, layout, strategy, "the data"))], here())


def _no_rows(layout: Layout, strategy: Strategy) -> pa.Table:
    table = pa.schema([f.with_nullable(True) for f in layout.data]).empty_table()
    return table.append_column(layout.vocab.op, pa.array([], pa.int32())) if strategy.takes_op else table
