"""Steps over views whose rows go by hidden columns: nobody is given those, and all else is as with other inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.derive.key_shape import KeyShape, OutputKeys
from floodmark.errors import BadStep
from floodmark.transforms.key_resolution import resolve_shape
from floodmark.transforms.specs import InputSpec, as_input, snapshot_inputs
from limits import set_limit
from transforms.hidden_worlds import (
    BY_GROUPS,
    BY_RECORDS,
    ID,
    KINDS,
    MIXED,
    WHOLE,
    Hidden,
    delete,
    make_lake,
    without_spark,
    write,
)
from transforms.worlds import GROUPED, INT, MOVING_GROUPS, Calls, Case, Row, Source, World, in_this_process

FIRM = Source("firm", {"g": INT, "v": INT}, None, {"g": "g"})
TOTALS = Case("hidden", (FIRM,), ("g",), (GROUPED,), MOVING_GROUPS.formula, given=True)


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark(), in_this_process():
        yield


def made(folder: Path, kind: Hidden) -> World:
    return World(TOTALS, make_lake(folder / "lake", kind), Calls(folder))


def expected(world: World, factor: int = 10) -> list[Row]:
    """The same by hand, from the orders."""
    groups: dict[Any, list[int]] = {}
    for row in world.lake["orders"].to_arrow().to_pylist():
        groups.setdefault(row["g"], []).append(row["v"])
    keys = sorted(groups, key=lambda g: (g is not None, g or 0))
    return [{"g": g, "n": len(groups[g]), "total": sum(groups[g]) * factor} for g in keys]


def pending(world: World) -> list[Any]:
    """The groups that a run would process; what is beyond the positions and what all records say is the same."""
    quick, thorough = ([g for (g,) in world.changelist(offsets)] for offsets in (True, False))
    assert set(quick) == set(thorough)
    return sorted(quick)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "quick"), list(zip(KINDS, [True, False, False, True], strict=True)), ids=str)
def test_groups_of_a_view_with_a_hidden_key_are_kept_up_to_date(tmp_path: Path, kind: Hidden, quick: bool) -> None:
    world = made(tmp_path, kind)
    world.options["use_offset_optimization"] = quick
    write(world.lake, (1, 1, 5), (2, 1, 5), (3, 2, 7), (4, None, 1))
    world.run()
    assert world.rows() == expected(world)
    assert world.run().nothing

    write(world.lake, (3, 2, 8))  # an update
    assert pending(world) == [2]
    world.run()
    assert set(world.calls.keys()) == {(2,)}
    assert world.rows() == expected(world)

    write(world.lake, (2, 3, 5))  # from one group to another
    assert pending(world) == [1, 3]
    world.run()
    assert set(world.calls.keys()) == {(1,), (3,)}
    assert world.rows() == expected(world)

    delete(world.lake, 3)  # the last of its group
    assert pending(world) == [2]
    world.run()
    assert world.calls.keys() == []
    assert world.rows() == expected(world)
    assert world.lake["out"].verify().problems == ()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_new_function_processes_every_group_of_the_view_once(tmp_path: Path, kind: Hidden) -> None:
    world = made(tmp_path, kind)
    write(world.lake, (1, 1, 5), (2, 1, 5), (3, 2, 7))
    world.run()
    write(world.lake, (3, 4, 7))
    world.run("2")
    assert world.calls.count() == {(1,): 1, (4,): 1}
    assert world.rows() == expected(world, 100)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_the_same_when_all_are_looked_at(
    tmp_path: Path, kind: Hidden, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, "gather.few_rows", 0)
    set_limit(monkeypatch, "gather.row_by_key", 1000.0)
    world = made(tmp_path, kind)
    write(world.lake, (1, 1, 5), (2, 1, 5), (3, 2, 7), (4, 3, 1))
    world.run()
    write(world.lake, (2, 2, 5))
    delete(world.lake, 4)
    world.run()
    assert world.rows() == expected(world)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_groups_that_are_asked_for_are_processed(tmp_path: Path, kind: Hidden) -> None:
    world = made(tmp_path, kind)
    write(world.lake, (1, 1, 5), (2, 2, 5))
    world.run()
    world.calls.forget()
    world.step().run_changelist(world.lake, {"firm": [2]})
    assert world.calls.keys() == [(2,)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_view_is_joined_with_other_inputs(tmp_path: Path, kind: Hidden) -> None:
    lake = make_lake(tmp_path, kind)
    lake.create("labels", key="g", schema={"g": "int64", "label": "string"})
    lake["labels"].write(pa.table({"g": [1, 2], "label": ["one", "two"]}))
    write(lake, (1, 1, 5), (2, 1, 6), (3, 3, 7))

    def labelled(labels: pa.Table, firm: pa.Table) -> pa.Table:
        assert firm.column_names == ["g", "v"]
        sums = firm.group_by("g").aggregate([("v", "sum")])
        return labels.join(sums, "g", join_type="full outer").rename_columns(["g", "label", "total"])

    step = fm.BatchTransform(labelled, ["labels", "firm"], ["out"], transform_keys=["g"], version="1")
    step.run(lake)
    delete(lake, 1)
    write(lake, (3, 2, 7))
    step.run(lake)
    assert sorted(lake["out"].to_arrow().to_pylist(), key=lambda row: row["g"]) == [
        {"g": 1, "label": "one", "total": 6},
        {"g": 2, "label": "two", "total": 7},
    ]


# Which transform keys there are


def resolved(lake: fm.Lake, *inputs: Any, keys: Any = None, outputs: tuple[OutputKeys, ...] = ()) -> KeyShape | None:
    specs = [as_input(one) for one in inputs]
    return resolve_shape(snapshot_inputs(lake, specs), specs, keys, outputs)


@pytest.mark.parametrize("kind", [BY_RECORDS, WHOLE], ids=str)
@pytest.mark.parametrize("refreshed", [True, False])
def test_without_a_key_of_its_own_columns_transform_keys_are_asked_for(
    tmp_path: Path, kind: Hidden, refreshed: bool
) -> None:
    lake = make_lake(tmp_path, kind)
    if refreshed:
        write(lake, (1, 1, 5))
    step = fm.BatchTransform(lambda firm: firm, ["firm"], ["out"], name="step", version="1")
    with pytest.raises(BadStep, match="view 'firm' has no key in its visible columns") as caught:
        step.run(lake)
    assert "give transform_keys=[…]: some of g, v, " in str(caught.value.hint)
    assert "out" not in lake


@pytest.mark.parametrize("kind", [BY_GROUPS, MIXED], ids=str)
def test_what_is_shown_of_its_key_is_the_default(tmp_path: Path, kind: Hidden) -> None:
    world = World(TOTALS, make_lake(tmp_path / "lake", kind), Calls(tmp_path), {"transform_keys": None})
    write(world.lake, (1, 1, 5), (2, 1, 5), (3, 2, 7))
    world.run()
    assert world.rows() == expected(world)
    assert world.lake["out"].strategy.key == ("g",)


def test_a_view_that_was_never_refreshed_is_nothing_to_do(tmp_path: Path) -> None:
    for kind in KINDS:
        world = made(tmp_path / kind.name, kind)
        assert world.run().nothing
        assert world.step(transform_keys=["v"]).run(world.lake).nothing  # known from its definition


def test_hidden_columns_are_never_said_to_be_what_a_view_has(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, BY_RECORDS)
    for _ in range(2):
        with pytest.raises(BadStep) as caught:
            resolved(lake, "firm", keys=["nothing"])
        assert re.search("'firm' has g, v:", str(caught.value.hint))
        write(lake, (1, 1, 5))


def test_an_output_of_another_key_is_to_be_dropped(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, BY_GROUPS)
    write(lake, (1, 1, 5))
    with pytest.raises(BadStep, match="share no column: g / length") as caught:
        resolved(lake, "firm", outputs=(OutputKeys("out", ("length",)),))
    assert "drop an output" in str(caught.value.hint)


def test_who_names_a_hidden_column_of_the_key_gets_it(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, BY_RECORDS)
    seen = []

    def twice(firm: pa.Table) -> pa.Table:
        seen.append(firm.column(ID).to_pylist())
        return pa.table({"id": firm.column(ID), "w": pc.multiply(firm.column("v"), 2)})

    step = fm.BatchTransform(twice, [InputSpec("firm", keys={"id": ID})], ["out"], version="1")
    assert step.run(lake).nothing
    write(lake, (1, 1, 5), (2, 1, 6))
    step.run(lake)
    write(lake, (2, 1, 7))
    delete(lake, 1)
    step.run(lake)
    assert seen == [[1, 2], [2]]
    assert lake["out"].to_arrow().to_pylist() == [{"id": 2, "w": 14}]
    assert lake["out"].strategy.key == ("id",)


# Steps over whole datasets, and computed columns


def passed_on(firm: pa.Table) -> pa.Table:
    return firm.group_by("g").aggregate([("v", "sum")]).rename_columns(["g", "total"])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_whole_view_is_given_without_hidden_columns(tmp_path: Path, kind: Hidden) -> None:
    lake = make_lake(tmp_path, kind)
    step = fm.DatatableTransform(passed_on, ["firm"], [fm.OutputSpec("out", key="g")])
    assert step.run(lake).nothing
    write(lake, (1, 1, 5), (2, 1, 6), (3, 2, 7))
    step.run(lake)
    delete(lake, 3)
    step.run(lake)
    assert lake["out"].to_arrow().to_pylist() == [{"g": 1, "total": 11}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_whole_result_goes_by_no_hidden_column(tmp_path: Path, kind: Hidden) -> None:
    lake = make_lake(tmp_path, kind)
    write(lake, (1, 1, 5))
    step = fm.DatatableTransform(passed_on, ["firm"], ["out"])
    if "g" in kind.key:
        step.run(lake)
        assert lake["out"].strategy.key == ("g",)
        return
    with pytest.raises(BadStep, match="no key is declared, and view 'firm' has no key in its visible columns"):
        step.run(lake)
    assert "out" not in lake


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_column_is_computed_for_a_view_with_a_hidden_key(tmp_path: Path, kind: Hidden) -> None:
    lake = make_lake(tmp_path, kind)
    write(lake, (1, 1, 5), (2, 1, 6))

    @fm.udf(returns="int64", version="1")
    def twice(v: int) -> int:
        return v * 2

    view = lake["firm"]
    view.add_column("twice", twice)
    view.backfill("twice")
    write(lake, (2, 2, 8))
    delete(lake, 1)
    view.backfill("twice")
    assert view.to_arrow().to_pylist() == [{"g": 2, "v": 8, "twice": 16}]
