"""Time from the shell to the result of a first small Spark job: our short session against PySpark's default one.

Run: python bench/session_start.py --repeats 5
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from floodmark.engine import startup_archive
from measuring import Figure, alternate, measured

JOB = 'print(spark.range({rows}).selectExpr("sum(id)").collect()[0][0])'
OURS = (
    "from floodmark.engine.session import Session; from floodmark.engine.spark_launch import Profile; "
    "spark = Session(profile=Profile.SHORT).get(); " + JOB
)
THEIRS = "from pyspark.sql import SparkSession; spark = SparkSession.builder.getOrCreate(); " + JOB


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    """Run both in fresh processes, in turns."""
    print("making the start-up archive if it is missing (once per installation) …", file=sys.stderr, flush=True)
    archive = subprocess.run([sys.executable, "-m", startup_archive.__name__], stdout=subprocess.DEVNULL, check=False)
    ours, theirs = alternate(
        lambda: _first_result(OURS, args.rows, root),
        lambda: _first_result(THEIRS, args.rows, root),
        args.repeats,
    )
    detail = f"{ours:.2f} s ÷ {theirs:.2f} s, medians of {args.repeats}, start-up archive "
    detail += "used" if archive.returncode == 0 else "could not be made"
    return [Figure("first_result", "first result of a short session ÷ of a default one", ours / theirs, detail)]


def _first_result(code: str, rows: int, folder: Path) -> None:
    """Start Python, run the job, and wait for its end: the time includes the shutdown."""
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [sys.executable, "-c", code.format(rows=rows)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env=variables,
        check=True,
    ).stdout
    if int(answer) != rows * (rows - 1) // 2:
        raise SystemExit(f"wrong result: {answer}")


if __name__ == "__main__":
    measured(__doc__ or "", _measure, repeats=3, rows=1_000)
