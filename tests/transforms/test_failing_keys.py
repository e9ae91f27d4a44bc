"""Failed keys keep their last good rows; a run in which too many newly tried keys fail commits only the failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadOption, RunFailed
from floodmark.provenance.replay import replay
from transforms.oracle import assert_right
from transforms.worlds import JOIN, MAP, ONE_TO_MANY, TWO_OUTPUTS, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three rows with results."""
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    return world


def _typo(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["vv"]})


def _broken(world: World, **options: Any) -> fm.BatchTransform:
    """The same step with another function, which fails for every key."""
    return fm.BatchTransform(_typo, ["a"], ["out"], name="step", **options)


def _errors(world: World, step: fm.BatchTransform | None = None) -> dict[int, tuple[int, bool]]:
    """By key of a failure: its attempts, and whether its rows are older ones."""
    found = (step or world.step()).errors(world.lake).to_pylist()
    return {row["id"]: (row["attempts"], row["stale"]) for row in found}


# Rows


def test_failed_key_keeps_its_rows_and_is_stale_until_it_succeeds(world: World) -> None:
    world.write("a", (1, 10), (2, 20), (4, 40), (5, 50))
    world.calls.fail((1,), (5,))

    report = world.run()

    assert (report.keys, report.failed, report.skipped, report.problem) == (4, 2, 0, "")
    assert (report.new, report.changed, report.retracted) == (1, 1, 0)
    assert world.shown("w") == {1: 10, 2: 200, 3: 30, 4: 400}
    assert _errors(world) == {1: (1, True), 5: (1, False)}
    status = world.step().status(world.lake)
    assert (status.failed, status.showing_older, status.behind) == (2, 1, 0)
    world.calls.behave()
    world.run()
    assert_right(world)
    assert world.step().status(world.lake).showing_older == 0


def test_failed_key_that_is_gone_loses_its_rows(world: World) -> None:
    world.write("a", (1, 10), (2, 20))
    world.calls.fail((1,))
    world.run()
    world.delete("a", 1)

    assert world.run().retracted == 1

    assert world.shown("w") == {2: 200, 3: 30}
    assert _errors(world) == {}


@pytest.mark.parametrize("on_error", ["skip", [fm.Skip(Exception)]], ids=["policy", "handler"])
def test_skip_is_not_a_failure_and_takes_the_rows_away(on_error: Any, world: World) -> None:
    world.write("a", (1, 10))
    world.calls.fail((1,))

    report = world.run(on_error=on_error)

    assert (report.failed, report.skipped, report.problem, report.retracted) == (1, 1, "", 1)
    assert world.shown("w") == {2: 20, 3: 30}
    assert world.positions() == world.heads()
    assert _errors(world) == {1: (1, False)}
    assert world.step(on_error=on_error).status(world.lake).skipped == 1


def test_all_outputs_keep_the_rows_of_a_failed_key(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 2), (2, 2))
    world.run()
    before = {name: [row for row in world.rows(name) if row["id"] == 1] for name in ("out", "many")}
    world.write("a", (1, 3), (2, 3))
    world.calls.fail((1,))

    world.run()

    assert {name: [row for row in world.rows(name) if row["id"] == 1] for name in ("out", "many")} == before


def test_failed_key_of_a_new_version_shows_the_rows_of_the_old_one(world: World) -> None:
    world.calls.fail((2,))

    report = world.run("2")

    assert (report.changed, report.failed, report.problem) == (2, 1, "")
    assert world.shown("w") == {1: 100, 2: 20, 3: 300}
    world.calls.behave()
    world.run("2")
    assert_right(world, 100)


# Runs that are refused


def test_typo_in_a_function_fails_the_step_and_changes_no_row(world: World) -> None:
    rows, positions = world.rows(), world.positions()
    world.write("a", (4, 4))
    step = _broken(world)

    with pytest.raises(RunFailed, match=r"step 'step' failed: all 4 newly tried keys failed; first error: .*vv") as why:
        step.run(world.lake)

    report = why.value.report
    assert (report.keys, report.failed, report.new, report.retracted) == (4, 4, 0, 0)
    assert world.rows() == rows
    assert world.positions() == positions
    assert _errors(world, step) == {1: (1, True), 2: (1, True), 3: (1, True), 4: (1, False)}
    status = step.status(world.lake)
    assert (status.keys, status.failed, status.showing_older, status.stale) == (4, 4, 3, "its function changed")
    assert status.last_run is not None
    assert (status.last_run.id, status.last_run.failed) == (report.run, 4)
    assert "all 4 newly tried keys failed" in status.last_run.problem
    assert world.lake["out"].verify().problems == ()


