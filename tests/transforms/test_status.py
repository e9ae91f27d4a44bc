"""Looking at a step: how far it is, what failed, and when which record was reached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import floodmark as fm
from transforms.worlds import (
    AUXILIARY,
    CROSS,
    JOIN,
    JOIN_CROSS,
    LOOKUP,
    MAP,
    MOVING_GROUPS,
    ONE_TO_MANY,
    TWICE,
    Case,
    World,
    in_this_process,
    make_world,
)


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
    world.write("a", (2, 2), (1, 1), (3, 3))
    world.calls.fail((2,))
    first = world.run(run={"max_records": 2})
    second = world.run(run={"filters": {"id": 3}})
    world.delete("a", 1)
    world.run(run={"filters": {"id": 1}})

    meta = world.step().meta(world.lake)

    assert meta.column_names == ["id", "process_ts", "is_success", "run", "error"]
    assert meta["id"].to_pylist() == [1, 2, 3]  # the first is gone, and was processed
    assert meta["is_success"].to_pylist() == [True, False, True]
    assert meta["error"].to_pylist() == [None, "transforms.worlds.ToldToFail: told to fail for (2,)", None]
    assert meta["run"].to_pylist()[1:] == [first.run, second.run]


def test_meta_before_the_first_run_has_no_rows(world: World) -> None:
    assert world.step().meta(world.lake).num_rows == 0
    world.write("a", (1, 1))
    assert world.step().meta(world.lake).column_names[0] == "id"
    assert world.step().meta(world.lake).num_rows == 0


@pytest.mark.parametrize("case", [LOOKUP, CROSS, JOIN_CROSS, AUXILIARY, TWICE, MOVING_GROUPS, ONE_TO_MANY], ids=str)
def test_meta_has_the_keys_of_every_shape(case: Case, tmp_path: Path) -> None:
    world = make_world(case, tmp_path)
    for source in case.sources:
        rows = [tuple(i % 2 if name in {"cat", "g"} else i for name in source.columns) for i in range(3)]
        key = [list(source.columns).index(name) for name in source.key or ()]
        world.write(source.name, *{tuple(row[n] for n in key): row for row in rows}.values())
    world.run()
    processed = set(world.calls.keys())

    meta = world.step().meta(world.lake)

    assert {tuple(row[name] for name in case.keys) for row in meta.to_pylist()} == processed
    assert meta.num_rows == len(processed)


def test_meta_of_a_key_whose_records_were_purged_shows_null(world: World) -> None:
    world.write("a", (1, 1))
    world.run()
    world.delete("a", 1)
    world.run()
    world.write("a", (2, 2))
    world.lake["a"].purge(before=2)
    world.run()
    assert world.step().meta(world.lake)["id"].to_pylist() == [2, None]
