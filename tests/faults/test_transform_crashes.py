"""A run that ends after any change of the disk: the next one makes it right and repeats nothing that was stored."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from floodmark.storage.local import LocalStore
from transform.crashing import Crash, DyingFileSystem
from transform.oracle import assert_right
from transform.worlds import (
    CROSS,
    JOIN,
    MAP,
    MOVING_GROUPS,
    ONE_TO_MANY,
    TWO_OUTPUTS,
    Case,
    World,
    in_this_process,
    make_world,
)

OFTEN = 0.0  # seconds: every chunk is a checkpoint


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def fill(world: World) -> None:
    for number, source in enumerate(world.case.sources):
        rows = []
        for i in range(4):
            values = {"id": i + number, "ref": i + number, "i": i, "j": i, "n": i, "cat": i % 2, "g": i % 2}
            rows.append(tuple(values.get(column, i + 5) for column in source.columns))
        if source.key is not None:
            at = [list(source.columns).index(column) for column in source.key]
            rows = list({tuple(row[n] for n in at): row for row in rows}.values())
        world.write(source.name, *rows)


def change(world: World) -> None:
    """An update, a delete and a new row in every input."""
    for source in world.case.sources:
        dataset = world.lake[source.name]
        rows = [tuple(row[c] for c in source.columns) for row in dataset.to_arrow().to_pylist()]
        world.write(source.name, (*rows[0][:-1], 33), (*[9] * (len(source.columns) - 1), 8))
        if source.key is not None:
            dataset.delete([{c: rows[1][list(source.columns).index(c)] for c in source.key}])


class Crashes:
    """The same run, cut short at every (or every so many) changes of the disk, each time on a copy of the lake."""

    def __init__(self, world: World, folder: Path, every: int, **options: Any) -> None:
        self._world, self._folder, self._every, self._options = world, folder, every, options

    def __iter__(self) -> Iterator[World]:
        for nth in range(0, 10**6, self._every):
            copy = self._folder / f"crash{nth}"
            shutil.copytree(self._world.calls.folder, copy)
            world = World(self._world.case, self._open(copy, nth), type(self._world.calls)(copy), self._world.options)
            world.calls.forget()
            try:
                world.step(self._options.get("version", "1")).run(world.lake, **self._options.get("run", {}))
                ended = True
            except Crash:
                ended = False
            world.lake = self._open(copy, 10**9)
            yield world
            shutil.rmtree(copy)
            if ended:
                return

    def _open(self, copy: Path, nth: int) -> fm.Lake:
        return fm.Lake(LocalStore(copy / "lake", DyingFileSystem(nth)), runtime=fm.Runtime(checkpoint_seconds=OFTEN))


def check(world: World, version: str, stored_from: int) -> None:
    """After a crash the chains are whole, both ways see the same changes, and the next run makes everything right."""
    factor = {"1": 10, "2": 100}[version]
    for dataset in world.lake:
        assert dataset.verify().problems == ()
    crashed = world.calls.count()
    assert set(crashed.values()) <= {1}
    step = world.step(version)
    assert_same_changelists(step, world)
    step.run(world.lake)
    assert_right(world, factor)
    again = sum(n > 1 for n in world.calls.count().values())
    assert again <= stored_from, f"{again} keys were called twice, of {len(crashed)} before the crash"
    assert step.run(world.lake).nothing
    assert {**world.positions()} == world.heads()


def assert_same_changelists(step: fm.BatchTransform, world: World) -> None:
    found = [
        set(zip(*(step.changelist(world.lake, offsets)[k].to_pylist() for k in world.case.keys), strict=True))
        for offsets in (True, False)
    ]
    assert found[0] == found[1]


def crashes(
    case: Case, tmp_path: Path, again: bool, version: str = "1", chunk_size: int = 2, every: int = 1, **how: Any
) -> int:
    """Every crash of a first run, or of a run after some changes; how many there were."""
    world = make_world(case, tmp_path / "before", chunk_size=chunk_size)
    fill(world)
    if again:
        world.run()
        change(world)
    count = 0
    for crashed in Crashes(world, tmp_path, every, version=version, run=how):
        # One chunk may have been computed and not stored; with no limit on its keys that is all there is.
        check(crashed, version, chunk_size)
        count += 1
    return count


CLOSELY = [MAP, JOIN, TWO_OUTPUTS]
SELDOM = 4


@pytest.mark.slow
@pytest.mark.parametrize("case", [MAP, ONE_TO_MANY, JOIN, CROSS, MOVING_GROUPS, TWO_OUTPUTS], ids=str)
@pytest.mark.parametrize("again", [False, True], ids=["first run", "changes"])
def test_run_that_crashes_after_any_file_operation_is_made_right_by_the_next(case, again, tmp_path):
    every = 1 if case in CLOSELY else SELDOM
    assert crashes(case, tmp_path, again, every=every) > 12 // every


@pytest.mark.slow
@pytest.mark.parametrize("case", [MAP, ONE_TO_MANY, CROSS], ids=str)
def test_run_of_several_commits_that_crashes_after_any_file_operation_keeps_them(case, tmp_path):
    every = SELDOM if case is MAP else 4 * SELDOM  # each commit takes many operations
    assert crashes(case, tmp_path, False, chunk_size=1, every=every, commit_every=2) > 20 // every


@pytest.mark.slow
@pytest.mark.parametrize("case", [MAP, TWO_OUTPUTS], ids=str)
def test_new_version_that_crashes_after_any_file_operation_shows_old_or_new_and_never_both(case, tmp_path):
    assert crashes(case, tmp_path, True, version="2") > 10


def test_what_crashed_before_its_commit_is_not_computed_again(tmp_path):
    """Of twenty keys in chunks of one, a crash just before the end loses one at most."""
    world = make_world(MAP, tmp_path / "before", chunk_size=1)
    world.write("a", *[(i, i) for i in range(20)])
    seen = []
    for nth in (60, 90, 120, 150):
        copy = tmp_path / str(nth)
        shutil.copytree(world.calls.folder, copy)
        store = LocalStore(copy / "lake", DyingFileSystem(nth))
        mine = World(MAP, fm.Lake(store, runtime=fm.Runtime(checkpoint_seconds=OFTEN)), type(world.calls)(copy), {})
        try:
            mine.step(chunk_size=1).run(mine.lake)
        except Crash:
            seen.append(len(mine.calls.keys()))
        mine.lake = fm.Lake(copy / "lake")
        mine.step(chunk_size=1).run(mine.lake)
        assert sum(n - 1 for n in mine.calls.count().values()) <= 1
        assert_right(mine)
    assert any(seen), "no crash came in the middle"
