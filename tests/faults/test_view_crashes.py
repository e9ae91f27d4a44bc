"""A refresh that ends after any change of the disk: a view is as before or as after, and the next one is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from columns.counting import Calls
from faults.crash_states import Part, chosen_states, parts
from faults.recording import HastyFileSystem, RecordingFileSystem, WatchedFileSystem
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.local import LocalStore
from profiles import IN_FULL, sample
from transforms.crashing import Crash, DyingFileSystem
from transforms.worlds import in_this_process
from views.view_oracle import Scratch, assert_same, bag
from views.view_worlds import (
    CASES,
    CHECKPOINT_ROWS,
    ViewWorld,
    answers_remembered,
    make_view_world,
    open_lake,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOAK = IN_FULL
# Other tests lose the derived files of a ledger; here they are lost under soak.
VOLATILE = (".staging",) if SOAK else (".staging", "index", "keys", "rows")

FIRST = [(i, "abc"[i % 3], i % 2, i) for i in range(8)]
CRASHES = 1  # besides at the first change, at the last and after it
PARTNERS = {"weather": [("a", 10), ("b", 20)], "notes": [(1, "a", 1), (2, "b", 2)]}


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process(), answers_remembered():
        yield


@pytest.fixture(scope="module")
def scratch(spark: Any) -> Scratch:
    return Scratch(spark)


def fill(folder: Path, session: Any, name: str) -> ViewWorld:
    """A view that was never refreshed, of sources with some rows."""
    world = make_view_world(folder, session, name)
    world.source("flights", *FIRST)
    for source in CASES[name].sources:
        if source in PARTNERS:
            world.source(source, *PARTNERS[source])
    return world


def change(world: ViewWorld, name: str) -> None:
    """A row is new, one changes, one moves to another group and one goes; a partner changes."""
    world.source("flights", (20, "a", 0, 6), (3, "a", 1, 7), (4, "c", 0, 4))
    world.lake["flights"].delete([5])
    if "weather" in CASES[name].sources:
        world.source("weather", ("b", 30))


def shown(world: ViewWorld, name: str) -> list[dict[str, Any]]:
    return [] if world.lake[name].schema is None else world.rows(name)


def copies(world: ViewWorld, tmp_path: Path, session: Any, name: str) -> Iterator[tuple[ViewWorld, bool]]:
    """The same refresh, cut short at some changes of the disk, under soak at each; and whether it ended by itself."""
    counted = WatchedAtHome()
    whole = shutil.copytree(world.calls.folder, tmp_path / "whole")
    ViewWorld(open_lake(whole, session), Calls(whole), dict(world.versions)).refresh(
        name, open_lake(whole, session, counted)
    )
    for nth in sample(range(counted.changes + 1), CRASHES):
        folder = tmp_path / f"crash{nth}"
        shutil.copytree(world.calls.folder, folder)
        copy = ViewWorld(open_lake(folder, session), Calls(folder), dict(world.versions))
        copy.calls.forget()
        ended = True
        try:
            copy.refresh(name, open_lake(folder, session, DyingFileSystem(nth)))
        except Crash:
            ended = False
        yield copy, ended
        shutil.rmtree(folder)


def crashed(world: ViewWorld, tmp_path: Path, session: Any, scratch: Scratch, name: str) -> None:
    before = shown(world, name)
    right = scratch.rows(world.lake, world.version(name).sql, CASES[name].sources)
    assert bag(before) != bag(right)
    outcomes = []
    for copy, ended in copies(world, tmp_path, session, name):
        found = bag(shown(copy, name))
        assert found in (bag(before), bag(right))
        assert not ended or found == bag(right)
        outcomes.append(found == bag(right))
        assert copy.lake[name].verify().problems == ()
        copy.refresh(name)
        assert_same(shown(copy, name), right)
        calls = copy.calls.count()
        assert sum(calls.values()) - len(calls) <= CHECKPOINT_ROWS, f"too many rows were computed twice: {calls}"
        assert copy.refresh(name).nothing
        assert copy.lake[name].verify().problems == ()
    assert not outcomes[0]
    assert outcomes[-1]


class WatchedAtHome(WatchedFileSystem):
    """Counts in this process; in those of Spark, which know no tests, it is an ordinary one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OsFileSystem, ()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["grouped", "called", *(["kept", "left_joined", "totals"] if SOAK else [])])
def test_refresh_that_crashes_after_any_file_operation_is_made_good_by_the_next(name, tmp_path, session, scratch):
    world = fill(tmp_path / "before", session, name)
    world.refresh(name)
    change(world, name)
    crashed(world, tmp_path, session, scratch, name)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["keyless", *(["called"] if SOAK else [])])
def test_first_refresh_that_crashes_after_any_file_operation_is_made_good_by_the_next(name, tmp_path, session, scratch):
    crashed(fill(tmp_path / "before", session, name), tmp_path, session, scratch, name)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "number"), [("kept", 2), *([("grouped", 2), ("rekeyed", 1)] if SOAK else [])])
def test_changed_definition_that_crashes_shows_the_old_or_the_new_and_never_both(
    name, number, tmp_path, session, scratch
):
    world = fill(tmp_path / "before", session, name)
    world.refresh(name)
    world.declare(name, number)
    crashed(world, tmp_path, session, scratch, name)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(20), ids=str)
def test_crash_of_the_machine_leaves_a_view_as_before_or_as_after(part: Part, tmp_path, session, scratch):
    """Also where what was written last is lost, or torn."""
    name = "grouped"
    world = fill(tmp_path / "run", session, name)
    world.refresh(name)
    change(world, name)
    before = bag(world.rows(name))
    recorder = RecordingFileSystem(tmp_path / "run")
    recorded = fm.Lake(LocalStore(tmp_path / "run" / "lake", recorder), runtime=world.lake.runtime)
    world.refresh(name, recorded)
    recorder.mark("refreshed")
    after = bag(world.rows(name))
    for number, state in enumerate(chosen_states(recorder.recording, 2, part, VOLATILE)):
        folder = tmp_path / f"state{number}"
        state.materialise(folder)
        lake = fm.Lake(LocalStore(folder / "lake", HastyFileSystem()), runtime=world.lake.runtime)
        copy = ViewWorld(lake, Calls(folder), dict(world.versions))
        found = bag(copy.rows(name))
        assert found == after if state.acknowledged else found in (before, after), state.story
        copy.refresh(name)
        assert bag(copy.rows(name)) == after, state.story
        assert copy.refresh(name).nothing, state.story
        assert [p for p in lake[name].verify().problems if p.kind != "keys"] == [], state.story
        shutil.rmtree(folder)
