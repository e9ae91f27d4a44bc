"""A step that is there to be crashed, killed and raced: python -m faults.transform_runs FOLDER [OPTIONS]."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from transform.worlds import MAP as CASE
from transform.worlds import MAPPED, Calls, World

ROWS = 60
SECONDS = 0.01
OPTIONS: dict[str, Any] = {"chunk_size": 2}
WORKERS = 2


def slow(calls: Calls, factor: int = 10) -> Callable[[pa.Table], pa.Table]:
    """A function that takes its time for every key."""

    def work(a: pa.Table) -> pa.Table:
        calls.note([(key,) for key in a["id"].to_pylist()])
        time.sleep(SECONDS * a.num_rows)
        rows = [{"id": row["id"], "w": row["v"] * factor} for row in a.to_pylist()]
        return pa.Table.from_pylist(rows, MAPPED.schema)

    return work


def step(folder: Path, version: str = "1", **options: Any) -> fm.BatchTransform:
    function = slow(Calls(folder), {"1": 10, "2": 100}[version])
    return fm.BatchTransform(
        function, inputs=["a"], outputs=["out"], version=version, name="step", **{**OPTIONS, **options}
    )


def open_world(folder: Path, runtime: fm.Runtime | None = None) -> World:
    return World(CASE, fm.Lake(folder / "lake", runtime=runtime), Calls(folder))


def often() -> fm.Runtime:
    """A runtime in which every chunk is a checkpoint."""
    return fm.Runtime(checkpoint_seconds=0.0)


def run(folder: str, version: str = "1", how: str = "{}") -> dict[str, Any]:
    """Run the step once; what it reports."""
    report = step(Path(folder), version).run(open_world(Path(folder), often()).lake, **json.loads(how))
    return {"keys": report.keys, "called": report.called, "commits": report.commits, "nothing": report.nothing}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])), flush=True)
