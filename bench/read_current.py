"""Read the live rows of a dataset with dead records, before and after a fold, against plain files of only these rows.

Run: python bench/read_current.py --rows 10000000 --slices 10000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from floodmark.ledger import parts
from measuring import Curve, Figure, Growth, alternate, measured
from trips import trips, write_files

PERCENTS = (0, 1, 9)
SLICE_ROWS = 100
SUMS = ["sum(id)", "max(pickup_at)", "sum(distance)", "sum(fare)", "sum(passengers)", "max(payment)"]


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    files = write_files(root / "in", args.rows)
    with Session() as session:
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        figures: list[Figure | Curve] = []
        title = f"Reading the live rows of {args.rows:,}"
        growth = Growth("read_current", title, "dead records, %", "÷ plain scan of the live rows")
        for percent in PERCENTS:
            unfolded, folded = _case(lake, root, files, args, percent)
            growth.add("before fold()", percent, unfolded.value)
            growth.add("after fold()", percent, folded.value)
            figures += [unfolded, folded]
        return [*figures, *_small_slices(lake, args), growth.curve()]


def _case(
    lake: fm.Lake, root: Path, files: list[Path], args: argparse.Namespace, percent: int
) -> tuple[Figure, Figure]:
    """Load all rows, then change random rows until `percent` of all records are dead."""
    dataset = lake.create(f"trips{percent}", key=["id"], event_time="pickup_at")
    dataset.write(files)
    # Changing one row adds two records and leaves two dead: the old row, and the record that retracts it.
    changed = percent * args.rows // (2 * (100 - percent))
    if changed:
        ids = np.random.default_rng(percent).choice(args.rows, changed, replace=False)
        live = dataset.to_arrow().filter(pa.array(np.isin(np.arange(args.rows), ids)))
        longer = pc.add(live.column("distance"), 1.0)
        dataset.write(live.set_column(live.schema.get_field_index("distance"), "distance", longer))
    dead = 100 * (1 - dataset.count() / ((dataset.last_offset or 0) + 1))
    assert abs(dead - percent) < 0.5, dead
    spark = dataset.read().sparkSession
    plain = str(root / f"plain{percent}")
    dataset.read().write.parquet(plain)

    def scan_plain() -> list[Any]:
        rows: list[Any] = spark.read.parquet(plain).selectExpr(*SUMS).collect()
        return rows

    def scan_ours() -> list[Any]:
        rows: list[Any] = dataset.read().selectExpr(*SUMS).collect()
        return rows

    def figure(key: str, what: str) -> Figure:
        _same(scan_plain(), scan_ours())
        one, two = alternate(scan_plain, scan_ours, args.repeats)
        return Figure(key, what, two / one, f"{two:.2f} s ÷ {one:.2f} s; {dataset.count():,} live rows")

    unfolded = figure(f"lying.{percent}", f"{percent} % dead ÷ plain scan of the live rows")
    dataset.fold()
    return unfolded, figure(f"folded.{percent}", f"{percent} % dead, after fold() ÷ plain scan of the live rows")


def _same(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first[0], second[0], strict=True):
        assert a == b or abs(a - b) <= 1e-9 * abs(a), (a, b)


def _small_slices(lake: fm.Lake, args: argparse.Namespace) -> list[Figure]:
    """Many small slices after a fold, against the same rows in one slice."""
    table = trips(0, args.slices * SLICE_ROWS)
    one, many = lake.create("one"), lake.create("many")
    one.write(table)
    with patch.object(parts, "PART_BYTES", table.nbytes // args.slices):
        many.write(table)
    assert many.snapshot().slices.num_rows >= args.slices
    many.fold()
    assert many.to_arrow().equals(one.to_arrow())

    def through_spark(dataset: Dataset) -> Callable[[], Any]:
        return lambda: dataset.read().selectExpr(*SUMS).collect()

    def through_arrow(dataset: Dataset) -> Callable[[], Any]:
        return dataset.to_arrow

    figures = []
    for name, read in (("Arrow", through_arrow), ("Spark", through_spark)):
        for dataset in (many, one):
            read(dataset)()
        slow, quick = alternate(read(many), read(one), args.repeats)
        what = f"{args.slices:,} slices of {SLICE_ROWS} rows after fold() ÷ one file, through {name}"
        figures.append(Figure(f"slices.{name.lower()}", what, slow / quick, f"{slow:.3f} s ÷ {quick:.3f} s"))
    return figures


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=2_000_000, slices=1_000, repeats=7)
