"""`floodmark run` with nothing to do on a pipeline of many steps: time of the whole process, and no JVM.

The pipeline has a source of files, chains of transforms, a table, computed columns and views. The first run does all
the work, with Spark. The benchmark measures the same command again.

Run: python bench/pipeline_idle.py --steps 20 --repeats 9
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as csv

from commands import START, check_witness, typical, witnessed
from measuring import Curve, Figure, Growth, measured
from trips import trips

VIEWS = 2
COLUMNS = 3
FIXED = 1 + 1 + VIEWS + COLUMNS  # with the source and the table
PROJECT = """
import pyarrow as pa
import pyarrow.compute as pc

from floodmark import BatchTransform, DatasetSpec, Pipeline, Source

trips = DatasetSpec("trips", key="id")


def longer(before: pa.Table) -> pa.Table:
    return pa.table({"id": before["id"], "distance": pc.add(before["distance"], 1.0)})


def step(number):
    before = f"longer{number - 1}" if number % 4 else trips  # chains of four
    return BatchTransform(longer, inputs=[before], outputs=[f"longer{number}"], name=f"longer_{number}")


pipeline = Pipeline([trips, Source(trips, files="data/*.csv"), *map(step, range(TRANSFORMS))])


@pipeline.table(inputs=[trips], outputs=[DatasetSpec("total", key="what")])
def add_up(trips: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "fares": [pc.sum(trips["fare"]).as_py()]})


@pipeline.column(trips, returns="float64")
def tip(fare: pa.Array) -> pa.Array:
    return pc.multiply(fare, 0.1)


@pipeline.column(trips, returns="float64")
def per_km(fare: pa.Array, distance: pa.Array) -> pa.Array:
    return pc.divide(fare, pc.add(distance, 1.0))


@pipeline.column(trips, returns="string")
def band(fare: float) -> str:
    return "high" if fare > 20 else "low"


@pipeline.view()
def by_payment():
    return "select payment, count(*) trips, sum(fare) fares from trips group by payment"


@pipeline.view()
def cards():
    return "select id, fare from trips where payment = 'card'"
"""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    check_witness(root)
    growth = Growth("pipeline_idle", "floodmark run with nothing to do", "steps", "seconds")
    for steps in sorted({max(args.steps // 2, FIXED + 1), args.steps}):
        project = _project(root / f"steps{steps}", steps)
        took = typical(["run"], project, args.repeats)
        growth.add("wall", steps, took.wall)
        growth.add("CPU", steps, took.cpu)
    help_only = typical(["--help"], project, args.repeats)
    seen = witnessed(["run"], project)
    assert not seen.modules, seen
    many = f"{args.steps} steps, medians of {args.repeats} processes"
    return [
        Figure(
            "seconds", f"run of {args.steps} steps with nothing to do, seconds", took.wall, f"whole process; {many}"
        ),
        Figure("cpu", "the same, CPU seconds", took.cpu, f"--help alone takes {help_only.cpu:.2f} s"),
        Figure(
            "processes",
            "processes that it starts, including a JVM",
            len(seen.started),
            "; ".join(seen.started) or "by Python's audit events; no Spark module is imported",
        ),
        growth.curve(),
    ]


def _project(folder: Path, steps: int) -> Path:
    """A project with an up-to-date lake."""
    (folder / "data").mkdir(parents=True)
    (folder / "pipeline.py").write_text(f"TRANSFORMS = {steps - FIXED}\n{PROJECT}")
    (folder / "floodmark.toml").write_text('lake = "lake"\n')
    csv.write_csv(trips(0, 1_000), folder / "data" / "trips.csv")
    for arguments in (["init"], ["run"]):
        subprocess.run([sys.executable, "-c", START, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    again = subprocess.run([sys.executable, "-c", START, "run", "--json"], cwd=folder, check=True, capture_output=True)
    states = [(one["step"], one["state"]) for one in json.loads(again.stdout)["runs"]]
    assert len(states) == steps, states
    assert all(state == "nothing" for _, state in states), states
    return folder


if __name__ == "__main__":
    measured(__doc__ or "", _measure, steps=20, repeats=5)
