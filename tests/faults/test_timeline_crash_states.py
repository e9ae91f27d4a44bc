"""A crash of the machine after any file operation of an update, a fold or a purge loses and doubles nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floodmark as fm
from faults.crash_states import CrashState, Part, chosen_states, parts, sampled_states
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem, fsync_calls, without
from faults.timeline_runs import (
    NAME,
    SCENARIOS,
    Scenario,
    damage,
    open_lake,
    problem_from_here_on,
    purge,
    timeline_problem,
)
from limits import set_limit
from profiles import IN_FULL, examples, sample
from timeline.oracle import found

# All scenarios run under soak. The others differ from these in what is merged, not in the order of what is published.
SOME = ("narrow", "fold", "purge")
CASES = [s for s in SCENARIOS if IN_FULL or s.name in SOME]
STATES = 2  # besides those that every sample holds
GOES_ON = 12  # after every so many states the lake is also written to and folded, which takes most of the time


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

    def problem(self, state: CrashState, goes_on: bool) -> str | None:
        """What is wrong with the lake when it is opened after a crash, and when it is written to and folded then."""
        root = state.materialise(self._folder / state.digest[:16])
        try:
            problem = self._problem_of(root, state, goes_on)
        finally:
            shutil.rmtree(root)
        return problem and f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"

    def _problem_of(self, root: Path, state: CrashState, goes_on: bool) -> str | None:
        if problem := self._problem_of_rows(root, state):
            return problem
        # Deleting is not made durable, so copies of purged records come back even after all is done.
        cut_short = self.scenario.step is purge
        if not goes_on:
            return damage(self._lake(root)[NAME], cut_short)
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
        """What verify reports after a crash that readers must not notice."""
        root = state.materialise(self._folder / state.digest[:16])
        try:
            problem = self._problem_of_rows(root, state)
            assert problem is None, f"{problem}\n{state.story}\nacknowledged: {state.acknowledged}"
            return damage(self._lake(root)[NAME])
        finally:
            shutil.rmtree(root)

    def states_of_new_root(self) -> list[CrashState]:
        """States from where there is another root: nothing names the new files before that."""
        root = str(self.old_root.relative_to(self._folder / "run"))
        states = sampled_states(self.recording, examples(10))
        return [state for state in states if state.files.get(root) != self.old_bytes]

    def _problem_of_old_root(self, root: Path) -> str | None:
        """A reader that has read the old root before the crash can read on: all its files are there."""
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

    def first_problem(self, part: Part) -> str | None:
        numbered = enumerate(chosen_states(self.recording, STATES, part))
        found = (self.problem(state, goes_on=IN_FULL or n % GOES_ON == 0) for n, state in numbered)
        return next(filter(None, found), None)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(8), ids=str)
@pytest.mark.parametrize("scenario", CASES, ids=str)
def test_crash_after_any_file_operation_loses_and_doubles_nothing(scenario: Scenario, part: Part, tmp_path: Path):
    trial = Trial(scenario, tmp_path)
    assert len(trial.recording.operations) > 8
    assert trial.first_problem(part) is None


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(6), ids=str)
def test_every_fsync_of_the_timeline_is_needed_or_harmless_to_leave_out(part: Part, tmp_path, monkeypatch):
    """Without any one of them readers see the same rows, and verify reports what a needed one did not make durable.

    All those of contents are needed. Of those of names each folder's last one is, since it makes the earlier ones
    durable too; and none for the root itself: the old one is as good.
    """
    [scenario] = [s for s in SCENARIOS if s.name == "spread"]
    set_limit(monkeypatch, "tasks.threads", 1)  # the nth call is the same one each time
    whole = Trial(scenario, tmp_path / "whole")
    calls = fsync_calls(whole.recording)
    commit = next(number for number, (_, _, path) in enumerate(calls) if path.endswith("/refs"))
    calls = calls[commit + 1 :]
    folders = {Path(path).name: (call, nth, path) for call, nth, path in calls if call == "fsync_dir"}
    contents = [each for each in calls if each[0] == "fsync_file"]
    assert len(contents) > 5
    needed = [*contents, folders["files"], folders["manifests"]]
    for number, left_out in enumerate(sample(calls, 2)[part.number :: part.of]):
        call, nth, _ = left_out
        trial = Trial(scenario, tmp_path / str(number), lambda fs, call=call, nth=nth: without(fs, call, nth))
        states = trial.states_of_new_root()
        assert states
        reported = [trial.verified(state) for state in states]  # of all of them: rows are looked at too
        assert any(reported) == (left_out in needed), left_out
