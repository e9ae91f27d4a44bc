"""A plan says what a run would process and why, and does nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles import sample
from transforms.oracle import assert_right
from transforms.worlds import CASES, CROSS, JOIN, MAP, Case, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.write("b", (1, 1))
    return world


def test_plan_of_a_first_run_has_every_key_and_makes_nothing(world: World) -> None:
    plan = world.step().plan(world.lake)

    assert (plan.keys, plan.new, plan.changed, plan.failed) == (3, 3, 0, 0)
    assert [(i.name, i.previous, i.head, i.records, i.keys) for i in plan.inputs] == [
        ("a", -1, 2, 3, 3),
        ("b", -1, 0, 1, 1),
    ]
    assert (plan.kind, plan.changelist, plan.stale) == ("keyed", 2, None)
    assert "out" not in world.lake
    assert world.calls.all() == []


def test_plan_says_what_changed_what_failed_and_what_is_read(world: World) -> None:
    world.calls.fail((2,))
    world.run()
    world.write("a", (1, 10), (4, 4))

    plan = world.step().plan(world.lake)

    assert (plan.keys, plan.new, plan.changed, plan.failed) == (3, 1, 1, 1)
    a, b = plan.inputs
    assert (a.previous, a.head, a.records, a.keys) == (2, 5, 3, 2)
    assert a.reads == "3 records, 3 to 5"
    assert (b.records, b.keys, b.reads) == (0, 0, "nothing")


def test_plan_of_the_other_changelist_reads_everything_for_the_same_keys(world: World) -> None:
    world.run()
    world.write("b", (3, 3))

    two, one = world.step().plan(world.lake), world.step(use_offset_optimization=False).plan(world.lake)

    assert (two.keys, one.keys) == (1, 1)
    assert (two.changelist, one.changelist) == (2, 1)
    assert one.inputs[0].reads == "all 3 records"
    assert world.changelist(offsets=True) == world.changelist(offsets=False) == [(3,)]


def test_plan_of_a_new_version_says_that_everything_is_stale(world: World) -> None:
    world.run()

    plan = world.step("2").plan(world.lake)

    assert plan.stale == "its function changed"
    assert plan.keys == 3
    assert [given.keys for given in plan.inputs] == [3, 3]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("case", "offsets"), sample(itertools.product(CASES, [True, False]), 5), ids=str)
def test_run_processes_as_many_keys_as_were_planned(case: Case, offsets: bool, tmp_path: Path) -> None:
    """Also where keys went before they were ever processed, after that, or before everything was stale."""
    world = make_world(case, tmp_path)
    option = {"use_offset_optimization": offsets}
    counted = []

    def run(version: str = "1") -> None:
        planned = world.step(version, **option).plan(world.lake).keys
        counted.append((planned, world.run(version, **option).keys))

    _fill(world)
    _delete_first(world)
    run()
    _delete_first(world)
    run()
    _delete_first(world)
    run("2")
    _delete_first(world)
    world.step("2").reset(world.lake)
    run("2")
    run("2")

    assert [planned for planned, _ in counted] == [processed for _, processed in counted]
    assert counted[-1] == (0, 0)
    assert_right(world, 100)


def _fill(world: World) -> None:
    """Rows in every input whose keys meet; several of a group."""
    for source in world.case.sources:
        groups = {"cat", "g"} - set(source.key or ())
        world.write(source.name, *[tuple(i % 2 if name in groups else i for name in source.columns) for i in range(5)])


def _delete_first(world: World) -> None:
    source = next((one for one in world.case.sources if one.key is not None), None)
    if source is not None and source.key is not None and (rows := world.lake[source.name].to_arrow().to_pylist()):
        world.lake[source.name].delete([{column: rows[0][column] for column in source.key}])


def test_plan_advises_where_positions_save_nothing(world: World) -> None:
    world.run()
    world.write("a", (1, 10))

    advice = world.step().plan(world.lake).advice

    assert advice is not None
    assert "only 3 keys" in advice


def test_plan_of_a_step_with_nothing_new_is_empty(world: World) -> None:
    world.run()

    plan = world.step().plan(world.lake)

    assert plan.nothing_to_do
    assert plan.advice is None


@pytest.mark.parametrize(("case", "kind"), [(MAP, "map"), (CROSS, "cross")], ids=str)
def test_plan_names_the_physical_plan(case: object, kind: str, tmp_path: Path) -> None:
    world = make_world(case, tmp_path / "other")  # type: ignore[arg-type]
    assert world.step().plan(world.lake).kind == kind


def test_step_whose_inputs_have_no_columns_yet_plans_nothing(tmp_path: Path) -> None:
    import floodmark as fm

    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id")
    step = fm.BatchTransform(lambda a: a, ["a"], ["out"])

    assert step.plan(lake).nothing_to_do
    assert step.run(lake).nothing
    assert step.changelist(lake).num_rows == 0
