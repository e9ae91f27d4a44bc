"""A run that ends after any change of the disk: the next one makes it right and repeats nothing that was stored."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import Part, parts
from faults.recording import HastyFileSystem, WatchedFileSystem
from floodmark.storage.local import LocalStore
from profiles import IN_FULL, sample
from transforms.crashing import Crash, DyingFileSystem
from transforms.oracle import assert_right
from transforms.worlds import (
    AUXILIARY,
    COARSE,
    CROSS,
    JOIN,
    JOIN_CROSS,
    LINKED,
    LINKED_GROUPS,
    MAP,
    MOVING_GROUPS,
    ONE_TO_MANY,
    TWICE,
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
    """The same run, cut short at some changes of the disk, or under soak at each, each time on a copy of the lake."""

    def __init__(self, world: World, folder: Path, ci: int, part: Part, **options: Any) -> None:
        self._world, self._folder, self._ci, self._part, self._options = world, folder, ci, part, options

    def __iter__(self) -> Iterator[World]:
        counted = WatchedFileSystem()
        world = self._copied("whole", counted)
        self._run(world)
        shutil.rmtree(world.calls.folder)
        for nth in sample(range(counted.changes + 1), self._ci)[self._part.number :: self._part.of]:
            world = self._copied(f"crash{nth}", DyingFileSystem(nth))
            with suppress(Crash):
                self._run(world)
            world.lake = self._open(world.calls.folder, HastyFileSystem())
            yield world
            shutil.rmtree(world.calls.folder)

    def _run(self, world: World) -> None:
        world.step(self._options.get("version", "1")).run(world.lake, **self._options.get("run", {}))

    def _copied(self, name: str, fs: Any) -> World:
        copy = self._folder / name
        shutil.copytree(self._world.calls.folder, copy)
        world = World(self._world.case, self._open(copy, fs), type(self._world.calls)(copy), self._world.options)
        world.calls.forget()
        return world

    def _open(self, copy: Path, fs: Any) -> fm.Lake:
        return fm.Lake(LocalStore(copy / "lake", fs), runtime=fm.Runtime(checkpoint_seconds=OFTEN))


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


def check_crashes(
    case: Case,
    tmp_path: Path,
    part: Part,
    again: bool,
    version: str = "1",
    chunk_size: int = 2,
    ci: int = 2,
    **how: Any,
) -> None:
    """Crash a first run, or a run after some changes."""
    world = make_world(case, tmp_path / "before", chunk_size=chunk_size)
    fill(world)
    if again:
        world.run()
        change(world)
    for crashed in Crashes(world, tmp_path, ci, part, version=version, run=how):
        # One chunk may have been computed and not stored; with no limit on its keys that is all there is.
        check(crashed, version, chunk_size)


SHAPES = (JOIN_CROSS, AUXILIARY, TWICE, COARSE, LINKED, LINKED_GROUPS)
ALL = [
    (case, again)
    for case in (MAP, ONE_TO_MANY, JOIN, CROSS, MOVING_GROUPS, TWO_OUTPUTS, *SHAPES)
    for again in (False, True)
]
SOME = [(MAP, False), (ONE_TO_MANY, True), (CROSS, False), (MOVING_GROUPS, True), (LINKED, True)]


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize(("case", "again"), ALL if IN_FULL else SOME, ids=str)
def test_run_that_crashes_after_any_file_operation_is_made_right_by_the_next(case, again, part, tmp_path):
    check_crashes(case, tmp_path, part, again)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(8), ids=str)
@pytest.mark.parametrize("case", [JOIN, *([MAP, ONE_TO_MANY, CROSS] if IN_FULL else [])], ids=str)
def test_run_of_several_commits_that_crashes_after_any_file_operation_keeps_them(case, part, tmp_path):
    check_crashes(case, tmp_path, part, False, chunk_size=1, commit_every=2)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize("case", [TWO_OUTPUTS, *([MAP] if IN_FULL else [])], ids=str)
def test_new_version_that_crashes_after_any_file_operation_shows_old_or_new_and_never_both(case, part, tmp_path):
    check_crashes(case, tmp_path, part, True, version="2")


def test_what_crashed_before_its_commit_is_not_computed_again(tmp_path):
    """Of eight keys in chunks of one, a crash just before the end loses one at most."""
    world = make_world(MAP, tmp_path / "before", chunk_size=1)
    world.write("a", *[(i, i) for i in range(8)])
    seen = []
    for nth in (20, 50):
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
