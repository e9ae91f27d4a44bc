"""After a crash of the machine at any moment of a run outputs are as before or as after, and the next run is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import CrashState, crash_states
from faults.recording import HastyFileSystem, RecordingFileSystem
from faults.test_transform_crashes import assert_same_changelists, change, fill
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from transform.oracle import expected, input_rows, shown
from transform.worlds import JOIN, MAP, TWO_OUTPUTS, Calls, Case, World, in_this_process, make_world

STATES = 16


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def recorded_states(world: World, version: str) -> list[CrashState]:
    """What a disk may hold after a crash during a run; folders for unfinished files are nobody's."""
    recorder = RecordingFileSystem(Path(world.lake.store.url).parent)
    lake = fm.Lake(LocalStore(world.lake.store.url, recorder), runtime=fm.Runtime(checkpoint_seconds=0.0))
    world.step(version).run(lake)
    recorder.mark("run")
    return list(crash_states(recorder.recording))


def spread(states: list[CrashState], count: int) -> list[CrashState]:
    """So many of them, evenly, and always the last."""
    every = max(1, len(states) // count)
    return [*states[::every], states[-1]]


def lost(dataset: Dataset) -> list[Any]:
    """What verify finds, but for the key index: it is derived, and made again by whoever meets the damage."""
    return [problem for problem in dataset.verify().problems if problem.kind != "keys"]


def look(world: World, state: CrashState, seen: list[Any], version: str) -> None:
    found = shown(world.lake, world.case)
    first = world.case.outputs[0].name
    if state.acknowledged:
        assert found == seen[-1], f"what was acknowledged is lost\n{state.story}"
    assert found[first] in [before[first] for before in seen], f"neither before nor after\n{state.story}"
    for dataset in world.lake:
        assert lost(dataset) == [], state.story
    step = world.step(version)
    assert_same_changelists(step, world)
    step.run(world.lake)
    right = expected(world.case, input_rows(world.lake, world.case), {"1": 10, "2": 100}[version])
    assert shown(world.lake, world.case) == right, state.story
    assert step.run(world.lake).nothing, state.story
    for dataset in world.lake:
        assert lost(dataset) == [], state.story


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1", "2"], ids=["changes", "new version"])
@pytest.mark.parametrize("case", [MAP, JOIN, TWO_OUTPUTS], ids=str)
def test_crash_of_the_machine_leaves_outputs_as_before_or_as_after(case: Case, version: str, tmp_path: Path):
    world = make_world(case, tmp_path / "run")
    fill(world)
    world.run()
    change(world)
    before = shown(world.lake, case)
    states = recorded_states(world, version)
    seen = [before, shown(world.lake, case)]
    assert seen[0] != seen[1]
    outcomes = set()
    for number, state in enumerate(spread(states, STATES)):
        folder = tmp_path / f"state{number}"
        state.materialise(folder)
        lake = fm.Lake(LocalStore(folder / "lake", HastyFileSystem()))
        after = World(case, lake, Calls(folder), world.options)
        outcomes.add(str(shown(lake, case)))
        look(after, state, seen, version)
        shutil.rmtree(folder)
    assert len(outcomes) >= 2, "all crashes came before the commit, or after it"
