"""Single tasks of a backfill, run here and now, with a clock that the function itself moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap

import floodmark as fm
from floodmark.columns.backfill import build_column_job
from floodmark.columns.checkpoints import CheckpointFinder
from floodmark.columns.plan import BackfillOptions, FragmentPlan, Share
from floodmark.columns.snapshot import ColumnSnapshot
from floodmark.columns.survey import plan_backfill
from floodmark.columns.work import CheckpointSizes, ColumnJob, RangeTask
from floodmark.dataset import Dataset
from floodmark.functions.udf import Udf


class Stopwatch:
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class World:
    """One dataset of numbers with one column, and the first fragment's plan."""

    dataset: Dataset
    column_snapshot: ColumnSnapshot
    work: ColumnJob
    plan: FragmentPlan

    def task(self, *, minimum: int = 1, maximum: int = 1 << 20, start: int = 1, patience: float = 1e9) -> RangeTask:
        """Everything that is missing, as one task."""
        rows = self.plan.to_compute
        [target] = self.plan.targets
        end = self.plan.window.end
        return RangeTask(
            share=Share(0, 0, end, rows, whole=True),
            base=0,
            selection=self.column_snapshot.records(0, end),
            sizes=CheckpointSizes(minimum, maximum, start, 10.0),
            call_rows=1 << 16,
            patience=patience,
            again=BitMap(),
            direct=(target.start, target.end),
        )


def world(folder: Path, udf: Udf, rows: int) -> World:
    """`rows` numbers 0, 1, 2, … in a column n, to which the udf is to be applied."""
    lake = fm.Lake(folder)
    dataset = lake["numbers"] if "numbers" in lake else lake.create("numbers")
    if dataset.schema is None:
        dataset.write(pa.table({"n": pa.array(range(rows), pa.int64())}))
        dataset.add_column("y", udf, ["n"])
    column_snapshot = dataset.parts.columns.snapshot()
    column = column_snapshot.catalog.column("y")
    plan = plan_backfill(column_snapshot, column, CheckpointFinder(dataset.checkpoints))
    return World(
        dataset, column_snapshot, build_column_job(column_snapshot, column, udf, BackfillOptions()), plan.fragments[0]
    )
