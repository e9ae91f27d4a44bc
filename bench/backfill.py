"""Backfill of a computed column: all rows, nothing to do, new rows; and reading it. Against Spark and lance.

Run: python bench/backfill.py --rows 10000000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyspark import cloudpickle

import floodmark as fm
import tipping
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from measuring import Figure, alternate, measured, seconds, without_spark
from tipping import SCHEMA, tip, tip_of, tips
from trips import trips, write_files

LANCE_ROWS = 1_000_000
LARGE_BATCH = 100_000
SUMS = ["sum(id)", "max(pickup_at)", "sum(distance)", "sum(fare)", "sum(passengers)", "max(payment)", "sum(tip)"]
NOTHING_TO_DO = """
import json, sys, time
import pyarrow.compute
import floodmark as fm
import floodmark.columns.backfill, floodmark.lake
from tipping import tip
began = time.perf_counter()
done = fm.Lake(sys.argv[1])["trips"].backfill("tip")
seconds = time.perf_counter() - began
assert (done.computed, done.reused, done.called) == (0, 0, 0), done
print(json.dumps({"seconds": seconds, "spark": "pyspark" in sys.modules}))
"""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    files = write_files(root / "in", args.rows)
    with Session() as session:
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        dataset = lake.create("trips", event_time="pickup_at")
        dataset.write(files)
        full, plain = _full(dataset, session, root, args.repeats)
        dataset.add_column("tip", tip)
        assert dataset.backfill("tip").computed == args.rows
        again = without_spark(NOTHING_TO_DO, root / "lake", args.repeats)
        reading = _reading(dataset, session, root, args.repeats)
        more = _more_rows(dataset, args.rows, args.repeats)
        against_lance = _against_lance(lake, root, args)
    return [
        Figure(
            "full",
            "backfill ÷ plain mapInArrow and write of the same column",
            full / plain,
            f"{full:.2f} s ÷ {plain:.2f} s; {args.rows:,} rows",
        ),
        Figure(
            "nothing",
            "nothing to do: seconds beyond the import",
            again,
            f"no Spark; median of {args.repeats} processes",
        ),
        Figure(
            "more",
            "backfill of 1 % new rows ÷ of all",
            more / full,
            f"{more * 1000:.0f} ms ÷ {full:.2f} s, session warm",
        ),
        *against_lance,
        *reading,
    ]


def _full(dataset: Dataset, session: Session, root: Path, repeats: int) -> tuple[float, float]:
    """Backfill a whole column, each time under a new name, against the same function in plain Spark."""
    spark, number = session.get(), count()
    names: list[str] = []
    cloudpickle.register_pickle_by_value(tipping)  # like engine.run: plain Spark's workers cannot import it

    def ours() -> None:
        names.append(f"tip{next(number)}")
        dataset.add_column(names[-1], tip)
        dataset.backfill(names[-1])

    def theirs() -> None:
        inputs = spark.read.parquet(str(root / "in")).select("distance", "fare")
        inputs.mapInArrow(tips, "tip double").write.parquet(str(root / f"plain{next(number)}"))

    ours()
    theirs()
    took = alternate(ours, theirs, repeats)
    for name in names:
        dataset.drop_column(name)
    return took


def _more_rows(dataset: Dataset, rows: int, repeats: int) -> float:
    """Add 1 % of the rows several times, and backfill each time."""
    added = rows // 100
    times = []
    for number in range(repeats + 1):
        dataset.write(trips(rows + number * added, added))
        times.append(seconds(lambda: dataset.backfill("tip")))
    table = dataset.to_arrow(columns=["distance", "fare", "tip"])
    assert table.column("tip").equals(tip(table.column("distance"), table.column("fare")))
    return median(times[1:])


def _against_lance(lake: fm.Lake, root: Path, args: argparse.Namespace) -> list[Figure]:
    """Compare with lance when both are warm: the session and its workers run, and each has added a column before."""
    import lance  # imported late: it warns about every process that starts after it

    rows = min(LANCE_ROWS, args.rows)
    table = trips(0, rows)
    dataset = lake.create("small", event_time="pickup_at")
    dataset.write(table)
    theirs = lance.write_dataset(table, str(root / "trips.lance"))
    number = count()

    def ours() -> None:
        name = f"tip{next(number)}"
        dataset.add_column(name, tip)
        dataset.backfill(name)

    def add_by_lance(batch_size: int | None) -> Callable[[], None]:
        def add() -> None:
            name = f"tip{next(number)}"
            schema = pa.schema([SCHEMA.field(0).with_name(name)])

            @lance.batch_udf(output_schema=schema, checkpoint_file=root / f"{name}.checkpoint")
            def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
                return tip_of(batch).rename_columns([name])

            theirs.add_columns(compute, read_columns=["distance", "fare"], batch_size=batch_size)

        return add

    figures = []
    ways = (("lance", None, "with a checkpoint file"), ("lance_large", LARGE_BATCH, "in large batches"))
    for key, batch_size, what in ways:
        lances = add_by_lance(batch_size)
        ours()
        lances()
        one, two = alternate(ours, lances, args.repeats)
        detail = f"{one:.3f} s ÷ {two:.3f} s; {rows:,} rows, {batch_size or 'its default number'} in a batch"
        figures.append(Figure(key, f"backfill ÷ lance's add_columns {what}", one / two, detail))
    return figures


def _reading(dataset: Dataset, session: Session, root: Path, repeats: int) -> list[Figure]:
    """Read all columns, including the computed one, against the same columns in one Parquet file."""
    spark, one = session.get(), root / "one.parquet"
    table = dataset.to_arrow()
    pq.write_table(table, one)
    assert table.num_columns == len(SUMS)

    def batches(source: Iterator[pa.RecordBatch]) -> None:
        assert sum(batch.num_rows for batch in source) == table.num_rows

    def sums(frame: Any) -> None:
        frame.selectExpr(*SUMS).collect()

    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "to_arrow": (dataset.to_arrow, lambda: pq.read_table(one)),
        "to_batches": (lambda: batches(dataset.to_batches()), lambda: batches(pads.dataset(one).to_batches())),
        "read": (lambda: sums(dataset.read()), lambda: sums(spark.read.parquet(str(one)))),
    }
    figures = []
    for name, (ours, plain) in ways.items():
        ours()
        plain()
        first, second = alternate(ours, plain, 2 * repeats + 1)
        detail = f"{first:.2f} s ÷ {second:.2f} s; {table.num_rows:,} rows, {table.num_columns} columns"
        what = f"{name}() with a computed column ÷ one plain file"
        figures.append(Figure(f"reading.{name}", what, first / second, detail))
    return figures


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=2_000_000, repeats=3)
