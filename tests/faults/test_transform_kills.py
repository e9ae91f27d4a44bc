"""A run that is killed at any moment, and runs of one step at once: nothing is lost, little is done twice."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from faults.mortal import ended, killed, reaches, started
from faults.transform_runs import OPTIONS, ROWS, WORKERS, hold, let_go, open_world, run, step
from profiles import IN_FULL, seeds
from transforms.oracle import assert_right
from transforms.worlds import World

pytestmark = pytest.mark.process

KILLS = 2  # per seed


class Runner:
    """A process that runs the step, by default without worker processes."""

    def __init__(self, folder: Path, name: str = "run", version: str = "1", **how: Any) -> None:
        self._report = folder / f"report-{name}"
        self._report.unlink(missing_ok=True)
        self._work = started(run, folder, self._report, version, how, how.pop("with_workers", False))

    def __enter__(self) -> Runner:
        self.process: BaseProcess = self._work.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._work.__exit__(*error)

    def result(self) -> dict[str, Any]:
        assert ended(self.process) == 0
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found

    def kill(self) -> None:
        self.process.kill()
        ended(self.process)


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


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("how", [{"commit_every": 10}, *([{}] if IN_FULL else [])], ids=str)
def test_run_that_is_killed_again_and_again_loses_a_chunk_per_worker(how, seed, world, tmp_path):
    """Each process is killed while its workers call the function."""
    chance = random.Random(seed)
    for _ in range(KILLS):
        count = len(world.calls.all()) + chance.randint(3, ROWS // OPTIONS["chunk_size"] // KILLS)
        hold(world.calls, count)
        with Runner(tmp_path, with_workers=True, **how) as runner:
            reaches(runner.process, lambda count=count: len(world.calls.all()) >= count)
            runner.kill()
        let_go(world.calls)
        assert_sound(world, 10)
    with Runner(tmp_path, **how) as runner:
        runner.result()
    assert_right(world)
    again = len(world.calls.keys()) - ROWS
    assert again <= KILLS * WORKERS * OPTIONS["chunk_size"] * 2, f"{again} keys were computed twice"
    world.calls.forget()
    with Runner(tmp_path) as runner:
        assert runner.result()["nothing"]
    assert world.calls.keys() == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_new_version_that_is_killed_shows_the_old_output_until_it_is_done(seed, world, tmp_path):
    chance = random.Random(seed)
    with Runner(tmp_path) as runner:
        runner.result()
    world.calls.forget()
    for _ in range(KILLS):
        killed(run, tmp_path, tmp_path / "report", "2", {}, False, chance.randrange(20, 80))
        assert_sound(world, 10)
        assert world.lake["out"].count() == ROWS
    with Runner(tmp_path, version="2") as runner:
        runner.result()
    assert_right(world, 100)
    assert len(world.calls.keys()) - ROWS <= KILLS * OPTIONS["chunk_size"]


def test_two_runs_of_one_step_at_once_do_everything_once(world, tmp_path):
    with Runner(tmp_path, "one") as one, Runner(tmp_path, "other") as other:
        reports = [one.result(), other.result()]
    assert_right(world)
    assert world.calls.count() == {(i,): 1 for i in range(ROWS)}
    assert sum(report["commits"] for report in reports) == 1
    assert sorted(report["keys"] for report in reports) == [0, ROWS]


@pytest.mark.soak
@pytest.mark.parametrize("number", seeds(1))
def test_three_runs_at_once_among_writes_end_right(number, world, tmp_path):
    with ExitStack() as running:
        how: list[dict[str, Any]] = [{"commit_every": 7}, {}, {}]
        runners = [running.enter_context(Runner(tmp_path, str(n), **each)) for n, each in enumerate(how)]
        world.write("a", *[(i, i + number % 100 + 1) for i in range(0, ROWS, 5)])
        world.delete("a", 0)
        for runner in runners:
            runner.result()
    for dataset in world.lake:
        assert dataset.verify().problems == ()
    step(tmp_path).run(world.lake)
    assert_right(world)
    assert step(tmp_path).run(world.lake).nothing
