"""Calls of a function that costs something each time are large enough, and few, on any number of cores."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from columns.cost_shapes import SHAPES
from columns.virtual_cores import Cost, Machine, VirtualCores, best_fixed_size
from floodmark.columns.backfill import build_column_job
from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoints import CheckpointFinder
from floodmark.columns.function_values import compute_function_values
from floodmark.columns.plan import BackfillOptions
from floodmark.columns.rounds import CALL_ROWS, compute_missing
from floodmark.columns.survey import plan_backfill
from floodmark.engine.progress import SilentProgress


def twice(machine: Machine) -> fm.Udf:
    """A function whose calls cost time of a machine."""

    def function(n: pa.Array) -> pa.Array:
        machine.call(n[0].as_py(), len(n))
        return pc.multiply(n, 2)

    return fm.udf(returns="int64", version="1")(function)


def backfilled(folder: Path, cost: Cost, rows: int, cores: int) -> Machine:
    """A machine on which a column of so many rows was computed."""
    machine = Machine(cores, cost)
    udf = twice(machine)
    dataset = fm.Lake(folder).create("numbers")
    dataset.write(pa.table({"n": pa.array(range(rows), pa.int64())}))
    dataset.add_column("y", udf, ["n"])
    column_snapshot = dataset.parts.columns.snapshot()
    column = column_snapshot.catalog.column("y")
    plan = plan_backfill(column_snapshot, column, CheckpointFinder(dataset.checkpoints))
    options = BackfillOptions()
    work = build_column_job(column_snapshot, column, udf, options)
    done = compute_missing(work, column_snapshot, plan.fragments, options, VirtualCores(machine), SilentProgress())
    assert sum(one.computed for one in done) == sum(map(sum, machine.calls)) == rows
    return machine


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize(("fixed", "per_row", "rows"), [(0.7, 1e-4, 100), (0.3, 0.0, 3000)])
def test_few_rows_take_at_most_three_calls_per_core(fixed, per_row, rows, cores, tmp_path: Path) -> None:
    machine = backfilled(tmp_path, lambda first, n, cold: fixed + per_row * n, rows, cores)
    assert max(map(len, machine.calls)) <= 3
    assert machine.end <= 3 * fixed + per_row * rows + 1e-6


@pytest.mark.parametrize(("fixed", "per_row", "rows"), [(0.7, 1e-4, 100), (0.3, 0.0, 3000)])
def test_functions_of_views_take_at_most_three_calls_per_core_too(fixed, per_row, rows, tmp_path: Path) -> None:
    machine = Machine(2, lambda first, n, cold: fixed + per_row * n)
    lake = fm.Lake(tmp_path)
    dataset, view = lake.create("numbers"), lake.create("view")
    dataset.write(pa.table({"n": pa.array(range(rows), pa.int64())}))
    got = compute_function_values(
        dataset.parts.columns.snapshot(),
        pa.field("y", pa.int64()),
        twice(machine),
        ["n"],
        np.arange(rows),
        ColumnObjects(view.snapshot().objects),
        BackfillOptions(),
        VirtualCores(machine),
        SilentProgress(),
    )
    assert got.computed == rows
    assert max(map(len, machine.calls)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_any_shape_of_cost_takes_little_longer_than_with_the_best_fixed_size(name, cores, tmp_path: Path) -> None:
    shape = SHAPES[name]
    best, size = best_fixed_size(lambda: shape.cost(random.Random(1)), shape.rows, cores, CALL_ROWS)
    machine = backfilled(tmp_path, shape.cost(random.Random(1)), shape.rows, cores)
    assert best >= 30
    assert machine.end <= 1.5 * best, (best, size, machine.calls)
