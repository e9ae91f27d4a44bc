"""The first run of a 1:1 pandas transform, against the same function by plain mapInPandas and a Parquet write.

Run: python bench/full_run.py --rows 10000000
"""

from __future__ import annotations

import argparse
from itertools import count
from pathlib import Path

from pyspark import cloudpickle

import floodmark as fm
import scoring
from floodmark.engine.session import Session
from measuring import Curve, Figure, Growth, alternate, measured
from scoring import SCHEMA, score, scores
from trips import write_files

SPARKS_CHUNK = 10_000
"""The default batch size of mapInPandas."""

DATAPIPE = 3_000
"""Rows per second of Datapipe 0.15 on PostgreSQL."""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    cloudpickle.register_pickle_by_value(scoring)  # like engine.run: plain Spark's workers cannot import it
    figures: list[Figure | Curve] = []
    growth = Growth("full_run", "The first run of a 1:1 pandas transform", "rows", "seconds")
    with Session() as session:
        for key, rows in (("tenth", args.rows // 10), ("whole", args.rows)):
            figures += _at(root / f"{rows}", key, rows, args.repeats, session, growth)
    return [*figures, growth.curve()]


def _at(root: Path, key: str, rows: int, repeats: int, session: Session, growth: Growth) -> list[Figure]:
    files = write_files(root / "in", rows)
    spark, numbers = session.get(), count()
    lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session))
    lake.create("trips", key="id", event_time="pickup_at").write(files)

    def ours(chunk_size: int = SPARKS_CHUNK) -> None:
        name = f"scores{next(numbers)}"
        done = fm.BatchTransform(score, inputs=["trips"], outputs=[name], chunk_size=chunk_size).run(lake)
        assert (done.keys, done.failed) == (rows, 0), done
        assert lake[name].count() == rows
        lake.drop(name)

    def plain() -> None:
        scored = spark.read.parquet(str(root / "in")).mapInPandas(scores, SCHEMA)
        scored.write.parquet(str(root / f"plain{next(numbers)}"))

    ours()
    plain()
    first, second = alternate(ours, plain, repeats)
    small, again = alternate(lambda: ours(1_000), plain, 1)
    growth.add("BatchTransform", rows, first)
    growth.add("plain mapInPandas and write", rows, second)
    rate = f"{rows / first:,.0f} rows/s (Datapipe on PostgreSQL: {DATAPIPE:,})"
    return [
        Figure(
            key,
            f"full run of {rows:,} rows ÷ plain mapInPandas and write",
            first / second,
            f"{first:.2f} s ÷ {second:.2f} s; {rate}; {SPARKS_CHUNK:,} rows a call in both",
        ),
        Figure(
            f"{key}.small_calls",
            f"full run of {rows:,} rows with 1,000 rows a call in ours ÷ the same",
            small / again,
            f"{small:.2f} s ÷ {again:.2f} s; {rows / small:,.0f} rows/s",
        ),
    ]


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=2_000_000, repeats=3)
