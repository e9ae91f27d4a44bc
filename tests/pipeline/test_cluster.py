"""A project whose floodmark.toml names a cluster runs there, unchanged, though a machine of it dies on the way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cluster import DRIVER, standalone_cluster
from floodmark import Lake
from market.world import NODES, Market, every_offset, found

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


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
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, (out[-3000:], err[-3000:])
    return {one["step"]: one for one in json.loads(out)["runs"]}


def is_dead(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_run_on_a_cluster_survives_the_death_of_a_worker_and_does_nothing_twice(tmp_path: Path):
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
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
