"""A pipeline of Spark's own over datasets, run, and run again after more rows were written.

    python twice.py [FOLDER]

needs `pip install floodmark 'pyspark[pipelines]'`. It says after each run what the tables and the dataset hold.
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

# Spark's own catalog is forgotten with its process: the next run would find tables in its way that it does not know.
KEPT = ("--conf", "spark.sql.catalogImplementation=hive")


def main(folder: Path) -> None:
    """Write some trips and run; write more and run; and run once more with nothing new."""
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
    """The definitions in a project of `spark-pipelines`, and empty datasets."""
    (folder / "transformations").mkdir(parents=True)
    shutil.copy(Path(__file__).parent / "flows.py", folder / "transformations")
    (folder / "spark-pipeline.yml").write_text(SPEC.format(storage=(folder / "storage").resolve().as_uri()))
    lake = fm.Lake(folder / "lake")
    lake.create("trips", schema={"id": "int64", "fare": "float64"})
    lake.create("large", schema={"id": "int64", "fare": "float64"})
    return lake


def run(folder: Path) -> None:
    """Run the pipeline, and wait for it."""
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", *KEPT]
    # Spark's workers need the packages of this Python.
    given = {"LAKE": str((folder / "lake").resolve()), "PYSPARK_PYTHON": sys.executable}
    there = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **given, "PATH": there, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    # PySpark 4.3 ends with the code 1 after every run that has used a Python data source, whosever it is: its client
    # does not know the last thing that it is sent ("UNKNOWN_RESPONSE … __python_accumulator__"). The events are right.
    if "Run is COMPLETED" not in said:
        raise SystemExit(said[-5000:])


def table(folder: Path, name: str) -> list[int]:
    """The ids that a table of Spark's holds, in the files that are there."""
    files = sorted((folder / "spark-warehouse" / name).glob("*.parquet"))
    return sorted(number for file in files for number in pq.read_table(file).column("id").to_pylist())


def commits(lake: fm.Lake) -> set[object]:
    """The times at which records came into the dataset that the sink writes."""
    return set(lake["large"].changes_arrow().column("system_time").to_pylist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
