"""Tasks, a lake and a project on one real cluster, whose last test kills a worker."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.standalone import DRIVER, Cluster, standalone_cluster
from floodmark import Lake
from market.world import NODES, Market, every_offset, found
from waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, which leave no process behind."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder, workers=2) as started:
        yield started
    running = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in running


def run_program(name: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    """What a program printed as JSON; it runs in a process of its own, as a driver does."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.soak(only=True)
def test_tasks_run_on_both_workers(cluster: Cluster, tmp_path: Path):
    here, meeting = tmp_path / "driver", tmp_path / "meeting"
    here.mkdir()
    meeting.mkdir()
    settings = json.dumps({**DRIVER, "spark.master": cluster.url})
    result = run_program("tasks_program.py", settings, str(meeting), cwd=here)
    assert [number for number, _ in result["seen"]] == [0, 1]
    assert {cluster.worker_of(Path(folder)) for _, folder in result["seen"]} == {0, 1}
    assert result["refused"] == 5
    assert list(here.iterdir()) == []


@pytest.mark.soak(only=True)
def test_two_workers_write_and_read_a_lake(cluster: Cluster, tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    settings = {**DRIVER, "spark.master": cluster.url, "spark.sql.shuffle.partitions": "2"}
    result = run_program("lake_program.py", str(shared), json.dumps(settings), cwd=tmp_path)
    assert result["intervals"] == [[0, 1000], [1000, 2500]]
    assert result["slices"] > 3
    total = sum(range(2500))
    assert result["native"] == result["tasks"] == [total, 2 * total, 2500]
    assert result["changes"] == list(range(1991, 2500))
    assert result["keyed"] == [[1000, 0, 0], [500, 250, 250], [1000, 250, 250]]
    assert result["people"] == [total, 2 * total + sum(range(501, 1000, 2)), 2500]
    assert (result["ok"], result["people_ok"], result["staging"]) == (True, True, [])


@contextlib.contextmanager
def floodmark(market: Market, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of a user in the folder of the project; it ends with the block."""
    command = [sys.executable, "-m", "floodmark.cli", *arguments]
    pipe = subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name != "FLOODMARK_LAKE"}
    with subprocess.Popen(command, cwd=market.folder, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer(process: subprocess.Popen[str]) -> dict[str, dict]:
    """What each node came to, as --json says it."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (out[-3000:], err[-3000:])
    return {one["step"]: one for one in json.loads(out)["runs"]}


def is_dead(pid: int) -> bool:
    """Whether a process has ended, even if its exit code was not read yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_run_on_a_cluster_survives_the_death_of_a_worker_and_does_nothing_twice(cluster: Cluster, tmp_path: Path):
    market = Market.make(tmp_path / "market", spark={**DRIVER, "spark.master": cluster.url})
    Lake(market.folder / "lake").store.local_path("names").mkdir(parents=True)
    market.first_days()
    market.close_gate()
    with floodmark(market, "run", "--json") as running:
        pid, folder = market.who_waits(running)
        before = Lake(market.folder / "lake")["priced"].count()
        cluster.kill(cluster.worker_of(folder))
        assert is_dead(pid)
        market.open_gate()
        first = answer(running)
    assert [worker.poll() is None for worker in cluster.workers].count(True) == 1
    assert 0 < before < 600, "the worker died midway"
    assert {name: one["state"] for name, one in first.items()} == dict.fromkeys(NODES, "done")

    lake = Lake(market.folder / "lake")
    assert found(lake) == market.expected()
    assert every_offset(lake["orders"]) == every_offset(lake["priced"]) == list(range(600))
    assert every_offset(lake["totals"]) == list(range(5))
    assert all(dataset.verify().ok for dataset in lake)
    heads = {dataset.name: dataset.head for dataset in lake}

    with floodmark(market, "run", "--json") as running:
        assert {one["state"] for one in answer(running).values()} == {"nothing"}
    assert {dataset.name: dataset.head for dataset in lake} == heads
