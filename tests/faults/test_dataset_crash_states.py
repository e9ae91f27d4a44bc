"""After a crash at any moment a dataset has all commits that were acknowledged, and none by halves."""

from __future__ import annotations

import pytest

from faults.crash_states import crash_states
from faults.recording import failing, fsync_calls
from faults.small_lake import SCENARIOS, Checker, Scenario


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_every_crash_leaves_whole_commits_and_a_dataset_that_takes_more(scenario: Scenario, tmp_path):
    recording = scenario.recorded(tmp_path / "run")
    checker = Checker(scenario, tmp_path / "states")
    assert checker.first_problem(recording) is None
    acknowledged = [len(state.acknowledged) for state in crash_states(recording)]
    assert set(acknowledged) == set(range(len(scenario.steps) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if len(s.steps) == 1], ids=str)
def test_what_is_acknowledged_in_spite_of_a_failed_fsync_survives_a_crash(scenario: Scenario, tmp_path):
    checker = Checker(scenario, tmp_path / "states")
    calls = fsync_calls(scenario.recorded(tmp_path / "run"))
    assert calls
    for number, (call, nth, _) in enumerate(calls):
        recording = scenario.recorded(tmp_path / f"run {number}", lambda fs, c=call, n=nth: failing(fs, c, n))
        assert checker.first_problem(recording) is None
