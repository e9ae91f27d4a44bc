"""A crash of the machine after any file operation of an update, a fold or a purge loses and doubles nothing."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import CrashState, crash_states
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem, fsync_calls, without
from faults.timeline_runs import NAME, SCENARIOS, Scenario, open_lake, problem_from_here_on, timeline_problem
from timeline.oracle import found

pytestmark = pytest.mark.timeout(1200)  # many states, each of which is opened, written to and folded

QUICK = ("narrow", "fold-a-day")
CASES = [pytest.param(s, id=s.name, marks=[] if s.name in QUICK else pytest.mark.slow) for s in SCENARIOS]


class Trial:
    """One step, recorded, and what readers saw before and after it."""

    def __init__(self, scenario: Scenario, folder: Path, alter: Callable[[Any], Any] = lambda fs: fs) -> None:
        self.scenario, self._folder = scenario, folder
        root = folder / "run"
        root.mkdir(parents=True)
        scenario.prepare(root)
        self.before = self._seen(root)
        self.old_root = self._root_file(root)
        self.old_bytes = self.old_root.read_bytes() if self.old_root.exists() else None
        recorder = RecordingFileSystem(root)
        scenario.step(open_lake(root, alter(recorder), scenario.later))
        recorder.mark(scenario.name)
        self.recording: Recording = recorder.recording
        self.after = self._seen(root)

    def _seen(self, root: Path) -> tuple[int, list[Any]]:
        dataset = open_lake(root, HastyFileSystem())[NAME]
        return dataset.snapshot().next_offset, found(dataset).to_pylist()

    def _root_file(self, root: Path) -> Path:
        objects = open_lake(root, HastyFileSystem())[NAME].snapshot().objects
        return root / "lake" / objects.folder / "info" / "timeline" / "root"

    def problem(self, state: CrashState) -> str | None:
        """What is wrong with the lake when it is opened after a crash."""
        root = state.materialise(self._folder / "state")
        try:
            problem = self._problem_of(root, state)
        finally:
            shutil.rmtree(root)
        return problem and f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"

    def _problem_of(self, root: Path, state: CrashState) -> str | None:
        try:
            seen = self._seen(root)
        except fm.FloodmarkError as error:
            return f"cannot be read: {error!r}"
        if seen not in ([self.after] if state.acknowledged else [self.before, self.after]):
            return f"neither before nor after: {seen[0]} records, {len(seen[1])} rows"
        return self._problem_of_old_root(root) or problem_from_here_on(self._lake(root))

    def _problem_of_old_root(self, root: Path) -> str | None:
        """Whoever has read the old root before the crash can read on: all its files are there."""
        if not self.scenario.keeps_files or self.old_bytes is None:
            return None
        file = self._root_file(root)
        now = file.read_bytes()
        file.write_bytes(self.old_bytes)
        problem = timeline_problem(self._lake(root)[NAME])
        file.write_bytes(now)
        return problem and f"by the old root: {problem}"

    def _lake(self, root: Path) -> fm.Lake:
        return open_lake(root, HastyFileSystem(), self.scenario.later)

    def states(self, more: int) -> Iterator[CrashState]:
        """After each operation what is left when all that waited is lost, and when all is kept; and some between."""
        by_step: dict[str, list[CrashState]] = {}
        for state in crash_states(self.recording):
            by_step.setdefault(state.story.splitlines()[0], []).append(state)
        ends = [state for states in by_step.values() for state in (states[0], states[-1])]
        others = [state for states in by_step.values() for state in states[1:-1]]
        chosen = [*ends, *random.Random(1).sample(others, min(more, len(others)))]
        yield from {(state.digest, len(state.acknowledged)): state for state in chosen}.values()

    def first_problem(self, more: int) -> str | None:
        return next((found for state in self.states(more) if (found := self.problem(state))), None)


@pytest.mark.parametrize("scenario", CASES)
def test_crash_after_any_file_operation_loses_and_doubles_nothing(scenario, tmp_path):
    trial = Trial(scenario, tmp_path)
    assert len(trial.recording.operations) > 8
    assert trial.first_problem(more=0 if scenario.name in QUICK else 20) is None


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_many_more_crashes_lose_and_double_nothing(scenario, tmp_path):
    assert Trial(scenario, tmp_path).first_problem(more=150) is None


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name in ("spread", "fold")], ids=str)
def test_every_fsync_of_the_timeline_is_needed_or_harmless_to_leave_out(scenario, tmp_path):
    """Of those that make the timeline's own files durable at least one turns red when it is left out."""
    calls = [c for c in fsync_calls(Trial(scenario, tmp_path / "all").recording) if "/info/timeline/" in c[2]]
    assert calls
    red = 0
    for number, (call, nth, _) in enumerate(calls):
        trial = Trial(scenario, tmp_path / str(number), lambda fs, call=call, nth=nth: without(fs, call, nth))
        red += trial.first_problem(more=40) is not None
        if red:
            break
    assert red
