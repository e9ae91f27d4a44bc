"""run_changelist: the keys that somebody names, changed or not, and no position moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from floodmark.errors import BadStep
from transforms.oracle import assert_right
from transforms.worlds import ALIAS, CROSS, LOOKUP, MAP, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.mark.parametrize(
    "keys",
    [
        [1, 3],
        np.array([3, 1]),
        pa.array([1, 3, 3]),
        pd.Series([1, 3]),
        [{"id": 1}, {"id": 3}],
        pd.DataFrame({"id": [1, 3], "v": [None, None]}),
        pa.table({"id": pa.array([1, 3], pa.int8())}),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_are_a_frame_dicts_or_plain_values(keys: Any, tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.calls.forget()

    report = world.step().run_changelist(world.lake, {"a": keys})

    assert sorted(world.calls.keys()) == [(1,), (3,)]
    assert report.keys == 2
    assert_right(world)


def test_asked_keys_move_no_position_and_are_not_processed_again(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))

    world.step().run_changelist(world.lake, {"a": [2]})

    assert world.positions() == {"a": -1}
    assert world.shown("w") == {2: 20}
    world.run()
    assert sorted(world.calls.keys()) == [(1,), (3,)]
    assert_right(world)


def test_key_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.calls.forget()

    world.step().run_changelist(world.lake, {"a": [7]})

    assert world.calls.keys() == []
    assert_right(world)


def test_part_of_the_keys_stands_for_all_keys_that_have_it(tmp_path: Path) -> None:
    world = make_world(LOOKUP, tmp_path)
    world.write("a", (1, 7, 1), (2, 8, 2), (3, 7, 3))
    world.write("cats", (7, 70), (8, 80))
    world.run()
    world.calls.forget()

    world.step().run_changelist(world.lake, {"cats": [7]})

    assert sorted(world.calls.keys()) == [(1, 7), (3, 7)]
    assert_right(world)


def test_one_side_of_a_cross_join_stands_for_all_pairs(tmp_path: Path) -> None:
    world = make_world(CROSS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("b", (5, 5), (6, 6))
    world.run()
    world.calls.forget()

    world.step().run_changelist(world.lake, {"b": [{"j": 6}]})

    assert sorted(world.calls.keys()) == [(1, 6), (2, 6)]
    assert_right(world)


def test_aliased_input_takes_its_own_column_names(tmp_path: Path) -> None:
    world = make_world(ALIAS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("b", (1, 10))
    world.run()
    world.calls.forget()

    world.step().run_changelist(world.lake, {"b": pd.DataFrame({"ref": [1]})})

    assert world.calls.keys() == [(1,)]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"image": [1]}, "no input 'image'"),
        ({"a": [{"v": 1}]}, "have no column 'id'"),
        ({"a": ["x"]}, "do not fit int64"),
        ({}, "by the name of an input"),
        ([1], "by the name of an input"),
        ({"a": [{"id": 1}, 2]}, "not a frame, dicts"),
    ],
)
def test_keys_that_make_no_sense_are_refused(keys: Any, said: str, tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))

    with pytest.raises(BadStep, match=said):
        world.step().run_changelist(world.lake, keys)
