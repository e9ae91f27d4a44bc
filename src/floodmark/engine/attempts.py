"""The tasks of a run that are still open: decides about retrying, halving and giving up. Does not use Spark."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from floodmark.engine.task import TaskOutcome, TaskRaised
from floodmark.errors import FloodmarkError, TaskFailed

Task = TypeVar("Task")
Result = TypeVar("Result")
_MAX_HALVINGS = 40
"""The most times a task is halved. Normally `halve` returns None long before."""


class CancelSwitch:
    """A switch with which another thread can stop a run."""

    def __init__(self) -> None:
        self._turned = threading.Event()

    def cancel(self) -> None:
        """Stop the runs that use this switch."""
        self._turned.set()

    @property
    def cancelled(self) -> bool:
        return self._turned.is_set()


class WorkerDied(Exception):
    """A worker process ended during a task: it was killed, ran out of memory, or crashed."""


@dataclass(frozen=True)
class TaskAttempt(Generic[Task]):
    """A task and how often it failed. Results are sorted by ``place``: (3,) halved becomes (3, 0) and (3, 1)."""

    place: tuple[int, ...]
    task: Task
    units: int
    failures: int = 0
    alone: bool = False
    """Whether the task must run alone in a job, because it was in a job that died. If it dies again, this task is the
    cause."""


class TaskAttempts(Generic[Task, Result]):
    """The tasks of one run: waiting tasks, results, and what happens after a failure."""

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        retries: int,
        halve: Callable[[Task], tuple[Task, Task] | None] | None,
        weight: Callable[[Task], int] | None,
        worth: Callable[[Result], int] | None = None,
        give_up: Callable[[Task, TaskRaised], Task | None] | None = None,
    ) -> None:
        self._weight = weight or _one
        self._worth = worth
        self._retries = retries
        self._halve = halve
        self._give_up = give_up
        self._results: dict[tuple[int, ...], Result] = {}
        self.waiting = deque(TaskAttempt((n,), task, self._weight(task)) for n, task in enumerate(tasks))
        self.total = sum(attempt.units for attempt in self.waiting)
        self.done = 0
        self._open = len(self.waiting)

    @property
    def finished(self) -> bool:
        """Whether every task, or both halves of it, has a result."""
        return self._open == 0

    def results(self) -> list[Result]:
        """All results in the order of the tasks. The results of a halved task are at its position."""
        return [self._results[place] for place in sorted(self._results)]

    def settle(self, attempt: TaskAttempt[Task], outcome: TaskOutcome) -> None:
        """Record the outcome of an attempt; raise errors that cannot be retried."""
        if isinstance(outcome, TaskRaised):
            self._failed(attempt, outcome)
            return
        self._results[attempt.place] = outcome.value
        self.done += attempt.units if self._worth is None else self._worth(outcome.value)
        self._open -= 1

    def record_job_death(self, attempts: Sequence[TaskAttempt[Task]], reason: str) -> None:
        """Record that a job died. None of its tasks has a result."""
        if len(attempts) == 1:
            death = WorkerDied(_summary(reason))
            self._failed(attempts[0], TaskRaised(death, reason))
        else:
            # One of them is the cause, but it is unknown which one. So each of them gets its own job.
            self.waiting.extendleft(replace(attempt, alone=True) for attempt in reversed(attempts))

    def _failed(self, attempt: TaskAttempt[Task], failure: TaskRaised) -> None:
        error = failure.error
        if isinstance(error, FloodmarkError):
            error.add_note(f"In the task {describe(attempt.task)}:\n{failure.trace}")
            raise error
        # The halves of a task that killed a worker may kill another one. They run alone, so that no other task is lost.
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
            replacement = self._give_up(attempt.task, failure)
            if replacement is not None:
                self.waiting.append(replace(attempt, task=replacement, failures=0))
                return
        raise TaskFailed(
            f"The task {describe(attempt.task)} failed {failures} times: {type(error).__name__}: {error}",
            hint=_advice(error, failure.trace),
            task=describe(attempt.task),
            attempts=failures,
            error_type=type(error).__name__,
            trace=failure.trace,
        ) from error

    def _halves(self, attempt: TaskAttempt[Task], alone: bool) -> list[TaskAttempt[Task]]:
        if self._halve is None or len(attempt.place) > _MAX_HALVINGS:
            return []
        halves = self._halve(attempt.task)
        if halves is None:
            return []
        first = min(self._weight(halves[0]), attempt.units)
        units = (first, attempt.units - first)  # their sum must not change, so that progress stays correct
        return [TaskAttempt((*attempt.place, n), half, units[n], alone=alone) for n, half in enumerate(halves)]


def describe(task: object) -> str:
    """A task as text for an error message."""
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
        return "Use smaller tasks or a machine with more memory: the worker ran out of memory or crashed."
    return "Read the `trace` of this error: it shows where."


def _summary(reason: str) -> str:
    """The cause in a failure message of Spark, without the wrapping and the Java trace."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    for line in lines:
        if "most recent failure:" in line:
            return line.partition("most recent failure:")[2].strip()[:500]
    return " ".join(lines[:2])[:500]
