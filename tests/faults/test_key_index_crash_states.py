"""Whatever a crash leaves of the key index, the next who asks gets right answers, and so does the next write."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.crash_states import CrashState, Part, chosen_states, parts
from faults.recording import HastyFileSystem, Recording, RecordingFileSystem
from floodmark.ledger import snapshot as snapshots
from floodmark.rows import key_index_files, key_index_loader
from floodmark.storage.local import LocalStore
from limits import set_limit
from rows.ledgers import ADD, NEW, OLD, RETRACT, Ledger, Row, wrong

COMMITS: list[list[Row]] = [
    [(ADD, 0, 1, 1), (ADD, 0, 2, 1), (ADD, 1, 3, 1)],
    [(OLD, 0, 1, 1), (NEW, 0, 1, 2), (RETRACT, 0, 2, 1)],
    [(ADD, 0, 2, 5), (OLD, 1, 3, 1), (NEW, 1, 3, 2)],
]
LAST: list[Row] = [(RETRACT, 0, 1, 2), (ADD, 2, 2, 2)]


def opened(root: Path, fs: Any) -> Ledger:
    """The ledger in a folder, with what a dictionary says of its records."""
    ledger = Ledger(LocalStore(root / "lake", fs))
    for row in [row for rows in COMMITS for row in rows][: ledger.snapshot().next_offset]:
        ledger.note(row)
    return ledger


def before_the_last(ledger: Ledger) -> snapshots.Snapshot:
    previous = ledger.snapshot().head_block.prev_block_hash
    assert previous is not None
    return snapshots.load_snapshot(ledger.objects, previous, {})


def index_all_but_the_last(ledger: Ledger) -> None:
    key_index_loader.load(before_the_last(ledger), {})


def index_all(ledger: Ledger) -> None:
    key_index_loader.load(ledger.snapshot(), {})


def index_nothing(ledger: Ledger) -> None:
    """The index was never made."""


def extend(ledger: Ledger) -> None:
    """What a writer does after its commit."""
    rows = COMMITS[-1]
    records = ledger.records(rows, 6, [-1, 2, 2])
    ledger.extended(key_index_loader.load(before_the_last(ledger), {}), ledger.snapshot(), [records])


def catch_up(ledger: Ledger) -> None:
    key_index_loader.load(ledger.snapshot(), {})


def rebuild(ledger: Ledger) -> None:
    key_index_loader.rebuild(ledger.snapshot(), {})


@dataclass(frozen=True)
class Scenario:
    """An update of the index whose file-system calls are recorded, after others that happened long ago."""

    name: str
    before: Callable[[Ledger], None]
    update: Callable[[Ledger], None]
    fan_out: int = 8

    def __str__(self) -> str:
        return self.name

    def recorded(self, root: Path, patched: pytest.MonkeyPatch) -> Recording:
        set_limit(patched, "tiers.fan_out", self.fan_out)
        root.mkdir()
        ledger = opened(root, HastyFileSystem())
        for rows in COMMITS:
            ledger.commit(rows)
        self.before(ledger)
        recorder = RecordingFileSystem(root)
        self.update(opened(root, recorder))
        return recorder.recording


SCENARIOS = [
    Scenario("extend", index_all_but_the_last, extend),
    Scenario("merge", index_all_but_the_last, extend, fan_out=2),
    Scenario("catch-up", index_all_but_the_last, catch_up),
    Scenario("first", index_nothing, catch_up),
    Scenario("rebuild", index_all, rebuild),
]


def problem(state: CrashState, folder: Path) -> str | None:
    """What is wrong with the index after a crash, and after the next write, None when nothing is."""
    root = state.materialise(folder)
    try:
        ledger = opened(root, HastyFileSystem())
        cache: key_index_files.RunCache = {}
        found = key_index_loader.with_repair(ledger.snapshot(), cache, lambda now: wrong(now, ledger))
        if found is None:
            before = key_index_loader.load(ledger.snapshot(), cache)
            snapshot, records = ledger.commit(LAST)
            found = wrong(ledger.extended(before, snapshot, records), ledger)
        if found is None:
            found = key_index_loader.with_repair(ledger.snapshot(), {}, lambda now: wrong(now, ledger))
        return found and f"{found}\n{state.story}"
    finally:
        shutil.rmtree(root)


def first_problem(states: Iterable[CrashState], folder: Path) -> str | None:
    return next((found for state in states if (found := problem(state, folder))), None)


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_index_is_right_after_a_crash(scenario, part: Part, tmp_path, monkeypatch):
    recording = scenario.recorded(tmp_path / "run", monkeypatch)
    assert first_problem(chosen_states(recording, 8, part), tmp_path / "state") is None


def test_index_of_a_commit_that_was_lost_is_not_used_for_another_in_its_place(tmp_path):
    """A copy of the lake from before the commit was put back, but for the index."""
    ledger = opened(tmp_path, HastyFileSystem())
    ledger.commit(COMMITS[0])
    head = ledger.store.get(ledger.objects.head_key)
    ledger.commit(COMMITS[1])
    index_all(ledger)
    ledger.store.compare_and_swap(ledger.objects.head_key, ledger.store.get(ledger.objects.head_key), head)
    again = opened(tmp_path, HastyFileSystem())
    again.commit([(RETRACT, 1, 3, 1), (ADD, 1, 4, 1), (ADD, 1, 5, 1)])
    assert key_index_loader.with_repair(again.snapshot(), {}, lambda now: wrong(now, again)) is None
