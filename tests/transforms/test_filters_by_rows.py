"""A run's filters by columns that are not transform keys: they keep the keys with a row that has the value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.errors import BadStep
from limits import set_limit
from transforms.oracle import assert_right
from transforms.worlds import AUXILIARY, CROSS, LOOKUP, MAP, MOVING_GROUPS, World, in_this_process, make_world

BOTH = pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@BOTH
def test_filter_by_a_column_of_the_input_that_is_not_a_transform_key(tmp_path: Path, offsets: bool) -> None:
    """Datapipe: test_batch_transform_with_filter_not_in_transform_index."""
    lake = fm.Lake(tmp_path / "lake")
    rows = pd.DataFrame({"item_id": range(10), "pipeline_id": [i // 5 for i in range(10)], "a": range(10)})
    lake.create("tbl1", key=["item_id", "pipeline_id"]).store_chunk(rows)
    step = fm.BatchTransform(
        lambda df: df[["item_id", "a"]],
        ["tbl1"],
        [fm.OutputSpec("tbl2", key="item_id")],
        transform_keys="item_id",
        use_offset_optimization=offsets,
    )

    step.run(lake, filters={"pipeline_id": 0})

    found = lake["tbl2"].to_pandas().sort_values("item_id").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, rows.query("pipeline_id == 0")[["item_id", "a"]])
    assert step.run(lake).keys == 5


@BOTH
@pytest.mark.parametrize("way", ["index", "scan"])
def test_rows_that_lost_the_value_or_are_gone_are_kept_too(
    tmp_path: Path, offsets: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "scan":
        set_limit(monkeypatch, "gather.few_rows", -1)
        set_limit(monkeypatch, "gather.row_by_key", 1e9)
    world = make_world(MAP, tmp_path, use_offset_optimization=offsets)
    world.write("a", (1, 7), (2, 7), (3, 7), (4, 8), (5, 8))
    world.run()
    world.write("a", (1, 70), (4, 80), (5, 7))
    world.delete("a", 2)
    positions = world.positions()

    report = world.run(run={"filters": {"v": 7}})

    assert report.keys == 3  # 1 had it, 2 had it and is gone, 5 has it now
    assert sorted(world.calls.keys()) == [(1,), (5,)]
    assert world.positions() == positions
    assert world.changelist() == [(4,)]
    world.run()
    assert_right(world)


@BOTH
def test_record_that_the_run_of_the_key_has_seen_does_not_keep_it(tmp_path: Path, offsets: bool) -> None:
    world = make_world(MAP, tmp_path, use_offset_optimization=offsets)
    world.write("a", (1, 7), (2, 1))
    world.run(run={"filters": {"id": 1}})  # moves no position
    world.write("a", (1, 8))
    world.run(run={"filters": {"id": 1}})
    world.write("a", (1, 9))

    assert world.run(run={"filters": {"v": 7}}).keys == 0
    assert world.run(run={"filters": {"v": 8}}).keys == 1


@BOTH
def test_filter_by_a_column_of_a_lookup(tmp_path: Path, offsets: bool) -> None:
    world = make_world(LOOKUP, tmp_path, use_offset_optimization=offsets)
    world.write("a", (1, 5, 0), (2, 5, 0), (3, 6, 0))
    world.write("cats", (5, 50), (6, 60))

    world.run(run={"filters": {"y": [50, 51]}})

    assert sorted(world.calls.keys()) == [(1, 5), (2, 5)]
    world.run()
    assert world.calls.keys() == [(3, 6)]


@BOTH
def test_filter_by_a_column_of_an_input_without_transform_keys_keeps_all_keys_or_none(
    tmp_path: Path, offsets: bool
) -> None:
    world = make_world(AUXILIARY, tmp_path, use_offset_optimization=offsets)
    world.write("a", (1, 10), (2, 20))
    world.write("words", (5, 50))

    assert world.run(run={"filters": {"y": 51}}).keys == 0
    assert world.run(run={"filters": {"y": 50, "v": 20}}).keys == 1


@BOTH
def test_filter_by_a_column_of_one_side_of_a_cross_join(tmp_path: Path, offsets: bool) -> None:
    world = make_world(CROSS, tmp_path, use_offset_optimization=offsets)
    world.write("a", (1, 10), (2, 20))
    world.write("b", (5, 50), (6, 60))

    world.run(run={"filters": {"v": 20, "y": 50}})

    assert world.calls.keys() == [(2, 5)]


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"v": 1, "id": [1, 2]}, [10]),
        ([{"v": 1, "g": 10}, {"v": 2}, {"g": 30}], [10, 20, 30]),
        ({"v": None}, [30]),
        ((pc.field("v") > 0) & (pc.field("id") < 5), [10, 20, 40]),
        ({"v": 99}, []),
    ],
    ids=["of one row", "alternatives", "null", "expression", "nothing"],
)
def test_conditions_on_other_columns_hold_for_one_row_of_the_key(tmp_path: Path, filters: Any, kept: list[int]) -> None:
    world = make_world(MOVING_GROUPS, tmp_path)
    world.write("a", (1, 10, 1), (2, 20, 2), (3, 30, None), (4, 40, 1), (5, 10, 7))

    world.run(run={"filters": filters})

    assert sorted(key for (key,) in world.calls.keys()) == kept  # noqa: SIM118


def test_column_that_no_input_has_is_refused_and_a_near_one_named(tmp_path: Path) -> None:
    world = _small(tmp_path)
    with pytest.raises(BadStep, match=r"'va', which is neither a transform key nor a column of an input") as refused:
        world.run(run={"filters": {"va": 1}})
    assert refused.value.hint == "did you mean 'v'?"


def test_value_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadStep, match=r"filter of 'v' has values that do not fit int64"):
        _small(tmp_path).run(run={"filters": {"v": "x"}})


def test_filters_of_the_step_itself_are_about_transform_keys(tmp_path: Path) -> None:
    """They say which keys exist, so they may not depend on rows that change."""
    with pytest.raises(BadStep, match=r"'v', which is not a transform key"):
        _small(tmp_path).run(filters={"v": 1})


def test_failed_key_is_kept_by_its_rows(tmp_path: Path) -> None:
    world = _small(tmp_path)
    world.calls.fail((1,), (2,))
    world.run()
    world.calls.behave()

    assert world.run(run={"filters": {"v": 2}}).keys == 1
    assert world.changelist() == [(1,)]


def _small(tmp_path: Path) -> World:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    return world


def test_system_columns_are_no_columns_of_a_filter(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id", vocab={"offset": "_offset"}).write(pa.table({"id": [1, 2], "offset": [5, 6]}))
    step = fm.BatchTransform(lambda a: a[["id"]], ["a"], ["b"])
    assert step.run(lake, filters={"offset": 6}).keys == 1
    with pytest.raises(BadStep, match="neither a transform key nor a column"):
        step.run(lake, filters={"_offset": 0})
