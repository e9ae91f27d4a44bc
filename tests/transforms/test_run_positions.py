"""Positions: filtered runs move none, limited ones and waves as far as they may, and chains at the end of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.chain.events import ExecuteTransform
from transforms.oracle import assert_right
from transforms.worlds import AGGREGATION, JOIN, MAP, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Four blocks of two records each."""
    world = make_world(MAP, tmp_path)
    for first in (1, 3, 5, 7):
        world.write("a", (first, first), (first + 1, first + 1))
    return world


def _on_chain(world: World) -> list[int | None]:
    """How far the chain says the inputs were read, transaction by transaction."""
    events = [block.event for block in world.lake["out"].log()]
    return [e.query_inputs[0].last_offset for e in reversed(events) if isinstance(e, ExecuteTransform)]


def test_filtered_run_moves_no_position_and_marks_its_keys(world: World) -> None:
    world.run(run={"filters": {"id": [1, 8]}})
    assert world.positions() == {"a": -1}
    assert world.shown("w") == {1: 10, 8: 80}

    world.run()

    assert sorted(world.calls.keys()) == [(i,) for i in range(2, 8)]
    assert world.positions() == {"a": 7}
    assert_right(world)


def test_declared_filters_work_with_those_of_a_run(world: World) -> None:
    world.run(filters={"id": [1, 2, 3]}, run={"filters": {"id": [3, 4]}})

    assert world.calls.keys() == [(3,)]


def test_limited_run_takes_the_earliest_changes_and_moves_as_far_as_all_is_done(world: World) -> None:
    report = world.run(run={"max_records": 3})

    assert sorted(world.calls.keys()) == [(1,), (2,), (3,)]
    assert report.positions == {"a": 2}
    assert _on_chain(world) == [1]  # the second block is not done
    world.run(run={"max_records": 3})
    assert sorted(world.calls.keys()) == [(4,), (5,), (6,)]
    assert _on_chain(world) == [1, 5]
    world.run(run={"max_records": 3})
    assert world.positions() == world.heads()
    assert_right(world)


def test_limit_that_leaves_nothing_is_a_complete_run(world: World) -> None:
    assert world.run(run={"max_records": 8}).positions == {"a": 7}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, 4, 100])
@pytest.mark.parametrize("offsets", [True, False])
def test_waves_commit_in_order_and_end_at_the_head(world: World, every: int, offsets: bool) -> None:
    report = world.run(run={"commit_every": every}, use_offset_optimization=offsets)

    assert report.commits >= -(-8 // every)
    reached = [-1 if offset is None else offset for offset in _on_chain(world)]
    assert reached == sorted(reached)
    assert reached[-1] == 7
    assert all(count == 1 for count in world.calls.count().values())
    assert_right(world)
    assert world.run().nothing


@pytest.mark.slow
def test_wave_never_passes_the_retraction_of_a_key_that_is_not_done(world: World) -> None:
    world.run()
    world.delete("a", 1)
    world.write("a", (9, 9))
    world.write("a", (10, 10))
    world.calls.fail((10,))

    with pytest.raises(Exception, match="told to fail"):
        world.run(run={"commit_every": 1}, on_error="fail_fast")

    assert world.positions() == {"a": 9}
    assert 1 not in world.shown("w")
    world.calls.behave()
    world.run()
    assert world.calls.keys() == [(10,)]
    assert_right(world)


def test_failed_keys_count_as_done(world: World) -> None:
    world.calls.fail((3,))

    report = world.run()

    assert (report.failed, report.positions) == (1, {"a": 7})
    world.calls.behave()
    assert world.run().keys == 1
    assert world.calls.keys() == [(3,)]
    assert_right(world)


def test_retry_moves_no_position(world: World) -> None:
    world.calls.fail((3,))
    world.run(on_error="skip")
    world.write("a", (9, 9))
    world.calls.behave()
    world.calls.forget()

    report = world.step(on_error="skip").retry(world.lake)

    assert world.calls.keys() == [(3,)]
    assert report.positions == {"a": 7}
    world.run(on_error="skip")
    assert world.calls.keys() == [(9,)]
    assert_right(world)


def test_key_that_waits_holds_back_only_inputs_in_which_it_changed(tmp_path: Path) -> None:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1))
    world.write("b", (1, 1), (2, 2))

    report = world.run(run={"max_records": 1})

    assert world.calls.keys() == [(1,)]
    assert report.positions == {"a": 0, "b": 0}


def test_group_that_waits_holds_back_to_its_first_change(tmp_path: Path) -> None:
    world = make_world(AGGREGATION, tmp_path)
    for row in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1)]:
        world.write("a", row)

    report = world.run(run={"max_records": 1})

    assert world.calls.keys() == [(1,)]
    assert report.positions == {"a": 0}
    world.run()
    assert world.calls.keys() == [(2,)]
    assert_right(world)


def test_order_by_says_who_comes_first_and_positions_still_hold(world: World) -> None:
    report = world.run(run={"max_records": 2}, order_by="-id")

    assert sorted(world.calls.keys()) == [(7,), (8,)]
    assert report.positions == {"a": -1}
    world.run()
    assert_right(world)
