"""Run a Spark Declarative Pipeline over datasets, and again after new rows.

    python twice.py [FOLDER]

Needs `pip install floodmark 'pyspark[pipelines]'`. Prints the content of the tables and the dataset after each run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm

SPEC = """
name: twice
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

# Spark's default catalog ends with the process, and the next run would fail on tables that it does not know.
KEPT = ("--conf", "spark.sql.catalogImplementation=hive")


def main(folder: Path) -> None:
    """Write trips and run; write more and run; run again without new trips."""
    lake = prepared(folder)
    for trips in (range(8, 14), range(14, 17), range(0)):
        if trips:
            fares = [float(number) for number in trips]
            lake["trips"].write(pa.table({"id": pa.array(trips, pa.int64()), "fare": pa.array(fares, pa.float64())}))
        run(folder)
        large = sorted(lake["large"].to_arrow()["id"].to_pylist())
        print(f"{len(trips)} new: copied {table(folder, 'copied')}, expensive {table(folder, 'expensive')}")
        print(f"  large {large} in {len(commits(lake))} commits")


def prepared(folder: Path) -> fm.Lake:
    """Create a project of `spark-pipelines` with the definitions, and empty datasets."""
    (folder / "transformations").mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "flows.py", folder / "transformations")
    (folder / "spark-pipeline.yml").write_text(SPEC.format(storage=(folder / "storage").resolve().as_uri()))
    lake = fm.Lake(folder / "lake")
    lake.create("trips", schema={"id": "int64", "fare": "float64"})
    lake.create("large", schema={"id": "int64", "fare": "float64"})
    return lake


def run(folder: Path) -> None:
    """Run the pipeline to its end."""
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", *KEPT]
    # Spark's workers need the packages of this Python.
    given = {"LAKE": str((folder / "lake").resolve()), "PYSPARK_PYTHON": sys.executable}
    there = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **given, "PATH": there, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    # PySpark 4.3 exits with 1 after every run that uses a Python data source, because its client does not know the
    # last response ("UNKNOWN_RESPONSE … __python_accumulator__"). So check the events instead of the exit code.
    if "Run is COMPLETED" not in said:
        raise SystemExit(said[-5000:])


def table(folder: Path, name: str) -> list[int]:
    """The ids in the files of a Spark table."""
    files = sorted((folder / "spark-warehouse" / name).glob("*.parquet"))
    return sorted(number for file in files for number in pq.read_table(file).column("id").to_pylist())


def commits(lake: fm.Lake) -> set[object]:
    """The commit times of the dataset that the sink writes."""
    return set(lake["large"].changes_arrow().column("system_time").to_pylist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
