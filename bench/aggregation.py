"""A pandas function per group after a few rows changed, against computing all groups again.

Run: python bench/aggregation.py --rows 10000000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import floodmark as fm
from floodmark.engine.session import Session
from measuring import Figure, measured, seconds
from scoring import totals
from trips import ROWS_PER_FILE, trips

CHANGED = 1_000
ROWS_PER_GROUP = 100


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    rows, groups = args.rows, args.rows // ROWS_PER_GROUP
    with Session() as session:
        session.get()
        lake = fm.Lake(root, runtime=fm.Runtime(session=session, fold_at=None))
        dataset = lake.create("trips", key=["driver", "id"], lookup=["driver"])
        dataset.write(pa.RecordBatchReader.from_batches(*_driven(rows, groups)))
        step = fm.BatchTransform(totals, inputs=["trips"], outputs=["totals"], transform_keys=["driver"])
        first = seconds(lambda: step.run(lake))
        full = []
        for _ in range(args.repeats):
            step.reset(lake)
            full.append(seconds(lambda: step.run(lake)))
        some = []
        rng = np.random.default_rng(1)
        for number in range(args.repeats + 1):
            drivers = _change(lake, rng.choice(rows, CHANGED, replace=False), groups)
            done: list[fm.RunReport] = []
            took = seconds(lambda done=done: done.append(step.run(lake)))  # type: ignore[misc]
            assert done[0].keys == drivers, done
            some += [took] if number else []
        _right(lake)
    shape = f"{rows:,} rows, {groups:,} groups"
    few, all_ = median(some), median(full)
    return [
        Figure(
            "changed",
            f"{CHANGED:,} changed rows ÷ computing all again",
            few / all_,
            f"{few:.2f} s ÷ {all_:.2f} s; {shape}",
        ),
        Figure("again", "computing all again ÷ the first run", all_ / first, f"{all_:.2f} s ÷ {first:.2f} s"),
    ]


def _driven(rows: int, groups: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Trips with drivers. Each driver has many trips."""
    tables = [_with_drivers(trips(at, min(ROWS_PER_FILE, rows - at)), groups) for at in range(0, rows, ROWS_PER_FILE)]
    return tables[0].schema, [batch for table in tables for batch in table.to_batches()]


def _with_drivers(table: pa.Table, groups: int) -> pa.Table:
    drivers = table.column("id").to_numpy() % groups
    return table.select(["id", "distance", "fare"]).add_column(0, "driver", pa.array(drivers))


def _change(lake: fm.Lake, ids: np.ndarray, groups: int) -> int:
    """Change the fares of these trips; returns the number of their drivers."""
    keys = pa.table({"driver": ids % groups, "id": ids})
    rows = lake["trips"].get(keys)
    fares = pa.compute.add(rows.column("fare"), 1.0)
    assert lake["trips"].write(rows.set_column(rows.schema.get_field_index("fare"), "fare", fares)).changed == len(ids)
    return len(np.unique(ids % groups))


def _right(lake: fm.Lake) -> None:
    output = lake["totals"].to_arrow().sort_by("driver").to_pandas()
    expected = totals(lake["trips"].to_pandas()).sort_values("driver", ignore_index=True)
    assert (output[["driver", "trips", "longest"]] == expected[["driver", "trips", "longest"]]).all(axis=None)
    assert np.allclose(output["fares"], expected["fares"])


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, repeats=3)
