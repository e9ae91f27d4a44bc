"""Two runs of one step at once: one commits, the other finds it done, and nothing is there twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import CommitConflict
from transforms.oracle import assert_right
from transforms.racing import raced_world, store_of
from transforms.worlds import MAP, TWO_OUTPUTS, Case, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def _side_by_side(world: World, count: int = 2) -> list[Any]:
    """The reports, or errors, of runs that begin together."""
    begin = threading.Barrier(count)
    found: list[Any] = []

    def one() -> None:
        begin.wait()
        try:
            found.append(world.step().run(world.lake))
        except Exception as error:  # whatever it is, the test shows it
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_second_of_two_runs_waits_and_finds_everything_done(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", *((i, i) for i in range(10)))

    reports = _side_by_side(world)

    assert sorted(report.commits for report in reports) == [0, 1]
    assert all(count == 1 for count in world.calls.count().values())
    assert_right(world)


@pytest.mark.slow
@pytest.mark.parametrize("case", [MAP, TWO_OUTPUTS], ids=str)
def test_where_everyone_has_a_turn_one_commit_wins_and_nothing_is_there_twice(case: Case, tmp_path: Path) -> None:
    world = raced_world(case, tmp_path)
    world.write("a", *((i, i) for i in range(10)))

    reports = _side_by_side(world, 3)

    assert sum(report.commits for report in reports) == 1
    assert world.lake["out"].last_offset == 9  # one record per row: nothing was written twice
    assert_right(world)
    assert world.run().nothing


def test_run_that_lost_the_race_plans_again_from_what_there_is(tmp_path: Path) -> None:
    """Between the plan and the commit of one run another comes, with a newer head."""
    world = raced_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))

    def intrude() -> None:
        world.write("a", (2, 20), (3, 3))
        world.step().run(world.lake)

    with store_of(world).before_next_move(intrude):
        report = world.step().run(world.lake)

    assert report.nothing
    assert report.positions == world.heads()
    assert_right(world)


@pytest.mark.slow
def test_run_that_loses_every_race_says_so(tmp_path: Path) -> None:
    world = raced_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))
    versions = itertools.count(2)

    def another_version() -> None:
        fm.BatchTransform(_copied, ["a"], ["out"], name="step", version=f"{next(versions)}").run(world.lake)

    with store_of(world).before_every_move(another_version), pytest.raises(CommitConflict):
        world.run()


def _copied(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["v"]})


def test_reset_while_a_run_is_under_way_is_not_lost(tmp_path: Path) -> None:
    world = raced_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))

    with store_of(world).before_next_move(lambda: world.step().reset(world.lake)):
        world.run()

    assert sorted(set(world.calls.keys())) == [(1,), (2,)]
    assert_right(world)
