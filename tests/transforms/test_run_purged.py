"""Records that were purged before every result knew of them: positions do not tell where only some keys were done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import RecordsPurged
from transforms.oracle import assert_right
from transforms.worlds import CROSS, JOIN, LOOKUP, MAP, Case, Key, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def without_key(case: Case) -> Case:
    """The same case, but a purge of the first input loses rows."""
    return replace(case, sources=(replace(case.sources[0], key=None), *case.sources[1:]), given=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(MAP, tmp_path)
    world.write("a", (0, 0), (1, 1), (2, 2))
    return world


def _some(world: World, how: str) -> None:
    """Process keys without moving the position."""
    if how == "filtered":
        world.run(run={"filters": {"id": [0, 1]}})
    elif how == "asked":
        world.step().run_changelist(world.lake, {"a": [0, 1]})
    else:
        world.run(order_by="-id", run={"max_records": 2})
    assert world.positions() == {"a": -1}


@pytest.mark.slow
@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("how", ["filtered", "asked", "limited"])
def test_results_of_a_partial_run_that_missed_a_purge_are_an_error_until_reset(
    how: str, offsets: bool, world: World
) -> None:
    _some(world, how)
    world.delete("a", 0)
    world.write("a", (1, 10))
    world.write("a", (2, 20))
    world.write("a", (1, 1))
    end = world.lake["a"].purge(before=world.heads()["a"]).before
    assert end > 6
    option: dict[str, Any] = {"use_offset_optimization": offsets}

    for look in (world.run, lambda **o: world.step(**o).plan(world.lake)):
        with pytest.raises(RecordsPurged, match=f"records 3 to {end - 1} of input 'a'"):
            look(**option)
    world.step().reset(world.lake)
    world.run(**option)

    assert_right(world)


@pytest.mark.parametrize("how", ["filtered", "asked", "limited"])
def test_purge_of_what_a_partial_run_knew_is_no_error(how: str, world: World) -> None:
    _some(world, how)
    done: list[Key] = world.calls.keys()
    world.write("a", (1, 10), (3, 3))
    assert world.lake["a"].purge(before=3).carried == 2

    world.run()

    again: list[Key] = world.calls.keys()
    assert (set(done) & set(again), set(done) | set(again)) == ({(1,)}, {(0,), (1,), (2,), (3,)})
    assert world.positions() == world.heads()
    assert_right(world)


def test_step_that_processed_nothing_starts_behind_a_purge(world: World) -> None:
    world.write("a", (0, 10), (3, 3))
    world.lake["a"].purge(before=3)

    world.run()

    assert world.shown("w") == {0: 100, 1: 10, 2: 20, 3: 30}


def test_input_that_was_empty_when_keys_were_processed_counts_too(tmp_path: Path) -> None:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("b", (1, 5))
    world.write("b", (1, 6))
    world.lake["b"].purge(before=1)

    with pytest.raises(RecordsPurged, match="records 0 to 0 of input 'b'"):
        world.run()


@pytest.mark.parametrize("offsets", [True, False])
def test_result_of_a_purged_row_goes_when_the_row_that_it_was_looked_up_with_changes(
    offsets: bool, tmp_path: Path
) -> None:
    """It cannot be computed again, and the old one would be stale."""
    world = make_world(without_key(LOOKUP), tmp_path, use_offset_optimization=offsets)
    world.write("a", (9, 0, 7))
    world.write("a", (4, 1, 4))
    world.write("cats", (0, 3), (1, 3))
    world.run()
    world.lake["a"].purge(before=1)
    world.run()
    assert {row["id"] for row in world.rows()} == {4, 9}

    world.write("cats", (0, 5))
    world.run()

    assert {row["id"] for row in world.rows()} == {4}


@pytest.mark.parametrize("offsets", [True, False])
def test_pair_with_a_purged_row_goes_when_its_other_side_changes(offsets: bool, tmp_path: Path) -> None:
    world = make_world(without_key(CROSS), tmp_path, use_offset_optimization=offsets)
    one, other = (source.name for source in CROSS.sources)
    world.write(one, (9, 7))
    world.write(one, (4, 4))
    world.write(other, (0, 3), (1, 3))
    world.run()
    world.lake[one].purge(before=1)

    world.write(other, (1, 5))
    world.run()

    assert {(row["i"], row["j"]) for row in world.rows()} == {(9, 0), (4, 0), (4, 1)}
