"""A disk that is full, or fails once, costs no row of a timeline, and leaves nothing unfinished."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import floodmark as fm
from faults.crash_states import Part, parts
from faults.recording import HastyFileSystem, WatchedFileSystem
from faults.test_full_disk import FILLING, full_from, once
from faults.timeline_runs import (
    NAME,
    SCENARIOS,
    Judged,
    Scenario,
    is_behind_a_purge,
    open_lake,
    problem_from_here_on,
    problem_of_purging_again,
    purge,
)
from floodmark.storage.local import LocalStore
from profiles import IN_FULL, sample

OPERATIONS = [s for s in SCENARIOS if s.name in ("spread", "always", "retract", "fold", "catch-up", "purge")]
SOME = ("always", "fold", "purge")  # all of them under soak
LOGGED = "may have copies of purged records"


class Trial:
    """One step on copies of one lake, each disturbed in another way."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario, self._folder = scenario, folder
        self.cut_short = 0  # how often a purge did not come to the timeline
        scenario.prepare(folder / "prepared")
        self._judged = Judged()

    def calls(self) -> list[str]:
        fs = WatchedFileSystem()
        root = self._copy("calls")
        self._scenario.step(self._judged.lake_on(LocalStore(root / "lake", fs)))
        shutil.rmtree(root)
        return fs.calls

    def problem(self, name: str, fs: WatchedFileSystem, is_logged: Callable[[], bool]) -> str | None:
        """What is wrong after a step met with a failure; `is_logged` says whether the log names purged records."""
        root = self._copy(name)
        cut_short = False  # the caller must get an error then, or a warning
        try:
            self._scenario.step(self._judged.lake_on(LocalStore(root / "lake", fs)))
        except fm.FloodmarkError as error:
            cut_short = True
            if not error.hint:
                return f"no hint: {error!r}"
        staging = root / "lake" / ".staging"
        if staging.exists() and (left := list(staging.iterdir())):
            return f"left in staging: {left}"
        lake, may_be_left = open_lake(root, HastyFileSystem()), cut_short or is_logged()
        self.cut_short += is_behind_a_purge(lake[NAME])
        problem = self._judged.problem(files_in(root), may_be_left, lambda: self._problem_of(root, may_be_left))
        shutil.rmtree(root)
        return problem

    def _problem_of(self, root: Path, cut_short: bool) -> str | None:
        lake = open_lake(root, HastyFileSystem())
        if is_behind_a_purge(lake[NAME]) and (problem := self._problem_of_purging_again(root)):
            return problem
        return problem_from_here_on(lake, cut_short)

    def _problem_of_purging_again(self, root: Path) -> str | None:
        again = self._copy("again", root)
        problem = problem_of_purging_again(open_lake(again, HastyFileSystem()))
        shutil.rmtree(again)
        return problem

    def _copy(self, name: str, source: Path | None = None) -> Path:
        root = self._folder / name
        shutil.copytree(source or self._folder / "prepared", root)
        return root


def files_in(root: Path) -> dict[str, bytes | None]:
    """Everything in a folder; a folder in it has no content."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize("failure", [once, full_from])
@pytest.mark.parametrize("scenario", [s for s in OPERATIONS if IN_FULL or s.name in SOME], ids=str)
def test_failure_of_any_call_costs_no_row(scenario, failure, part: Part, tmp_path, caplog):
    trial = Trial(scenario, tmp_path)
    calls = trial.calls()
    assert len(calls) > 10
    chosen = [nth for nth, call in enumerate(calls) if call in FILLING]
    for nth in sample(chosen, 2)[part.number :: part.of]:
        caplog.clear()
        problem = trial.problem(str(nth), WatchedFileSystem(failure(nth)), lambda: LOGGED in caplog.text)
        assert problem is None, f"{calls[nth]}, call {nth}: {problem}"
    assert scenario.step is purge or not trial.cut_short