def test_function_that_is_repaired_computes_everything(world: World) -> None:
    _broken(world).run(world.lake, check=False)

    assert world.run("2").failed == 0

    assert_right(world, 100)
    assert _errors(world) == {}


def test_function_that_is_taken_back_has_nothing_to_do(world: World) -> None:
    _broken(world).run(world.lake, check=False)

    assert world.run().nothing

    assert world.step().status(world.lake).failed == 0
    world.write("a", (4, 4))
    world.run()
    assert world.calls.keys() == [(4,)]
    assert_right(world)


def test_attempts_of_refused_runs_are_counted_and_the_second_run_knows_them(world: World) -> None:
    step = _broken(world)
    assert step.run(world.lake, check=False).problem
    since = step.errors(world.lake)["since"].to_pylist()

    report = step.run(world.lake)  # it only retries known failures

    assert (report.failed, report.problem, report.retracted) == (3, "", 0)
    assert _errors(world, step) == dict.fromkeys((1, 2, 3), (2, True))
    assert step.errors(world.lake)["since"].to_pylist() == since
    assert world.shown("w") == {1: 10, 2: 20, 3: 30}
    assert step.status(world.lake).stale is None


def test_first_run_in_which_all_fail_is_refused_and_the_outputs_stay_its_own(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((1,), (2,))

    assert world.run().problem.startswith("all 2 newly tried keys failed")

    status = world.step().status(world.lake)
    assert (status.behind, status.keys, status.failed, status.showing_older) == (2, 2, 2, 0)
    assert world.lake["out"].schema is None
    world.calls.behave()
    world.run("2")
    assert_right(world, 100)


def test_failures_of_a_first_run_have_their_share_of_limited_runs(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((1,), (2,))
    world.run()
    world.write("a", *[(i, i) for i in range(10, 16)])

    world.run(run={"max_records": 3}, order_by="-id")

    assert len(world.shown("w")) == 2
    assert {key: attempts for key, (attempts, _) in _errors(world).items()} in ({1: 2, 2: 1}, {1: 1, 2: 2})


def test_limited_run_of_a_repaired_function_needs_no_whole_run_first(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", *[(i, 1) for i in range(4)])
    world.calls.fail(*[(i,) for i in range(4)])
    assert world.run().problem
    assert world.step().status(world.lake).stale is None
    world.calls.behave()

    assert world.run("2", run={"max_records": 1}).new == 2

    assert world.step("2").status(world.lake).failed == 0
    world.run("2")
    assert_right(world, 100)


def test_new_keys_that_all_fail_leave_positions_until_only_known_failures_are_left(world: World) -> None:
    positions = world.positions()
    world.write("a", (4, 4))
    world.calls.fail((4,))

    with pytest.raises(RunFailed, match="the only newly tried key failed"):
        world.step().run(world.lake)

    assert world.positions() == positions
    assert world.changelist(True) == world.changelist(False) == [(4,)]
    assert world.run().problem == ""
    assert world.positions() == world.heads()
    assert _errors(world) == {4: (2, False)}
    world.calls.behave()
    world.run()
    assert_right(world)


def test_keys_that_failed_before_do_not_count(world: World) -> None:
    world.write("a", (1, 10), (2, 20), (3, 30))
    world.calls.fail((1,), (2,))
    world.run()
    world.write("a", (1, 11), (2, 22), (3, 33))
    world.calls.fail((1,), (2,), (3,))

    assert world.run().problem.startswith("the only newly tried key failed")

    world.calls.fail((1,), (2,))
    assert world.run().problem == ""
    assert world.shown("w") == {1: 10, 2: 20, 3: 330}


@pytest.mark.parametrize(
    ("max_failed", "is_refused"), [(None, False), (0.5, False), (0.4, True), (0, True), (1, False)]
)
def test_share_of_failures_that_refuses_a_run(max_failed: float | None, is_refused: bool, tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path, max_failed=max_failed)
    world.write("a", *[(i, i) for i in range(4)])
    world.calls.fail((0,), (1,))

    report = world.run()

    assert bool(report.problem) == is_refused
    assert world.positions() == {"a": -1 if is_refused else 3}
    assert ("out" in world.lake and world.lake["out"].schema is not None) == (not is_refused)


def test_results_of_a_refused_run_are_used_by_the_next_one(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path, max_failed=0.1)
    world.write("a", *[(i, i) for i in range(9)])
    world.calls.fail((4,))
    assert "1 of 9 newly tried keys failed, more than max_failed=0.1 allows" in world.run().problem
    world.calls.behave()

    report = world.run()

    assert (report.reused, report.new) == (8, 9)
    assert world.calls.keys() == [(4,)]
    assert_right(world)


def test_all_keys_may_fail_if_max_failed_says_so(world: World) -> None:
    report = _broken(world, max_failed=1).run(world.lake)

    assert (report.failed, report.problem, report.retracted) == (3, "", 0)
    assert world.shown("w") == {1: 10, 2: 20, 3: 30}


def test_waves_that_were_committed_stay_and_waves_that_fail_wait_for_later_ones(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path, max_failed=0.5)
    world.write("a", *[(i, i) for i in range(6)])
    world.calls.fail((0,), (3,), (4,), (5,))

    report = world.run(run={"commit_every": 1})  # 0 waits for 1; then 3, 4, 5 are too many

    assert "4 of 6 newly tried keys failed" in report.problem
    assert world.shown("w") == {1: 10, 2: 20}
    assert world.positions() == {"a": 3}
    assert sorted(_errors(world)) == [0, 3, 4, 5]


def test_requested_keys_that_all_fail_are_refused(world: World) -> None:
    world.calls.fail((1,))

    with pytest.raises(RunFailed):
        world.step().run_changelist(world.lake, {"a": [1]})

    assert world.shown("w")[1] == 10
    assert world.step().retry(world.lake).problem == ""  # it tries only keys that had failed before


def test_skipped_keys_do_not_refuse_a_run(world: World) -> None:
    report = _broken(world, on_error=[fm.Skip(KeyError)]).run(world.lake)

    assert (report.failed, report.skipped, report.problem, report.retracted) == (3, 3, "", 3)


def test_last_good_rows_are_those_of_the_last_success_after_many_failures(tmp_path: Path) -> None:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1), (2, 1))
    world.run()
    good = world.shown("z")[1]
    world.calls.fail((1,))
    for value in (2, 3, 4):
        world.write("b", (1, value), (2, value))
        world.run()
        assert world.shown("z")[1] == good
    world.calls.behave()
    world.run()
    assert_right(world)


def test_key_that_returned_no_rows_keeps_none(tmp_path: Path) -> None:
    world = make_world(ONE_TO_MANY, tmp_path)
    world.write("a", (1, 3), (2, 3))
    world.run()
    world.write("a", (1, 0))
    world.run()
    world.write("a", (1, 2), (2, 1))
    world.calls.fail((1,))
    world.run()
    assert {row["id"] for row in world.rows()} == {2}
    assert _errors(world) == {1: (1, False)}


@pytest.mark.parametrize("given", [-0.1, 1.5, True, "some", float("nan")])
def test_share_that_is_no_share_is_an_error(given: Any) -> None:
    with pytest.raises(BadOption, match="max_failed"):
        fm.BatchTransform(_typo, ["a"], ["out"], max_failed=given)


def test_replay_of_refused_runs_and_of_failed_keys_finds_nothing_wrong(world: World) -> None:
    world.write("a", (1, 10), (2, 20))
    world.calls.fail((1,))
    world.run()
    world.write("a", (4, 4))
    world.calls.fail((4,), (1,))
    assert world.run().problem
    _broken(world).run(world.lake, check=False)
    world.calls.behave()

    found = list(replay(world.lake, ["out"], [world.step()]))

    assert {one.outcome for one in found} == {"same"}, found


def test_replay_after_a_first_run_that_was_refused_finds_nothing_wrong(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((1,), (2,))
    assert world.run().problem
    world.calls.behave()
    assert {one.outcome for one in replay(world.lake, ["out"], [world.step()])} <= {"same"}
    world.run()
    assert {one.outcome for one in replay(world.lake, ["out"], [world.step()])} == {"same"}


def test_failed_key_keeps_its_rows_in_a_dataset_that_users_write_to(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.lake.create("out", key="id", schema={"id": "int64", "w": "int64"}).write(pa.table({"id": [100], "w": [1]}))
    world.write("a", (1, 1), (2, 2))
    world.calls.fail((1,), (2,))
    assert world.run().problem
    world.calls.behave()
    world.run()
    world.write("a", (1, 5), (2, 6))
    world.calls.fail((1,))
    world.run()
    assert world.shown("w") == {1: 10, 2: 60, 100: 1}
    world.calls.fail((1,), (2,))
    assert world.run("2").problem
    assert world.shown("w") == {1: 10, 2: 60, 100: 1}
    world.calls.behave()
    world.run("2")
    assert world.shown("w") == {1: 500, 2: 600, 100: 1}
    assert world.run("2").nothing
    assert world.lake["out"].verify().problems == ()
