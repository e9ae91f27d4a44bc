"""Tasks run away from the driver: without Spark, on Spark, after deaths and beside themselves, with the same result."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.columns.tasks import world

import floodmark as fm
from floodmark.columns.task import compute_share
from floodmark.dataset import Dataset
from floodmark.engine.session import Session
from limits import set_limit

ROWS = 400


@pytest.fixture(
    params=[
        pytest.param("processes", marks=pytest.mark.process),
        pytest.param("spark", marks=pytest.mark.spark),
    ]
)
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fm.Lake]:
    session = Session()
    if request.param == "spark":
        set_limit(monkeypatch, "runner.little_rows", 0)
        session = request.getfixturevalue("session")
    yield fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    assert request.param == "spark" or not session.started, "no JVM for a little work"


ON_PROCESSES = pytest.mark.parametrize("lake", [pytest.param("processes", marks=pytest.mark.process)], indirect=True)
"""For deaths of workers: what Spark does then is tested with the engine."""


def numbers(lake: fm.Lake, rows: int = ROWS) -> Dataset:
    dataset = lake.create("numbers")
    dataset.write(pa.table({"n": pa.array(range(rows), pa.int64())}))
    return dataset


def test_values_are_the_same_wherever_they_are_computed(lake: fm.Lake) -> None:
    @fm.udf(returns="int64")
    def twice(n: pa.Array) -> pa.Array:
        return pc.multiply(n, 2)

    dataset = numbers(lake)
    dataset.add_column("y", twice, fragment_rows=100)
    done = dataset.backfill("y", task_size=30)
    assert (done.computed, done.called) == (ROWS, ROWS)
    assert dataset.to_arrow().column("y").to_pylist() == [2 * n for n in range(ROWS)]


def test_a_function_never_runs_in_the_driver(lake: fm.Lake) -> None:
    @fm.udf(returns="int64")
    def process(n: int) -> int:
        return os.getpid()

    dataset = numbers(lake)
    dataset.add_column("y", process)
    dataset.backfill("y")
    assert os.getpid() not in dataset.to_arrow().column("y").to_pylist()


def test_a_class_is_made_once_per_worker_and_used_by_all_its_tasks(lake: fm.Lake, tmp_path: Path) -> None:
    made = str(tmp_path / "made")

    @fm.udf(returns="int64", version=made)
    class Model:
        def __init__(self) -> None:
            with open(made, "a") as log:  # noqa: PTH123  it runs elsewhere
                log.write(f"{os.getpid()}\n")

        def __call__(self, n: pa.Array) -> pa.Array:
            return pc.multiply(n, 2)

    dataset = numbers(lake)
    dataset.add_column("y", Model, ["n"], fragment_rows=100)
    dataset.backfill("y", task_size=20)
    workers = Path(made).read_text().split()
    assert len(workers) == len(set(workers))
    assert len(workers) <= 4


@ON_PROCESSES
def test_a_task_killed_by_the_memory_limit_is_done_with_fewer_rows(lake: fm.Lake, tmp_path: Path) -> None:
    deaths = str(tmp_path / "deaths")

    @fm.udf(returns="int64", version="1")
    def hungry(n: pa.Array) -> pa.Array:
        if len(n) > 15:
            with open(deaths, "a") as log:  # noqa: PTH123
                log.write(f"{len(n)}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return pc.multiply(n, 2)

    dataset = numbers(lake, 120)
    dataset.add_column("y", hungry)
    done = dataset.backfill("y", min_checkpoint_size=120, max_checkpoint_size=120)
    assert dataset.to_arrow().column("y").to_pylist() == [2 * n for n in range(120)]
    assert done.computed == 120
    assert 0 < len(Path(deaths).read_text().split()) <= 8


@ON_PROCESSES
def test_one_row_that_always_kills_its_worker_is_reported(lake: fm.Lake) -> None:
    @fm.udf(returns="int64", version="1")
    def deadly(n: int) -> int:
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    dataset = numbers(lake, 2)
    dataset.add_column("y", deadly)
    with pytest.raises(fm.FloodmarkError, match="to compute record 1 failed"):
        dataset.backfill("y")
    assert dataset.to_arrow().column("y").null_count == 2


def test_two_attempts_at_one_task_at_once_store_its_rows_once(tmp_path: Path) -> None:
    @fm.udf(returns="int64", version="1")
    def twice(n: pa.Array) -> pa.Array:
        return pc.multiply(n, 2)

    found = world(tmp_path, twice, 100)
    tasks = [found.task(minimum=7, maximum=7), found.task(minimum=10, maximum=10)]
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda task: compute_share(found.work, task), tasks))
    done = found.dataset.backfill("y", udf=twice)
    assert (done.computed, done.reused) == (0, 100)
    assert found.dataset.to_arrow().column("y").to_pylist() == [2 * n for n in range(100)]
