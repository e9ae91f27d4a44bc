"""After a crash of the machine at any moment of a run outputs are as before or as after, and the next run is right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import CrashState, Part, chosen_states, parts
from faults.recording import HastyFileSystem, RecordingFileSystem
from faults.test_transform_crashes import assert_same_changelists, change, fill
from floodmark.dataset import Dataset
from floodmark.storage.local import LocalStore
from profiles import IN_FULL
from transforms.oracle import expected, input_rows, shown
from transforms.worlds import JOIN, MAP, TWO_OUTPUTS, Calls, Case, World, in_this_process, make_world

SOME = [(MAP, "1"), (TWO_OUTPUTS, "2")]
OTHERS = [(MAP, "2"), (JOIN, "1"), (JOIN, "2"), (TWO_OUTPUTS, "1")]
STATES = 2  # besides those that every sample holds
THOROUGH = 5  # one of so many states is looked at closely, under soak each
# Other tests lose the derived files of a ledger; here they are lost under soak.
VOLATILE = (".staging",) if IN_FULL else (".staging", "index", "keys", "rows")


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def recorded_states(world: World, version: str, part: Part) -> Iterator[CrashState]:
    """What a disk may hold after a crash during a run."""
    recorder = RecordingFileSystem(Path(world.lake.store.url).parent)
    lake = fm.Lake(LocalStore(world.lake.store.url, recorder), runtime=fm.Runtime(checkpoint_seconds=0.0))
    world.step(version).run(lake)
    recorder.mark("run")
    return chosen_states(recorder.recording, STATES, part, VOLATILE)


def lost(dataset: Dataset) -> list[Any]:
    """What verify finds, but for the key index: it is derived, and the next reader repairs it."""
    return [problem for problem in dataset.verify().problems if problem.kind != "keys"]


def look(world: World, state: CrashState, seen: list[Any], version: str, thoroughly: bool) -> None:
    found = shown(world.lake, world.case)
    first = world.case.outputs[0].name
    if state.acknowledged:
        assert found == seen[-1], f"what was acknowledged is lost\n{state.story}"
    assert found[first] in [before[first] for before in seen], f"neither before nor after\n{state.story}"
    for dataset in world.lake:
        assert lost(dataset) == [], state.story
    step = world.step(version)
    if thoroughly:
        assert_same_changelists(step, world)
    step.run(world.lake)
    right = expected(world.case, input_rows(world.lake, world.case), {"1": 10, "2": 100}[version])
    assert shown(world.lake, world.case) == right, state.story
    if thoroughly:
        assert step.run(world.lake).nothing, state.story
        for dataset in world.lake:
            assert lost(dataset) == [], state.story


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(40), ids=str)
@pytest.mark.parametrize(
    ("case", "version"),
    [*SOME, *(OTHERS if IN_FULL else [])],
    ids=str,
)
def test_crash_of_the_machine_leaves_outputs_as_before_or_as_after(
    case: Case, version: str, part: Part, tmp_path: Path
):
    world = make_world(case, tmp_path / "run")
    fill(world)
    world.run()
    change(world)
    before = shown(world.lake, case)
    states = recorded_states(world, version, part)
    seen = [before, shown(world.lake, case)]
    assert seen[0] != seen[1]
    for number, state in enumerate(states):
        folder = tmp_path / f"state{number}"
        state.materialise(folder)
        lake = fm.Lake(LocalStore(folder / "lake", HastyFileSystem()))
        after = World(case, lake, Calls(folder), world.options)
        look(after, state, seen, version, thoroughly=IN_FULL or number % THOROUGH == 0)
        shutil.rmtree(folder)
