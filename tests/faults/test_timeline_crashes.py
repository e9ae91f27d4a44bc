"""A process that ends at any call of its store, before or after it is done, loses and doubles nothing of a timeline."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from faults.crash_states import Part, parts
from faults.timeline_runs import (
    NAME,
    SCENARIOS,
    Judged,
    Scenario,
    is_behind_a_purge,
    lake_on,
    problem_from_here_on,
    problem_of_purging_again,
    timeline_problem,
)
from floodmark.errors import StorageError, SwapUnknown
from floodmark.storage.memory import MemoryStore
from profiles import IN_FULL, sample
from timeline.layouts import purged_copies
from timeline.oracle import expected

CHANGING = ("put_if_absent", "put_file", "put_derived", "put_derived_file", "compare_and_swap", "delete")
# All scenarios run under soak. The others differ from these in what is merged, not in the order of what is published.
SOME = ("spread", "retract", "fold", "purge")
ENDS = 2  # of about a hundred calls


class Ended(BaseException):
    """The process is no more."""


class Mortal:
    """A store whose process ends at its nth change; nothing is done after that."""

    def __init__(self, inner: MemoryStore, nth: int, last_is_done: bool) -> None:
        self._inner, self._nth, self._last_is_done = inner, nth, last_is_done
        self.changes = 0
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        def call(*args: Any) -> Any:
            if self.ended:
                raise Ended
            self.changes += name in CHANGING
            if name in CHANGING and self.changes == self._nth + 1:
                self.ended = True
                if self._last_is_done:
                    real(*args)
                raise Ended
            return real(*args)

        return call


def prepared(scenario: Scenario) -> MemoryStore:
    store = MemoryStore()
    scenario.prepare_in(lake_on(store))
    return store


def copied(store: MemoryStore) -> MemoryStore:
    other = MemoryStore()
    for info in list(store.list("")):
        other.put_if_absent(info.key, store.get(info.key))
    return other


def objects_in(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list("")}


class Watched:
    """A store that keeps what readers of the ledger see at first and after each swap."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.seen = [self._look()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        done = self._inner.compare_and_swap(key, expected, new)
        self.seen.append(self._look())
        return done

    def _look(self) -> pa.Table:
        return expected(lake_on(self._inner)[NAME])


@pytest.mark.soak
@pytest.mark.parametrize("part", parts(4), ids=str)
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if IN_FULL or s.name in SOME], ids=str)
def test_process_that_ends_at_any_call_loses_and_doubles_nothing(scenario, part: Part):
    start = prepared(scenario)
    whole = Watched(copied(start))
    judged = Judged()  # what is left by a call that is done is mostly what the next one finds when it is not
    counted = Mortal(whole, -1, last_is_done=True)
    scenario.step(judged.lake_on(counted, scenario.later))
    assert counted.changes > 1
    numbers = sample(range(counted.changes + 1), ENDS)[part.number :: part.of]
    for last_is_done in (False, True) if IN_FULL else (False,):
        assert_each_end_is_right(scenario, start, numbers, last_is_done, whole.seen, judged)


def assert_each_end_is_right(
    scenario: Scenario,
    start: MemoryStore,
    numbers: list[int],
    last_is_done: bool,
    seen: list[pa.Table],
    judged: Judged,
) -> None:
    reached = 0  # a new column comes by a commit of its own: a step may have several, which come one after the other
    for nth in numbers:
        store = copied(start)
        mortal = Mortal(store, nth, last_is_done)
        try:
            scenario.step(judged.lake_on(mortal, scenario.later))
        except (Ended, fm.FloodmarkError):  # what another thread meets after the end may be taken for a failure
            assert mortal.ended
        lake = lake_on(store, scenario.later)
        now = expected(lake[NAME])
        found = next((n for n, each in enumerate(seen) if n >= reached and now.equals(each)), None)
        assert found is not None, f"call {nth}: the ledger itself is wrong"
        reached = found
        find = partial(problem_of_end, store, scenario.later, mortal.ended)
        problem = judged.problem(objects_in(store), mortal.ended, find)
        assert problem is None, f"ended at change {nth}, {last_is_done=}: {problem}"
        assert mortal.ended or now.equals(seen[-1])


def problem_of_end(store: MemoryStore, later: float, ended: bool) -> str | None:
    lake = lake_on(store, later)
    is_cut_short = is_behind_a_purge(lake[NAME]) or purged_copies(lake[NAME])
    again = problem_of_purging_again(lake_on(copied(store))) if is_cut_short else None
    return again or problem_from_here_on(lake, cut_short=ended)


class Flaky:
    """A store in which one call fails, once."""

    def __init__(self, inner: MemoryStore, nth: int, where: str) -> None:
        self._inner, self._nth, self._where = inner, nth, where
        self.calls = 0
        self.failed = ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in (*CHANGING, "get", "stat", "list", "open", "get_range"):
            return real

        def call(key: str, *args: Any) -> Any:
            self.calls += self._where in key
            if self._where in key and self.calls == self._nth + 1:
                self.failed = name
                if name == "compare_and_swap":
                    raise SwapUnknown("the network is down", hint="check the network", key=key, url="")
                raise StorageError("the network is down", hint="check the network")
            return real(key, *args)

        return call


def calls_for_the_timeline(scenario: Scenario, start: MemoryStore, judged: Judged) -> int:
    counted = Flaky(copied(start), -1, "/info/timeline/")
    scenario.step(judged.lake_on(counted))
    return counted.calls


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name in ("spread", "retract")], ids=str)
def test_write_stands_whichever_call_for_its_timeline_fails(scenario, caplog):
    start, judged = prepared(scenario), Judged()
    for nth in sample(range(calls_for_the_timeline(scenario, start, judged)), 2):
        caplog.clear()
        store = copied(start)
        flaky = Flaky(store, nth, "/info/timeline/")
        scenario.step(judged.lake_on(flaky))
        assert flaky.failed
        lake = lake_on(store)
        behind = lake[NAME].timeline_stats().behind
        assert behind == 0 or "its timeline is behind" in caplog.text, f"{flaky.failed}, call {nth}: not logged"
        problem = judged.problem(objects_in(store), None, partial(problem_from_here_on, lake))
        assert problem is None, f"{flaky.failed}, call {nth}: {problem}"


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name in ("fold", "catch-up")], ids=str)
def test_fold_or_update_that_fails_says_so_and_can_be_done_again(scenario):
    start, judged = prepared(scenario), Judged()
    refusals: list[fm.FloodmarkError] = []
    for nth in sample(range(calls_for_the_timeline(scenario, start, judged)), 2):
        store = copied(start)
        flaky = Flaky(store, nth, "/info/timeline/")
        try:
            scenario.step(judged.lake_on(flaky))
        except fm.FloodmarkError as error:
            refusals.append(error)
        assert flaky.failed
        problem = judged.problem(objects_in(store), None, partial(problem_of_doing_it_again, lake_on(store), scenario))
        assert problem is None, f"{flaky.failed}, call {nth}: {problem}"
    assert refusals
    assert [repr(error) for error in refusals if not error.hint] == []


def problem_of_doing_it_again(lake: fm.Lake, scenario: Scenario) -> str | None:
    if problem := timeline_problem(lake[NAME]):
        return problem
    scenario.step(lake)
    problem = timeline_problem(lake[NAME])
    return problem and f"and again: {problem}"
