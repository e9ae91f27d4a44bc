"""A crash of the machine after any file operation of an update, a fold or a purge loses and doubles nothing."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import CrashState, crash_states
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem, fsync_calls, without
from faults.timeline_runs import (
    NAME,
    SCENARIOS,
    Scenario,
    collect,
    damage,
    open_lake,
    problem_from_here_on,
    purge,
    timeline_problem,
)
from timeline.oracle import found

pytestmark = pytest.mark.timeout(1200)  # many states, each of which is opened, written to and folded

QUICK = ("narrow", "fold-a-day")
EVERY = 10_000
"""The two ends of every operation."""
MANY = 24
"""While so many deletions of a collection wait, states between the ends are not even made, unless all are asked for."""
SOME = 24
"""So many states of each other scenario; `python -m faults.test_timeline_crash_states` in tests/ goes through all."""
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
        rows = found(dataset).to_pylist()
        # A new column, which comes by a commit of its own, is null at first.
        return dataset.snapshot().next_offset, [{n: v for n, v in row.items() if v is not None} for row in rows]

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
        if problem := self._problem_of_rows(root, state):
            return problem
        # Deleting is not made durable, so copies of purged records come back even after all is done.
        cut_short = self.scenario.step is purge
        return self._problem_of_old_root(root) or problem_from_here_on(self._lake(root), cut_short)

    def _problem_of_rows(self, root: Path, state: CrashState) -> str | None:
        try:
            seen = self._seen(root)
        except fm.FloodmarkError as error:
            return f"cannot be read: {error!r}"
        if seen not in ([self.after] if state.acknowledged else [self.before, self.after]):
            return f"neither before nor after: {seen[0]} records, {len(seen[1])} rows"
        return None

    def verified(self, state: CrashState) -> str | None:
        """What verify tells after a crash, of which readers must not notice anything."""
        root = state.materialise(self._folder / "state")
        try:
            problem = self._problem_of_rows(root, state)
            assert problem is None, f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"
            return damage(self._lake(root)[NAME])
        finally:
            shutil.rmtree(root)

    def states_of_new_root(self) -> list[CrashState]:
        """The ends after each operation from where there is another root: nothing names the new files before that."""
        root = str(self.old_root.relative_to(self._folder / "run"))
        return [state for state in self.states(EVERY) if state.files.get(root) != self.old_bytes]

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

    def states(self, most: int | None) -> list[CrashState]:
        """After each operation what is left when all that waited is lost, and when all is kept, and all between.

        Or so many of these, chosen at random: each is opened, written to and folded, which takes a second.
        """
        by_step: dict[str, list[CrashState]] = {}
        thin_from = MANY if most is not None and self.scenario.step is collect else None
        for state in crash_states(self.recording, thin_from=thin_from):
            by_step.setdefault(state.story.splitlines()[0], []).append(state)
        ends = [state for states in by_step.values() for state in (states[0], states[-1])]
        others = [state for states in by_step.values() for state in states[1:-1]]
        found = list({(s.digest, len(s.acknowledged)): s for s in (*ends, *(others if most is None else ()))}.values())
        return found if most is None or most >= len(found) else random.Random(1).sample(found, most)

    def first_problem(self, most: int | None) -> str | None:
        return next((found for state in self.states(most) if (found := self.problem(state))), None)


@pytest.mark.parametrize("scenario", CASES)
def test_crash_after_any_file_operation_loses_and_doubles_nothing(scenario, tmp_path):
    trial = Trial(scenario, tmp_path)
    assert len(trial.recording.operations) > 8
    assert trial.first_problem(EVERY if scenario.name in QUICK else SOME) is None


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name == "spread"], ids=str)
def test_every_fsync_of_the_timeline_is_needed_or_harmless_to_leave_out(scenario, tmp_path, monkeypatch):
    """Without any one of them readers see the same rows, and verify tells of what a needed one did not make durable.

    All those of contents are needed. Of those of names each folder's last one is, since it makes the earlier ones
    durable too; and none for the root itself: the old one is as good.
    """
    monkeypatch.setattr("floodmark.timeline.change.tasks._THREADS", 1)  # the nth call is the same one each time
    whole = Trial(scenario, tmp_path / "whole")
    assert [whole.verified(state) for state in whole.states_of_new_root()] == [None] * len(whole.states_of_new_root())
    calls = fsync_calls(whole.recording)
    commit = next(number for number, (_, _, path) in enumerate(calls) if path.endswith("/refs"))
    calls = calls[commit + 1 :]
    needed = []
    for number, (call, nth, path) in enumerate(calls):
        trial = Trial(scenario, tmp_path / str(number), lambda fs, call=call, nth=nth: without(fs, call, nth))
        states = trial.states_of_new_root()
        assert states
        told = [trial.verified(state) for state in states]  # of all of them: rows are looked at too
        if any(told):
            needed.append((call, nth, path))
    folders = {Path(path).name: (call, nth, path) for call, nth, path in calls if call == "fsync_dir"}
    contents = [each for each in calls if each[0] == "fsync_file"]
    assert len(contents) > 5
    assert sorted(needed) == sorted([*contents, folders["files"], folders["manifests"]])


def main() -> None:
    """Every state of every scenario, or of those named; takes an hour."""
    for scenario in SCENARIOS:
        if len(sys.argv) < 2 or scenario.name in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                print(scenario.name, Trial(scenario, Path(folder)).first_problem(None) or "right", flush=True)


if __name__ == "__main__":
    main()
