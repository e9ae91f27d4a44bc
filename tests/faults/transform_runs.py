"""A step that processes run, to be killed and raced."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from faults.mortal import NEVER, MortalFileSystem
from floodmark.storage.local import LocalStore
from transforms.worlds import MAP as CASE
from transforms.worlds import MAPPED, Calls, World, in_this_process
from waiting import wait_until

ROWS = 40
OPTIONS: dict[str, Any] = {"chunk_size": 2}
WORKERS = 2


def function(calls: Calls, factor: int) -> Callable[[pa.Table], pa.Table]:
    """A function whose calls wait, from a decided number of calls on, until they are killed: see `hold`."""

    def work(a: pa.Table) -> pa.Table:
        calls.note([(key,) for key in a["id"].to_pylist()])
        order = calls.folder / "hold"
        if order.exists() and len(calls.all()) >= int(order.read_text()):
            wait_until(lambda: not order.exists())
        rows = [{"id": row["id"], "w": row["v"] * factor} for row in a.to_pylist()]
        return pa.Table.from_pylist(rows, MAPPED.schema)

    return work


def hold(calls: Calls, count: int) -> None:
    """Calls wait from the call with this number on."""
    (calls.folder / "hold").write_text(str(count))


def let_go(calls: Calls) -> None:
    (calls.folder / "hold").unlink()


def step(folder: Path, version: str = "1", **options: Any) -> fm.BatchTransform:
    work = function(Calls(folder), {"1": 10, "2": 100}[version])
    return fm.BatchTransform(
        work, inputs=["a"], outputs=["out"], version=version, name="step", **{**OPTIONS, **options}
    )


def open_world(folder: Path, nth: int = NEVER) -> World:
    """A world in which every chunk is a checkpoint, and whose process is killed before its nth change of the disk."""
    store = LocalStore(folder / "lake", MortalFileSystem(nth))
    return World(CASE, fm.Lake(store, runtime=fm.Runtime(checkpoint_seconds=0.0)), Calls(folder))


def run(folder: Path, report: Path, version: str, how: dict[str, Any], with_workers: bool, nth: int = NEVER) -> None:
    """Run the step once and write down what it reports."""
    with nullcontext() if with_workers else in_this_process():
        done = step(folder, version).run(open_world(folder, nth).lake, **how)
    report.write_text(json.dumps({"keys": done.keys, "commits": done.commits, "nothing": done.nothing}))
