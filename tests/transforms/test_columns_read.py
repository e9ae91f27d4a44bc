"""A step that declares the columns it reads is not called for changes in other columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from limits import set_limit
from transforms.oracle import assert_right
from transforms.worlds import (
    CROSS_READ,
    LOOKUP_READ,
    MAP_READ,
    MOVING_READ,
    Case,
    World,
    in_this_process,
    make_world,
)

BOTH = pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def _world(tmp_path: Path, case: Case, offsets: bool) -> World:
    return make_world(case, tmp_path, use_offset_optimization=offsets)


@BOTH
def test_change_in_another_column_calls_nothing_and_is_counted(tmp_path: Path, offsets: bool) -> None:
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (1, 1, 1), (2, 2, 2), (3, 3, 3))
    world.run()
    world.write("a", (1, 1, 10), (2, 20, 2), (3, 3, 30))

    assert world.changelist(True) == world.changelist(False) == [(2,)]
    plan = world.step().plan(world.lake)
    assert (plan.keys, plan.inputs[0].unchanged) == (1, 2)
    report = world.run()
    assert (report.keys, report.called, report.unchanged) == (1, 1, 2)
    assert world.calls.keys() == [(2,)]
    assert world.positions() == world.heads()
    assert world.run().nothing
    assert_right(world)


@BOTH
def test_run_with_only_such_changes_moves_the_position_and_calls_nothing(tmp_path: Path, offsets: bool) -> None:
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (1, 1, 1))
    world.run()
    world.write("a", (1, 1, 2))

    report = world.run()

    assert (report.keys, report.called, report.unchanged) == (0, 0, 1)
    assert world.positions() == world.heads()
    assert world.run().nothing


@BOTH
def test_group_whose_row_changes_elsewhere_is_not_called(tmp_path: Path, offsets: bool) -> None:
    world = _world(tmp_path, MOVING_READ, offsets)
    world.write("a", (1, 10, 1, 0), (2, 10, 2, 0), (3, 30, 3, 0), (4, 40, 4, 0))
    world.run()
    world.write("a", (1, 10, 1, 5), (2, 10, 2, 5), (3, 10, 3, 5), (4, 40, 4, 5))  # the third one also moves

    report = world.run()

    assert sorted(world.calls.keys()) == [(10,)]  # 30 is gone, 10 has one row more
    assert (report.keys, report.unchanged) == (2, 1)
    assert_right(world)


@BOTH
def test_change_of_a_lookup_elsewhere_calls_no_row_that_looks_it_up(tmp_path: Path, offsets: bool) -> None:
    world = _world(tmp_path, LOOKUP_READ, offsets)
    world.write("a", (1, 7, 1, 0), (2, 8, 2, 0))
    world.write("cats", (7, 70, 0), (8, 80, 0))
    world.run()
    world.write("cats", (7, 70, 1), (8, 81, 1))

    report = world.run()

    assert world.calls.keys() == [(2, 8)]
    assert report.unchanged == 1
    assert_right(world)


@BOTH
def test_side_of_a_cross_join_that_changes_elsewhere_calls_no_pair(tmp_path: Path, offsets: bool) -> None:
    world = _world(tmp_path, CROSS_READ, offsets)
    world.write("a", (1, 1, 0), (2, 2, 0))
    world.write("b", (5, 5), (6, 6))
    world.run()
    world.write("a", (1, 1, 9), (2, 3, 9))

    world.run()

    assert sorted(world.calls.keys()) == [(2, 5), (2, 6)]
    assert_right(world)


@BOTH
@pytest.mark.parametrize("every", [None, 1])
def test_new_row_that_changes_elsewhere_before_its_first_run_is_processed(
    tmp_path: Path, offsets: bool, every: int | None
) -> None:
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (1, 1, 1), (2, 2, 2))
    world.run()
    world.write("a", (3, 3, 3), (4, 4, 4), (5, 5, 5))
    world.write("a", (3, 3, 30), (1, 1, 10))

    world.run(run={"commit_every": every})

    assert sorted(world.calls.keys()) == [(3,), (4,), (5,)]
    assert_right(world)


@BOTH
def test_run_cut_short_between_a_row_and_its_change_elsewhere_loses_nothing(tmp_path: Path, offsets: bool) -> None:
    """A commit of other keys may not pass the first record of a key whose row comes later."""
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (3, 3, 3), (4, 4, 4), (5, 5, 5))
    world.write("a", (3, 3, 30))
    world.calls.fail((5,))
    with pytest.raises(fm.FloodmarkError):
        world.run(run={"commit_every": 1}, on_error="fail_fast")
    world.calls.behave()

    world.run()

    assert_right(world)
    assert world.run().nothing


@BOTH
def test_value_that_changes_and_changes_back_is_processed(tmp_path: Path, offsets: bool) -> None:
    """Each change is compared with the row before it; only changes that are all elsewhere are skipped."""
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (1, 1, 1))
    world.run()
    world.write("a", (1, 2, 1))
    world.write("a", (1, 2, 5))
    world.write("a", (1, 1, 5))

    assert world.run().keys == 1
    assert_right(world)


@BOTH
def test_rows_that_a_purge_removed_before_the_first_run_do_not_hide_their_changes(
    tmp_path: Path, offsets: bool
) -> None:
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", (1, 1, 1), (2, 2, 2))
    world.write("a", (1, 1, 10), (2, 2, 20))
    world.lake["a"].purge(before=2)

    assert world.run().keys == 2
    assert_right(world)


@BOTH
@pytest.mark.parametrize("rows", [1, 3])
def test_corrections_are_compared_across_tasks_and_batches(
    tmp_path: Path, offsets: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, "changed.task_rows", rows)
    set_limit(monkeypatch, "changed.buffered_rows", 1)
    world = _world(tmp_path, MAP_READ, offsets)
    world.write("a", *[(i, i, 0) for i in range(9)])
    world.run()
    world.write("a", *[(i, i + 100 * (i % 3 == 0), 1) for i in range(9)])

    report = world.run()

    assert sorted(world.calls.keys()) == [(0,), (3,), (6,)]
    assert report.unchanged == 6
    assert_right(world)


def test_null_and_nan_are_values_like_any_other(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path / "lake")
    a = lake.create("a", key="id")

    def write(values: list[float | None], other: int) -> None:
        table = pa.table(
            {"id": range(len(values)), "v": pa.array(values, pa.float64()), "other": [other] * len(values)}
        )
        a.write(table)

    step = fm.BatchTransform(lambda a: a, [fm.InputSpec("a", columns=["v"])], ["b"], version="1")
    write([None, float("nan"), 0.0, 1.0], 0)
    step.run(lake)
    write([None, float("nan"), None, 1.0], 1)
    assert (step.run(lake).keys, lake["b"].get([2])["v"].to_pylist()) == (1, [None])


def test_step_without_declared_columns_is_called_for_every_change(tmp_path: Path) -> None:
    [source] = MAP_READ.sources
    world = make_world(replace(MAP_READ, sources=(replace(source, reads=None),)), tmp_path)
    world.write("a", (1, 1, 1))
    world.run()
    world.write("a", (1, 1, 2))
    assert world.run().keys == 1


def test_datatable_step_is_not_called_for_changes_in_columns_that_it_does_not_read(tmp_path: Path) -> None:
    lake, calls = fm.Lake(tmp_path / "lake"), tmp_path / "calls"
    for name in ("a", "b"):
        lake.create(name, key="id").write(pa.table({"id": [1, 2], "v": [1, 2], "other": [0, 0]}))

    def total(a: pa.Table, b: pa.Table) -> pa.Table:
        with calls.open("a") as log:
            log.write("called\n")
        return pa.table({"id": [0], "total": [sum(a["v"].to_pylist()) + b.num_rows]})

    inputs = [fm.InputSpec("a", columns=["v"]), fm.InputSpec("b", columns=["id"])]
    step = fm.DatatableTransform(total, inputs, [fm.OutputSpec("sums", key="id")], version="1")
    step.run(lake)
    lake["a"].write(pa.table({"id": [1], "v": [1], "other": [5]}))
    lake["b"].write(pa.table({"id": [1, 2], "v": [7, 7], "other": [0, 0]}))

    plan, report = step.plan(lake), step.run(lake)

    assert (plan.nothing, plan.unchanged) == (True, 3)
    assert (report.called, report.unchanged, report.commits) == (0, 3, 1)
    assert step.run(lake).nothing
    lake["a"].write(pa.table({"id": [2], "v": [20], "other": [0]}))
    assert step.run(lake).called == 1
    lake["b"].delete([1])
    assert step.run(lake).called == 1
    assert lake["sums"].to_arrow().to_pylist() == [{"id": 0, "total": 22}]
    assert len(calls.read_text().splitlines()) == 3
    assert lake["sums"].verify().problems == ()
