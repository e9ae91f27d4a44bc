"""A disk that is full, or fails once, costs no row of a timeline, and leaves nothing unfinished."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from faults.test_full_disk import FILLING, Failing, full_from, once
from faults.timeline_runs import NAME, SCENARIOS, Scenario, open_lake, problem_from_here_on, timeline_problem

OPERATIONS = [s for s in SCENARIOS if s.name in ("spread", "always", "retract", "fold", "catch-up", "purge")]
QUICK = ("always",)


class Trial:
    """One step on copies of one lake, each disturbed in another way."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario, self._folder = scenario, folder
        scenario.prepare(folder / "prepared")

    def calls(self) -> list[str]:
        fs = Failing(lambda number, name: None)
        root = self._copy("calls")
        self._scenario.step(open_lake(root, fs))
        shutil.rmtree(root)
        return fs.calls

    def problem(self, name: str, fs: Failing) -> str | None:
        root = self._copy(name)
        try:
            self._scenario.step(open_lake(root, fs))
        except fm.FloodmarkError as error:
            if not error.hint:
                return f"no hint: {error!r}"
        staging = root / "lake" / ".staging"
        if staging.exists() and (left := list(staging.iterdir())):
            return f"left in staging: {left}"
        lake = open_lake(root, HastyFileSystem())
        problem = timeline_problem(lake[NAME]) or problem_from_here_on(lake)
        shutil.rmtree(root)
        return problem

    def _copy(self, name: str) -> Path:
        root = self._folder / name
        shutil.copytree(self._folder / "prepared", root)
        return root


@pytest.mark.parametrize("failure", [once, full_from])
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, id=s.name, marks=[] if s.name in QUICK else pytest.mark.slow) for s in OPERATIONS],
)
def test_failure_of_any_call_costs_no_row(scenario, failure, tmp_path):
    trial = Trial(scenario, tmp_path)
    calls = trial.calls()
    assert len(calls) > 10
    chosen = [nth for nth, call in enumerate(calls) if call in FILLING]
    if scenario.name in QUICK:
        chosen = chosen[::3]
    for nth in chosen:
        problem = trial.problem(str(nth), Failing(failure(nth)))
        assert problem is None, f"{calls[nth]}, call {nth}: {problem}"
