"""After a crash at any moment a dataset has all commits that were acknowledged, and none by halves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import floodmark as fm
from faults.crash_states import CrashState, Part, chosen_states, crash_states, parts
from faults.recording import HastyFileSystem, Mark, failing, fsync_calls, without
from faults.small_lake import (
    NAME,
    SCENARIOS,
    START,
    Checker,
    Scenario,
    advance,
    create,
    open_lake,
    purge,
    write,
    write_slices,
    write_state,
)
from floodmark.ledger import names as names_module
from profiles import IN_FULL, sample

STATES = 16
FAILING = [s for s in SCENARIOS if s.name not in ("catch-up", "merge", "life")]
SOME = ("create", "write-slices", "purge")


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(2), ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_every_crash_leaves_whole_commits_and_a_dataset_that_takes_more(scenario: Scenario, part: Part, tmp_path):
    recording = scenario.recorded(tmp_path / "run")
    assert [op.name for op in recording.operations if isinstance(op, Mark)] == [s.__name__ for s in scenario.steps]
    checker = Checker(scenario, tmp_path / "states")
    assert checker.first_problem(chosen_states(recording, STATES, part)) is None


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [s for s in FAILING if IN_FULL or s.name in SOME], ids=str)
def test_what_is_acknowledged_in_spite_of_a_failed_fsync_survives_a_crash(scenario: Scenario, tmp_path):
    checker = Checker(scenario, tmp_path / "states")
    calls = fsync_calls(scenario.recorded(tmp_path / "run"))
    assert calls
    for number, (call, nth, _) in enumerate(sample(calls, 2)):
        recording = scenario.recorded(tmp_path / f"run {number}", lambda fs, c=call, n=nth: failing(fs, c, n))
        assert checker.first_problem(chosen_states(recording, 2)) is None


def advance_again(lake: fm.Lake) -> None:
    assert lake[NAME].advance_watermark(START + timedelta(days=1)) is None


def purge_again(lake: fm.Lake) -> None:
    assert lake[NAME].purge(before=4).slices == 0


AGAIN = [(write_state, write_state), (advance, advance_again), (purge, purge_again)]


@pytest.mark.parametrize(("step", "again"), AGAIN, ids=["write", "advance", "purge"])
def test_what_another_process_did_before_it_died_is_durable_once_it_is_found_done(step, again, tmp_path):
    """The other one moved the head and was killed before it could sync that; then the machine crashes."""
    scenario = Scenario("found-done", (step, again), (create, write, write_slices))
    calls = fsync_calls(scenario.recorded(tmp_path / "run"))
    call, nth, _ = next(found for found in calls if found[2].endswith("/refs"))
    recording = scenario.recorded(tmp_path / "died", lambda fs: without(fs, call, nth))
    checker = Checker(scenario, tmp_path / "states")
    states = [state for state in chosen_states(recording, STATES) if len(state.acknowledged) == 2]
    assert len(states) > 1
    assert [problem for state in states if (problem := checker.problem(state))] == []


def names_after_crash(state: CrashState, folder: Path) -> list[str]:
    lake = open_lake(state.materialise(folder) / "lake", HastyFileSystem(), hour=2)
    assert {dataset.count() for dataset in lake} == {2}
    return [dataset.name for dataset in lake]


@pytest.mark.parametrize("new", ["rides", NAME.upper()])
def test_crash_while_renaming_never_leaves_a_dataset_without_a_name(new, tmp_path):
    def rename(lake: fm.Lake) -> None:
        lake.rename(NAME, new)

    states = list(crash_states(Scenario("rename", (rename,), (create, write)).recorded(tmp_path / "run")))
    left = [(state.acknowledged, names_after_crash(state, tmp_path / str(i))) for i, state in enumerate(states)]
    assert {tuple(names) for done, names in left if done} == {(new,)}
    assert {tuple(names) for done, names in left if not done} <= {(NAME,), (new,), (new, NAME)}
    assert len(left) >= 3


def test_rename_that_was_cut_short_can_be_done_again_or_taken_back(tmp_path):
    lake = open_lake(tmp_path / "lake", HastyFileSystem())
    for old in ("a", "b"):
        dataset = lake.create(old)
        names_module.claim(lake.store, f"new-{old}", dataset.id)  # what a crash leaves: two names
    lake.rename("a", "new-a")
    lake.drop("new-b")
    assert [dataset.name for dataset in lake] == ["b", "new-a"]
    assert all(dataset.verify().ok for dataset in lake)
