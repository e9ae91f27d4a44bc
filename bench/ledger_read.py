"""Read a ledger against plain Parquet files; read the newest records of a large one, and many small slices.

Run: python bench/ledger_read.py --rows 10000000 --slices 10000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from floodmark.ledger import parts
from measuring import Figure, alternate, measured
from trips import trips, write_files

SLICE_ROWS = 100
NEWEST = 1_000


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    rows, slices, repeats = args.rows, args.slices, args.repeats
    files = write_files(root / "in", rows)
    with Session() as session:
        spark = session.get()
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        large = lake.create("large", event_time="pickup_at")
        large.write(files)
        small = lake.create("small", event_time="pickup_at")
        small.write(trips(0, 100_000))
        spark.read.parquet(str(root / "in")).write.parquet(str(root / "plain"))
        sums = ["sum(id)", "max(pickup_at)", "sum(distance)", "sum(fare)", "sum(passengers)", "max(payment)"]

        def plain_scan() -> None:
            spark.read.parquet(str(root / "plain")).selectExpr(*sums).collect()

        def ledger_scan() -> None:
            large.read().selectExpr(*sums).collect()

        def newest_of(dataset: Dataset) -> None:
            last = dataset.last_offset or 0
            assert len(dataset.changes(since=last - NEWEST).collect()) == NEWEST

        for warm_up in (plain_scan, ledger_scan, lambda: newest_of(large), lambda: newest_of(small)):
            warm_up()
        plain, ours = alternate(plain_scan, ledger_scan, repeats)
        of_large, of_small = alternate(lambda: newest_of(large), lambda: newest_of(small), repeats)
    many, one = _small_slices(lake, slices, repeats)
    return [
        Figure(
            "scan", "sum over all columns ÷ plain scan", ours / plain, f"{ours:.2f} s ÷ {plain:.2f} s; {rows:,} rows"
        ),
        Figure(
            "newest",
            f"newest {NEWEST:,} changes of {rows:,} ÷ of 100,000",
            of_large / of_small,
            f"{of_large * 1000:.0f} ms ÷ {of_small * 1000:.0f} ms",
        ),
        Figure(
            "slices",
            f"to_arrow() of {slices:,} slices of {SLICE_ROWS} rows ÷ the same rows in one slice",
            many / one,
            f"{many:.2f} s ÷ {one:.3f} s; not folded; read_current measures it after a fold",
        ),
    ]


def _small_slices(lake: fm.Lake, slices: int, repeats: int) -> tuple[float, float]:
    table = trips(0, slices * SLICE_ROWS)
    one = lake.create("one")
    one.write(table)
    many = lake.create("many")
    with patch.object(parts, "PART_BYTES", table.nbytes // slices):
        many.write(table)
    assert many.snapshot().slices.num_rows >= slices

    def read(dataset: Dataset) -> pa.Table:
        return dataset.to_arrow()

    assert read(many).equals(read(one))
    return alternate(lambda: read(many), lambda: read(one), repeats)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=2_000_000, slices=1_000, repeats=5)
