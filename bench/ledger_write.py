"""Write into a ledger, with hashes, offsets and chain, against plain Spark copying the same rows.

Run: python bench/ledger_write.py --rows 10000000
"""

from __future__ import annotations

import argparse
from itertools import count
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 -- the usual name

import floodmark as fm
from floodmark.engine.session import Session
from measuring import Figure, alternate, measured
from trips import write_files


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    rows, repeats = args.rows, args.repeats
    files = write_files(root / "in", rows)
    with Session() as session:
        spark = session.get()
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session))
        numbers = count()

        def plain_copy() -> None:
            spark.read.parquet(str(root / "in")).write.mode("overwrite").parquet(str(root / "plain"))

        def ledger_copy() -> None:
            name = f"files{next(numbers)}"
            lake.create(name, event_time="pickup_at").write(files)
            lake.drop(name)

        computed = spark.read.parquet(str(root / "in")).withColumn("tip", F.col("fare") * 0.1).drop("distance")

        def plain_frame() -> None:
            computed.write.mode("overwrite").parquet(str(root / "plain"))

        def ledger_frame() -> None:
            name = f"frame{next(numbers)}"
            lake.create(name, event_time="pickup_at").write(computed)
            lake.drop(name)

        for warm_up in (plain_copy, ledger_copy, plain_frame, ledger_frame):
            warm_up()
        plain, ours = alternate(plain_copy, ledger_copy, repeats)
        plain_df, ours_df = alternate(plain_frame, ledger_frame, repeats)
    shape = f"{rows:,} rows × 6 columns, medians of {repeats}"
    return [
        Figure(
            "files", "Parquet files into a ledger ÷ Spark copy", ours / plain, f"{ours:.2f} s ÷ {plain:.2f} s; {shape}"
        ),
        Figure(
            "frame",
            "computed frame into a ledger ÷ Spark write",
            ours_df / plain_df,
            f"{ours_df:.2f} s ÷ {plain_df:.2f} s; {shape}",
        ),
    ]


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=2_000_000, repeats=3)
