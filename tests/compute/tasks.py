"""Single tasks of a backfill, run here and now, with a clock that the function itself moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyroaring import BitMap

import floodmark as fm
from floodmark.compute.backfill import work_of
from floodmark.compute.checkpoints.found import Looking
from floodmark.compute.functions.udf import Udf
from floodmark.compute.options import Options
from floodmark.compute.pinned import Pinned
from floodmark.compute.plan import FragmentPlan, Share
from floodmark.compute.survey import survey
from floodmark.compute.work import RangeTask, Sizes, Work
from floodmark.dataset import Dataset


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
    pinned: Pinned
    work: Work
    plan: FragmentPlan

    def task(self, *, minimum: int = 1, maximum: int = 1 << 20, start: int = 1, patience: float = 1e9) -> RangeTask:
        """Everything that is missing, as one task."""
        rows = self.plan.to_compute
        [target] = self.plan.targets
        end = self.plan.window.end
        return RangeTask(
            share=Share(0, 0, end, rows, whole=True),
            base=0,
            selection=self.pinned.records(0, end),
            sizes=Sizes(minimum, maximum, start, 10.0),
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
    pinned = dataset.parts.columns.pinned()
    column = pinned.catalog.column("y")
    plan = survey(pinned, column, Looking(dataset.checkpoints))
    return World(dataset, pinned, work_of(pinned, column, udf, Options()), plan.fragments[0])
