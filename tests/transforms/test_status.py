"""Looking at a step: how far it is, what failed, and when which record was reached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import floodmark as fm
from transforms.worlds import JOIN, MAP, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(JOIN, tmp_path)


def test_step_that_never_ran_is_behind_by_everything(world: World) -> None:
    world.write("a", (1, 1), (2, 2))

    status = world.step().status(world.lake)

    assert [(i.name, i.position, i.head, i.behind) for i in status.inputs] == [("a", -1, 1, 2), ("b", -1, -1, 0)]
    assert (status.behind, status.keys, status.last_run, status.stale) == (2, 0, None, None)
    assert "out" not in world.lake


def test_status_counts_keys_that_failed_by_what_becomes_of_them(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((2,))
    report = world.run(on_error=fm.OnError.retry(attempts=2))
    world.write("b", (1, 1))

    status = world.step().status(world.lake)

    assert (status.failed, status.skipped, status.exhausted, status.behind) == (1, 0, 0, 1)
    assert status.last_run is not None
    assert (status.last_run.id, status.last_run.keys, status.last_run.failed) == (report.run, 2, 1)
    world.run(on_error=fm.OnError.retry(attempts=2))
    assert world.step().status(world.lake).exhausted == 1
    world.run(on_error=fm.OnError.retry(attempts=2))
    assert world.calls.keys() == []  # its attempts are used up


def test_errors_say_which_key_what_how_often_and_since_when(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((2,))
    world.run()
    world.run()

    [error] = world.step().errors(world.lake).to_pylist()

    assert (error["id"], error["type"], error["attempts"], error["state"]) == (
        2,
        "transforms.worlds.ToldToFail",
        2,
        "retry",
    )
    assert "told to fail" in error["message"]
    assert "ToldToFail" in error["traceback"]
    assert error["since"] <= error["last"]


def test_offsets_are_the_table_of_the_seed(tmp_path: Path) -> None:
    now = [10**18]
    runtime = fm.Runtime(clock=lambda: now[0])
    world = make_world(MAP, tmp_path, runtime)
    world.write("a", (1, 1))
    now[0] += 60 * 10**9
    world.write("a", (2, 2))
    step = world.step()
    assert step.offsets(world.lake).to_pylist() == [{"transform": "step", "input": "a", "offset": None, "time": None}]

    step.run(world.lake, max_records=1)
    assert step.offsets(world.lake).to_pylist() == [
        {"transform": "step", "input": "a", "offset": 0, "time": datetime.fromtimestamp(10**9, UTC)}
    ]
    step.run(world.lake)
    assert step.offsets(world.lake).to_pylist() == [
        {"transform": "step", "input": "a", "offset": 1, "time": datetime.fromtimestamp(10**9 + 60, UTC)}
    ]


def test_meta_has_a_row_for_every_key_that_was_processed(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((2,))
    report = world.run()

    meta = world.step().meta(world.lake)

    assert sorted(meta["is_success"].to_pylist()) == [False, True]
    assert set(meta["run"].to_pylist()) == {report.run}
