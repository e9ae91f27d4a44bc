"""A view that is replaced, cut short at any change of the disk: readers have old rows or all new ones, never both.

No Spark: DuckDB answers the queries.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

import floodmark as fm
from faults.crash_states import WHOLE, Part, chosen_states, parts
from faults.recording import HastyFileSystem, RecordingFileSystem, WatchedFileSystem
from floodmark.views import refresh as refreshing
from profiles import sample
from transforms.crashing import Crash, DyingFileSystem
from views.remade_worlds import (
    COUNTS,
    FINER,
    TEXTS,
    in_order,
    make_lake,
    open_lake,
    right,
    shown,
    without_spark,
)

NAMES = ["daily", "daily-old-1", "flights"]


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


def filled(folder: Path) -> fm.Lake:
    """A successor that is filled, and has yet to take its place."""
    lake = make_lake(folder)
    lake.view("daily", sql=FINER)
    with mock.patch.object(refreshing, "install", side_effect=Crash), pytest.raises(Crash):
        lake.view("daily").refresh()
    return lake


def cut_short(folder: Path, tmp_path: Path, work: Callable[[fm.Lake], object], part: Part) -> Iterator[fm.Lake]:
    """The lake after work that ended at some changes of the disk, under soak at each, and at last by itself."""
    counted = WatchedFileSystem()
    work(open_lake(shutil.copytree(folder, tmp_path / "whole"), counted))
    for nth in sample(range(counted.changes + 1), 4)[part.number :: part.of]:
        copy = shutil.copytree(folder, tmp_path / f"crash{nth}")
        with suppress(Crash):
            work(open_lake(copy, DyingFileSystem(nth)))
        yield open_lake(copy, HastyFileSystem())
        shutil.rmtree(copy)


def refresh(lake: fm.Lake) -> object:
    return lake.view("daily").refresh()


def check_ends_well(lake: fm.Lake) -> bool:
    """That readers have the one or the other, and the next refresh ends it; whether they had the new rows."""
    old, new = right(lake, COUNTS), right(lake, FINER)
    found = shown(lake)
    assert found in (old, new)
    assert [view.name for view in lake.views()] == ["daily"]
    assert lake.view("daily").definition.sql == FINER
    lake.view("daily").refresh()
    assert shown(lake) == new
    assert shown(lake, "daily-old-1") == old
    assert [dataset.name for dataset in lake] == NAMES
    assert lake.view("daily").refresh().nothing
    assert all(dataset.verify().ok for dataset in lake)
    return found == new


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
def test_taking_the_place_that_crashes_after_any_file_operation_is_ended_by_the_next_refresh(part, tmp_path):
    filled(tmp_path / "before")
    outcomes = [check_ends_well(lake) for lake in cut_short(tmp_path / "before", tmp_path, refresh, part)]
    assert outcomes == sorted(outcomes)
    assert False in outcomes


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
def test_filling_that_crashes_is_ended_by_the_next_refresh(part, tmp_path):
    make_lake(tmp_path / "before").view("daily", sql=FINER)
    outcomes = [check_ends_well(lake) for lake in cut_short(tmp_path / "before", tmp_path, refresh, part)]
    assert outcomes == sorted(outcomes)
    assert False in outcomes


@pytest.mark.soak
def test_declaring_that_crashes_leaves_the_one_definition_or_the_other(tmp_path):
    make_lake(tmp_path / "before")
    seen = set()
    for lake in cut_short(tmp_path / "before", tmp_path, lambda lake: lake.view("daily", sql=FINER), WHOLE):
        found = lake.view("daily").definition.sql
        seen.add(found)
        assert found in (COUNTS, FINER)
        lake.view("daily").refresh()
        assert shown(lake) == right(lake, found)
        lake.view("daily", sql=TEXTS).refresh()
        assert shown(lake) == right(lake, TEXTS)
    assert seen == {COUNTS, FINER}


@pytest.mark.soak
def test_declaring_back_that_crashes_leaves_the_one_definition_or_the_other(tmp_path):
    filled(tmp_path / "before")
    seen = set()
    for lake in cut_short(tmp_path / "before", tmp_path, lambda lake: lake.view("daily", sql=COUNTS), WHOLE):
        found = lake.view("daily").definition.sql
        seen.add(found)
        lake.view("daily").refresh()
        assert shown(lake) == right(lake, found)
        assert lake["daily"].verify().ok
    assert seen == {COUNTS, FINER}


@pytest.mark.parametrize("then", ["declare", "drop", "rename", "refresh"])
def test_after_a_crash_between_the_names_the_old_view_is_found(tmp_path, then):
    """The old rows have their other name, and the name of the view stands for them still."""
    lake = filled(tmp_path / "lake")
    with mock.patch("floodmark.ledger.names.swap", side_effect=Crash), pytest.raises(Crash):
        refresh(lake)
    assert shown(lake) == shown(lake, "daily-old-1") == right(lake, COUNTS)
    assert not lake.view("daily").plan_refresh().nothing_to_do
    if then == "declare":
        assert lake.view("daily", sql=COUNTS).refresh().nothing
        assert [dataset.name for dataset in lake] == ["daily", "flights"]
        return
    if then == "drop":
        lake.drop("daily")
        assert [dataset.name for dataset in lake] == NAMES[1:]
    else:
        view = lake.view(lake.rename("daily", "weekly").name if then == "rename" else "daily")
        assert view.refresh().kept_as == "daily-old-1"
        assert in_order(view.to_arrow()) == right(lake, FINER)
    assert shown(lake, "daily-old-1") == right(lake, COUNTS)


def test_old_name_of_a_swap_that_was_cut_short_refreshes_the_view(tmp_path):
    lake = filled(tmp_path / "lake")
    with mock.patch("floodmark.ledger.names.swap", side_effect=Crash), pytest.raises(Crash):
        refresh(lake)
    assert not lake.view("daily-old-1").refresh().nothing
    assert shown(lake) == right(lake, FINER)
    assert [dataset.name for dataset in lake] == NAMES


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(8), ids=str)
def test_crash_of_the_machine_while_taking_the_place_loses_neither_old_rows_nor_new_ones(part, tmp_path):
    """Also where what was written last is lost, or torn."""
    filled(tmp_path / "run" / "lake")
    recorder = RecordingFileSystem(tmp_path / "run")
    refresh(open_lake(tmp_path / "run" / "lake", recorder))
    recorder.mark("refreshed")
    for number, state in enumerate(chosen_states(recorder.recording, 2, part)):
        folder = tmp_path / f"state{number}"
        state.materialise(folder)
        is_new = check_ends_well(open_lake(folder / "lake", HastyFileSystem()))
        assert is_new or not state.acknowledged, state.story
        shutil.rmtree(folder)
