"""Filters that a step is declared with say which keys exist for it; those of a run only which are done now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.storage.memory import CountingStore, MemoryStore
from floodmark.transforms.run_scope import canonical_filters
from transforms.worlds import CROSS, MAP, TWO_OUTPUTS, Calls, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(MAP, tmp_path)
    world.write("a", (0, 9), (1, 1), (2, 2), (3, 3))
    return world


def test_positions_move_and_the_next_run_is_nothing_by_them_alone(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    world = World(MAP, fm.Lake(store), Calls(tmp_path))
    MAP.create(world.lake)
    world.write("a", (0, 9), (1, 1), (2, 2), (3, 3))
    step = world.step(filters={"id": [2, 3]})
    assert step.run(world.lake).positions == {"a": 3}
    assert step.status(world.lake).inputs[0].behind == 0

    store.keys_read.clear()
    assert step.run(fm.Lake(store)).nothing
    assert [key for key in store.keys_read if "/data/" in key or "/info/keys/" in key] == []


def test_change_of_a_key_that_is_left_out_calls_nothing_and_moves_on(world: World) -> None:
    world.run(filters={"id": [2, 3]})
    world.write("a", (0, 77))

    assert world.changelist(True, filters={"id": [2, 3]}) == world.changelist(False, filters={"id": [2, 3]}) == []
    report = world.run(filters={"id": [2, 3]})

    assert (report.keys, world.calls.keys(), report.positions) == (0, [], world.heads())
    assert world.shown("w") == {2: 20, 3: 30}


@pytest.mark.parametrize("offsets", [True, False])
def test_other_filters_process_everything_and_take_back_what_they_leave_out(world: World, offsets: bool) -> None:
    options: dict[str, Any] = {"filters": {"id": [2, 3]}, "use_offset_optimization": offsets}
    world.run(filters={"id": [0, 1, 2]})
    step = world.step(**options)
    assert step.status(world.lake).stale == "its inputs, their columns, its outputs or its filters changed"

    planned = step.plan(world.lake).keys
    report = world.run(**options)

    assert planned == report.keys == 2
    assert sorted(world.calls.keys()) == [(2,), (3,)]
    assert world.shown("w") == {2: 20, 3: 30}
    assert step.status(world.lake).stale is None
    assert world.run(**options).nothing


def test_filters_that_are_given_up_bring_all_keys_back(world: World) -> None:
    world.run(filters={"id": [2]})

    world.run()

    assert world.shown("w") == {0: 90, 1: 10, 2: 20, 3: 30}


def test_new_version_leaves_no_result_of_the_old_one(world: World) -> None:
    world.run()

    world.run("2", filters={"id": [2, 3]})

    assert world.shown("w") == {2: 200, 3: 300}


def test_all_outputs_lose_what_is_left_out(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()

    world.run(filters={"id": 2})

    assert {row["id"] for name in ("out", "many") for row in world.rows(name)} == {2}


def test_pairs_of_a_cross_join_are_left_out_too(tmp_path: Path) -> None:
    world = make_world(CROSS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("b", (5, 5), (6, 6))
    [x, y] = world.case.keys

    report = world.run(filters={x: 1, y: [5, 6]})

    assert sorted(world.calls.keys()) == [(1, 5), (1, 6)]
    assert report.positions == world.heads()
    assert world.run(filters={x: 1, y: [5, 6]}).nothing


def test_key_that_is_left_out_is_not_processed_when_it_is_asked_for(world: World) -> None:
    step = world.step(filters={"id": [2, 3]})
    step.run(world.lake)
    world.calls.forget()

    assert step.run_changelist(world.lake, {"a": [0, 3]}).keys == 1

    assert world.calls.keys() == [(3,)]
    assert world.shown("w") == {2: 20, 3: 30}


def test_filters_of_a_run_still_leave_the_rest_to_later_ones(world: World) -> None:
    declared = {"id": [1, 2, 3]}
    report = world.run(filters=declared, run={"filters": {"id": [0, 3]}})
    assert (world.calls.keys(), report.positions) == ([(3,)], {"a": -1})
    assert world.changelist(True, filters=declared) == world.changelist(False, filters=declared) == [(1,), (2,)]

    world.run(filters=declared)

    assert sorted(world.calls.keys()) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"k": 2}, {"k": [2]}),
        ({"k": [3, 2, 2]}, {"k": {2, 3}}),
        ({"k": np.int64(2)}, [{"k": 2}]),
        ({"k": pa.array([1, None])}, {"k": (None, 1)}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([{"a": 1}, {"b": 2}], [{"b": 2}, {"a": 1}]),
        (pc.field("k") > 1, pc.field("k") > 1),
        (pc.field("k").isin(range(100)), pc.field("k").isin(range(100))),
    ],
)
def test_same_filter_written_otherwise_is_the_same(one: Any, other: Any) -> None:
    assert canonical_filters(one) == canonical_filters(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"k": 2}, {"k": "2"}),
        ({"k": [2]}, {"k": []}),
        ({"k": []}, {}),
        ({}, []),
        ({"a": 1, "b": 2}, [{"a": 1}, {"b": 2}]),
        (pc.field("k") > 1, pc.field("k") > 2),
        # Arrow shows only the ends of a long list.
        (pc.field("k").isin([*range(50), 50, *range(60, 100)]), pc.field("k").isin([*range(50), 51, *range(60, 100)])),
    ],
)
def test_different_filters_are_told_apart(one: Any, other: Any) -> None:
    assert canonical_filters(one) != canonical_filters(other)
