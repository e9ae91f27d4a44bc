"""Which tasks are still to be done: the decisions about retrying, halving and giving up, without Spark."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from floodmark.engine.errors import TaskFailed
from floodmark.engine.task import Outcome, Raised
from floodmark.errors import FloodmarkError

Task = TypeVar("Task")
Result = TypeVar("Result")
_DEEPEST = 40
"""How often a task is halved at most; long before that, `halve` says that one thing is left."""


class Cancel:
    """A switch that another thread turns to have a run stopped."""

    def __init__(self) -> None:
        self._turned = threading.Event()

    def cancel(self) -> None:
        """Stop the runs that were given this switch."""
        self._turned.set()

    @property
    def cancelled(self) -> bool:
        return self._turned.is_set()


class WorkerDied(Exception):
    """A worker process ended in the middle of a task: killed, out of memory, or crashed."""


@dataclass(frozen=True)
class Attempt(Generic[Task]):
    """A task and how often it failed. ``place`` sorts results: (3,) halved becomes (3, 0) and (3, 1)."""

    place: tuple[int, ...]
    task: Task
    units: int
    failures: int = 0
    alone: bool = False
    """Whether it was beside a worker's death: in a job of its own, another death can only be its fault."""


class Attempts(Generic[Task, Result]):
    """The tasks of one run: what is waiting, what is done, and what a failure means."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        retries: int,
        halve: Callable[[Task], tuple[Task, Task] | None] | None,
        weight: Callable[[Task], int] | None,
        worth: Callable[[Result], int] | None = None,
        give_up: Callable[[Task, Raised], Task | None] | None = None,
    ) -> None:
        self._weight = weight or _one
        self._worth = worth
        self._retries = retries
        self._halve = halve
        self._give_up = give_up
        self._results: dict[tuple[int, ...], Result] = {}
        self.waiting = deque(Attempt((n,), task, self._weight(task)) for n, task in enumerate(tasks))
        self.total = sum(attempt.units for attempt in self.waiting)
        self.done = 0
        self._open = len(self.waiting)

    @property
    def finished(self) -> bool:
        """Whether every task, or both halves of it, has a result."""
        return self._open == 0

    def results(self) -> list[Result]:
        """All results in the order of the tasks; those of a halved task stand in its place."""
        return [self._results[place] for place in sorted(self._results)]

    def settle(self, attempt: Attempt[Task], outcome: Outcome) -> None:
        """Take what came of an attempt; raises what cannot be retried."""
        if isinstance(outcome, Raised):
            self._failed(attempt, outcome)
            return
        self._results[attempt.place] = outcome.value
        self.done += attempt.units if self._worth is None else self._worth(outcome.value)
        self._open -= 1

    def job_died(self, attempts: Sequence[Attempt[Task]], reason: str) -> None:
        """Take the death of a job, which leaves none of its tasks with a result."""
        if len(attempts) == 1:
            death = WorkerDied(_summary(reason))
            self._failed(attempts[0], Raised(death, reason))
        else:
            # One of them is to blame, we do not know which: each goes on in a job of its own.
            self.waiting.extendleft(replace(attempt, alone=True) for attempt in reversed(attempts))

    def _failed(self, attempt: Attempt[Task], failure: Raised) -> None:
        error = failure.error
        if isinstance(error, FloodmarkError):
            error.add_note(f"In a task of the run, {describe(attempt.task)}:\n{failure.trace}")
            raise error
        # What is left of a task that has killed a worker may kill another: no others are to be lost with it.
        is_suspect = attempt.alone or isinstance(error, WorkerDied)
        if isinstance(error, MemoryError | WorkerDied) and (halves := self._halves(attempt, is_suspect)):
            self._open += 1
            self.waiting.extendleft(reversed(halves))
            return
        failures = attempt.failures + 1
        if failures <= self._retries:
            self.waiting.append(replace(attempt, failures=failures, alone=is_suspect))
            return
        if isinstance(error, MemoryError | WorkerDied) and self._give_up is not None:
            instead = self._give_up(attempt.task, failure)
            if instead is not None:
                self.waiting.append(replace(attempt, task=instead, failures=0))
                return
        raise TaskFailed(
            f"The task {describe(attempt.task)} failed {failures} times: {type(error).__name__}: {error}",
            hint=_advice(error, failure.trace),
            task=describe(attempt.task),
            attempts=failures,
            error_type=type(error).__name__,
            trace=failure.trace,
        ) from error

    def _halves(self, attempt: Attempt[Task], alone: bool) -> list[Attempt[Task]]:
        if self._halve is None or len(attempt.place) > _DEEPEST:
            return []
        halves = self._halve(attempt.task)
        if halves is None:
            return []
        first = min(self._weight(halves[0]), attempt.units)
        units = (first, attempt.units - first)  # together what the whole was, so that progress adds up
        return [Attempt((*attempt.place, n), half, units[n], alone=alone) for n, half in enumerate(halves)]


def describe(task: object) -> str:
    """A task as an error names it."""
    text = str(task)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _one(_: object) -> int:
    return 1


def _advice(error: BaseException, trace: str) -> str:
    if "No module named 'floodmark" in trace:
        return "Install floodmark, the same version as here, on every worker of the cluster."
    if isinstance(error, ModuleNotFoundError):
        return f"Install {error.name} on every worker."
    if isinstance(error, WorkerDied | MemoryError):
        return "Its worker ran out of memory or crashed: use smaller tasks, or a machine with more memory."
    return "The `trace` of this error shows where."


def _summary(reason: str) -> str:
    """The telling part of what Spark says about a job that failed: the rest is wrapping and Java's trace."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    for line in lines:
        if "most recent failure:" in line:
            return line.partition("most recent failure:")[2].strip()[:500]
    return " ".join(lines[:2])[:500]
