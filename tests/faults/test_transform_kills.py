"""A run that is killed at any moment, and runs of one step at once: nothing is lost, little is done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faults.test_backfill_kills import _session
from faults.transform_runs import OPTIONS, ROWS, WORKERS, open_world, step
from transform.oracle import assert_right
from transform.worlds import World, until

KILLS = 4


class Runner:
    """A process that runs the step, with worker processes of its own."""

    def __init__(self, folder: Path, version: str = "1", **how: Any) -> None:
        tests = str(Path(__file__).parents[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.transform_runs", str(folder), version, json.dumps(how)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill_all()
        self._process.communicate(timeout=60)

    def result(self) -> dict[str, Any]:
        out, err = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def kill(self) -> None:
        """Kill the driver alone; its workers have to notice."""
        self._process.kill()
        self._process.wait(60)
        until(lambda: not self._left())

    def kill_all(self) -> None:
        """Kill the driver and its workers in the same moment, as the end of a machine would."""
        if self._left():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        until(lambda: not self._left())

    def _left(self) -> bool:
        return any(_session(path) == self._process.pid for path in Path("/proc").glob("[0-9]*/stat"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = open_world(tmp_path)
    world.case.create(world.lake)
    world.write("a", *[(i, i) for i in range(ROWS)])
    return world


def assert_sound(world: World, *factors: int) -> None:
    """What is shown is right as far as it goes, of one version, and the chains are whole."""
    for dataset in world.lake:
        assert dataset.verify().problems == ()
    if "out" in world.lake and world.lake["out"].schema is not None:
        rows = world.shown("w")
        assert any(rows == {i: i * factor for i in rows} for factor in factors)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"commit_every": 10}], ids=["one commit", "several commits"])
def test_run_that_is_killed_again_and_again_loses_a_chunk_per_worker(how, world, tmp_path):
    chance = random.Random(2026)
    for number in range(KILLS):
        with Runner(tmp_path, **how) as runner:
            world.calls.await_calls(len(world.calls.all()) + 3 + chance.randrange(ROWS // KILLS // 2))
            time.sleep(chance.uniform(0, 0.05))
            if number % 2:
                runner.kill()
            else:
                runner.kill_all()
        assert_sound(world, 10)
    assert len(set(world.calls.keys())) > ROWS // 4, "the kills came before anything was done"
    with Runner(tmp_path, **how) as runner:
        runner.result()
    assert_right(world)
    again = len(world.calls.keys()) - ROWS
    assert again <= KILLS * WORKERS * OPTIONS["chunk_size"] * 2, f"{again} keys were computed twice"
    world.calls.forget()
    with Runner(tmp_path) as runner:
        assert runner.result()["nothing"]
    assert world.calls.keys() == []


@pytest.mark.slow
def test_new_version_that_is_killed_shows_the_old_output_until_it_is_done(world, tmp_path):
    with Runner(tmp_path) as runner:
        runner.result()
    world.calls.forget()
    for count in (3, 9):
        with Runner(tmp_path, "2") as runner:
            world.calls.await_calls(count)
            runner.kill_all()
        assert_sound(world, 10)
        assert world.lake["out"].count() == ROWS
    with Runner(tmp_path, "2") as runner:
        runner.result()
    assert_right(world, 100)
    assert len(world.calls.keys()) - ROWS <= 2 * WORKERS * OPTIONS["chunk_size"] * 2


@pytest.mark.slow
def test_two_runs_of_one_step_at_once_do_everything_once(world, tmp_path):
    with Runner(tmp_path) as one, Runner(tmp_path) as other:
        reports = [one.result(), other.result()]
    assert_right(world)
    assert world.calls.count() == {(i,): 1 for i in range(ROWS)}
    assert sum(report["commits"] for report in reports) == 1
    assert sorted(report["keys"] for report in reports) == [0, ROWS]


@pytest.mark.slow
def test_three_runs_at_once_among_writes_end_right(world, tmp_path):
    for number in range(3):
        with Runner(tmp_path, commit_every=7) as one, Runner(tmp_path) as two, Runner(tmp_path) as three:
            world.write("a", *[(i, i + number + 1) for i in range(number, ROWS, 5)])
            world.delete("a", number)
            for runner in (one, two, three):
                runner.result()
        for dataset in world.lake:
            assert dataset.verify().problems == ()
    step(tmp_path).run(world.lake)
    assert_right(world)
    assert step(tmp_path).run(world.lake).nothing
