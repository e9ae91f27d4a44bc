"""A process that ends at any call of its store, before or after it is done, loses and doubles nothing of a timeline."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
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
from floodmark.storage.errors import StorageError, SwapUnknown
from floodmark.storage.memory import MemoryStore
from timeline.layouts import purged_copies
from timeline.oracle import expected

CHANGING = ("put_if_absent", "put_file", "put_derived", "put_derived_file", "compare_and_swap", "delete")
QUICK = ("spread",)


class Ended(BaseException):
    """The process is no more."""


class Mortal:
    """A store whose process ends at its nth change; nothing is done after that."""

    def __init__(self, inner: MemoryStore, nth: int, last_is_done: bool) -> None:
        self._inner, self._nth, self._last_is_done = inner, nth, last_is_done
        self._counter = itertools.count()
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if not callable(real):
            return real

        def call(*args: Any) -> Any:
            if self.ended:
                raise Ended
            if name in CHANGING and next(self._counter) == self._nth:
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


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, id=s.name, marks=[] if s.name in QUICK else pytest.mark.slow) for s in SCENARIOS],
)
def test_process_that_ends_at_any_call_loses_and_doubles_nothing(scenario):
    start = prepared(scenario)
    whole = Watched(copied(start))
    judged = Judged()  # what is left by a call that is done is mostly what the next one finds when it is not
    scenario.step(judged.lake_on(whole, scenario.later))
    for last_is_done in (False, True):
        assert_each_end_is_right(scenario, start, last_is_done, whole.seen, judged)


def assert_each_end_is_right(
    scenario: Scenario, start: MemoryStore, last_is_done: bool, seen: list[pa.Table], judged: Judged
) -> None:
    reached = 0  # a new column comes by a commit of its own: a step may have several, which come one after the other
    for nth in itertools.count():
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
        if not mortal.ended:
            assert nth > 1
            assert now.equals(seen[-1])
            break


def problem_of_end(store: MemoryStore, later: float, ended: bool) -> str | None:
    lake = lake_on(store, later)
    is_cut_short = is_behind_a_purge(lake[NAME]) or purged_copies(lake[NAME])
    again = problem_of_purging_again(lake_on(copied(store))) if is_cut_short else None
    return again or problem_from_here_on(lake, cut_short=ended)


class Flaky:
    """A store in which one call fails, once."""

    def __init__(self, inner: MemoryStore, nth: int, where: str) -> None:
        self._inner, self._nth, self._where = inner, nth, where
        self._counter = itertools.count()
        self.failed = ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name not in (*CHANGING, "get", "stat", "list", "open", "get_range"):
            return real

        def call(key: str, *args: Any) -> Any:
            if self._where in key and next(self._counter) == self._nth:
                self.failed = name
                if name == "compare_and_swap":
                    raise SwapUnknown("the network is down", hint="check the network", key=key, url="")
                raise StorageError("the network is down", hint="check the network")
            return real(key, *args)

        return call


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name in ("spread", "retract")], ids=str)
def test_write_stands_whichever_call_for_its_timeline_fails(scenario, caplog):
    start, judged = prepared(scenario), Judged()
    for nth in itertools.count():
        caplog.clear()
        store = copied(start)
        flaky = Flaky(store, nth, "/info/timeline/")
        scenario.step(judged.lake_on(flaky))
        if not flaky.failed:
            assert nth > 2
            break
        lake = lake_on(store)
        behind = lake[NAME].timeline_stats().behind
        assert behind == 0 or "its timeline is behind" in caplog.text, f"{flaky.failed}, call {nth}: not a word"
        problem = judged.problem(objects_in(store), None, partial(problem_from_here_on, lake))
        assert problem is None, f"{flaky.failed}, call {nth}: {problem}"


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.name in ("fold", "catch-up")], ids=str)
def test_fold_or_update_that_fails_says_so_and_can_be_done_again(scenario, every):
    start, judged = prepared(scenario), Judged()
    refusals: list[fm.FloodmarkError] = []
    for nth in itertools.count(0, every):
        store = copied(start)
        flaky = Flaky(store, nth, "/info/timeline/")
        try:
            scenario.step(judged.lake_on(flaky))
        except fm.FloodmarkError as error:
            refusals.append(error)
        if not flaky.failed:
            break
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
