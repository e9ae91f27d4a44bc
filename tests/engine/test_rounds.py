"""Work shared out in rounds: every unit is done once, and what slow tasks give back is cut by their speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.engine.call_size import CallTimes
from floodmark.engine.progress import SilentProgress
from floodmark.engine.rounds import PROBE_FRACTION, TaskPace, TaskRunner, run_rounds
from floodmark.engine.session import Session

TARGET = 10.0


@dataclass(frozen=True)
class Task:
    """Some rows."""

    rows_of: tuple[int, ...]

    @property
    def rows(self) -> int:
        return len(self.rows_of)


@dataclass(frozen=True)
class Applied:
    """The first rows of a task, done at some speed; the others are given back."""

    rows_done: tuple[int, ...]
    left: tuple[int, ...]
    seconds: float
    failed: int = 0
    times: CallTimes = CallTimes()  # noqa: RUF009  it is frozen

    @property
    def done(self) -> int:
        return len(self.rows_done)

    @property
    def rows(self) -> int:
        return self.done


class Here(TaskRunner):
    """Calls the function at once, and notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__(Session())
        self.rounds: list[tuple[list[int], int]] = []

    def run(self, tasks: Sequence[Any], function: Callable[[Any], Any], *, worth: Any, rows: int, **_: Any) -> Any:
        self.rounds.append(([task.rows for task in tasks], rows))
        results = [function(task) for task in tasks]
        for result in results:
            worth(result)
        return results


@dataclass
class Counted(SilentProgress):
    """Counts what failed."""

    failed: int = 0

    def fail(self, units: int = 1) -> None:
        self.failed += units


@dataclass
class Cut:
    """Cuts rows into tasks, and notes the pace of each round."""

    unknown: int
    paces: list[TaskPace] = field(default_factory=list)

    def __call__(self, units: Sequence[int], pace: TaskPace) -> list[Task]:
        self.paces.append(pace)
        each = max(1, self.unknown if pace.rows is None else pace.rows)
        return [Task(tuple(units[at : at + each])) for at in range(0, len(units), each)]


def shared(rows: int, cut: Cut, function: Callable[[Task], Applied], runner: TaskRunner, progress: Any = None) -> Any:
    """What came of each round."""
    told = progress or SilentProgress()
    return list(
        run_rounds(range(rows), cut, lambda: function, runner, target_seconds=TARGET, progress=told, halve=never)
    )


def never(task: Task) -> None:
    return None


@given(st.integers(0, 60), st.integers(1, 20), st.lists(st.integers(0, 8), min_size=1, max_size=9), st.data())
def test_every_unit_is_done_once_whatever_tasks_give_back(rows, each, patience, data):
    runner, cut = Here(), Cut(each)

    def function(task: Task) -> Applied:
        most = data.draw(st.sampled_from(patience), label="rows until patience ends")
        done = task.rows_of[: max(1, most)]
        return Applied(done, task.rows_of[len(done) :], data.draw(st.floats(0, 100), label="seconds"))

    rounds = shared(rows, cut, function, runner)
    assert sorted(row for round_ in rounds for applied in round_ for row in applied.rows_done) == list(range(rows))
    assert [total for _, total in runner.rounds] == [sum(sizes) for sizes, _ in runner.rounds]
    assert len(rounds) == len(cut.paces) == len(runner.rounds)


def test_tasks_are_cut_by_the_speed_of_the_round_before():
    runner, cut = Here(), Cut(unknown=8)

    def function(task: Task) -> Applied:
        return Applied(task.rows_of[:2], task.rows_of[2:], seconds=4.0)

    shared(16, cut, function, runner)
    assert [sizes for sizes, _ in runner.rounds][:3] == [[8, 8], [5, 5, 2], [5, 1]]  # half a row each second
    assert [pace.is_first for pace in cut.paces][:3] == [True, False, False]
    assert [pace.patience for pace in cut.paces][:3] == [TARGET * PROBE_FRACTION, TARGET, TARGET]


def test_round_in_which_nothing_was_timed_leaves_the_pace_as_it_was():
    nothing = [Applied((), (1,), 0.0)]
    assert TaskPace(TARGET).after(nothing) == TaskPace(TARGET, None, is_first=False)
    assert TaskPace(TARGET, 3.0).after(nothing) == TaskPace(TARGET, 3.0, is_first=False)
    assert TaskPace(TARGET, 3.0).after([Applied((1, 2), (), 0.5), Applied((3,), (), 1.0)]).rate == 2.0


def test_next_round_has_the_function_that_knows_what_was_learnt():
    learnt: list[int] = []
    known: list[tuple[int, ...]] = []

    def function() -> Callable[[Task], Applied]:
        known.append(tuple(learnt))
        return lambda task: Applied(task.rows_of[:1], task.rows_of[1:], 1.0)

    steps = run_rounds(range(3), Cut(9), function, Here(), target_seconds=9.0, progress=SilentProgress(), halve=never)
    for round_ in steps:
        learnt += [row for applied in round_ for row in applied.rows_done]
    assert known == [(), (0,), (0, 1)]


def test_progress_is_told_of_what_failed():
    progress = Counted()
    shared(6, Cut(3), lambda task: Applied(task.rows_of, (), 1.0, failed=2), Here(), progress)
    assert progress.failed == 4


def test_nothing_to_do_asks_for_nothing():
    runner = Here()
    assert (
        list(run_rounds([], Cut(1), pytest.fail, runner, target_seconds=1.0, progress=SilentProgress(), halve=never))
        == []
    )
    assert runner.rounds == []
