"""Steps whose tasks run on Spark: results as by a plain loop, with keys that fail and keys that kill workers.

A death takes about a second, and Spark tries everything three times: so there are few keys.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.derive import commit
from floodmark.engine import rounds
from floodmark.engine.run import run_on_spark
from floodmark.engine.session import Session
from limits import set_limit

pytestmark = pytest.mark.spark

FAILS, DIES = 2, 0
KEYS = range(3)


@pytest.fixture
def lake(tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch) -> fm.Lake:
    """A lake for which nothing is too little for Spark."""
    set_limit(monkeypatch, "runner.little_rows", -1)
    set_limit(monkeypatch, "runner.light_tasks", -1)
    set_limit(monkeypatch, "derive.here_rows", -1)
    set_limit(monkeypatch, "derive.few_cores", 0)
    set_limit(monkeypatch, "derive.slice_bytes", 1)  # every row is a task
    monkeypatch.setattr(rounds, "run_on_spark", partial(run_on_spark, retries=0))
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    lake.create("a", key="id").write(pa.table({"id": KEYS, "v": KEYS}))
    return lake


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks merged results into an output, on Spark, commit by commit."""
    counts: list[int] = []

    def counted(tasks: Any, *rest: Any, **options: Any) -> Any:
        counts.append(len(tasks))
        return run_on_spark(tasks, *rest, **options)

    monkeypatch.setattr(commit, "run_on_spark", counted)
    return counts


def _misbehave(keys: list[int]) -> None:
    from pyspark import TaskContext

    assert TaskContext.get() is not None, "not in a task of Spark"
    if DIES in keys:
        os._exit(3)
    if FAILS in keys:
        raise ValueError(f"{FAILS} cannot be")


def tenfold(rows: pa.Table) -> pa.Table:
    _misbehave(rows["id"].to_pylist())
    return pa.table({"id": rows["id"], "w": [10 * v for v in rows["v"].to_pylist()]})


def mended(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": [10 * v for v in rows["v"].to_pylist()]})


def joined(left: pa.Table, right: pa.Table) -> pa.Table:
    _misbehave(left["id"].to_pylist())
    sums = dict.fromkeys(left["id"].to_pylist(), 0)
    for row in right.to_pylist():
        sums[row["id"]] += row["x"]
    return pa.table({"id": list(sums), "x": list(sums.values())})


def rows_of(lake: fm.Lake, name: str, value: str) -> dict[int, int]:
    table = lake[name].to_arrow()
    return dict(zip(table["id"].to_pylist(), table[value].to_pylist(), strict=True))


def errors_of(step: fm.BatchTransform, lake: fm.Lake) -> dict[int, str]:
    return {row["id"]: row["type"] for row in step.errors(lake).to_pylist()}


def test_map_with_keys_that_fail_and_that_kill_their_worker(lake: fm.Lake, derived: list[int]) -> None:
    step = fm.BatchTransform(tenfold, ["a"], ["o"], name="s", version="1", chunk_size=8)
    report = step.run(lake)
    assert (report.keys, report.failed) == (3, 2)
    assert rows_of(lake, "o", "w") == {1: 10}
    assert errors_of(step, lake) == {FAILS: "ValueError", DIES: "WorkerDied"}
    assert derived, "the results were not merged on Spark"

    lake["a"].write(pa.table({"id": [2, 24], "v": [7, 8]}))
    lake["a"].delete([{"id": 1}])
    step = fm.BatchTransform(mended, ["a"], ["o"], name="s", version="1")
    assert step.run(lake).failed == 0
    assert rows_of(lake, "o", "w") == {k: 10 * v for k, v in rows_of(lake, "a", "v").items()}
    assert errors_of(step, lake) == {}
    assert step.run(lake).nothing


def test_join_with_keys_that_fail_and_that_kill_their_worker(lake: fm.Lake, derived: list[int]) -> None:
    b = lake.create("b", key=["id", "n"])
    b.write(pa.table({"id": [1, 1, FAILS, DIES], "n": [1, 2, 1, 1], "x": [1, 2, 4, 5]}))
    step = fm.BatchTransform(joined, ["a", "b"], ["o"], transform_keys="id", name="j", version="1", chunk_size=8)
    report = step.run(lake)
    assert (report.keys, report.failed) == (3, 2)
    assert rows_of(lake, "o", "x") == {1: 3}
    assert errors_of(step, lake) == {FAILS: "ValueError", DIES: "WorkerDied"}
    assert derived

    b.delete([{"id": k, "n": 1} for k in (1, FAILS, DIES)])
    lake["a"].write(pa.table({"id": [7], "v": [7]}))
    lake["a"].delete([{"id": FAILS}, {"id": DIES}])
    assert step.run(lake).failed == 0
    assert rows_of(lake, "o", "x") == {1: 2, 7: 0}
    assert errors_of(step, lake) == {}
