"""The one door to Spark for work of our own: many small tasks, one function, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.engine.attempts import Attempt, Attempts, Cancel
from floodmark.engine.errors import Cancelled
from floodmark.engine.jobs import Jobs
from floodmark.engine.progress import Progress
from floodmark.engine.session import Session
from floodmark.engine.shipping import packing
from floodmark.engine.task import Raised, Shipment

Task = TypeVar("Task")
Result = TypeVar("Result")
_POLL = 0.2
_JOB_SECONDS = 4.0
"""How long a job should take. Results come when a job ends: a user's error should not wait long behind others, and
the death of a worker takes the finished tasks of its job along. Each job costs some 50 ms, so not too short."""
_FIRST, _LARGEST = 4, 64
"""How many tasks for each core the first job has, and any job at most."""
_JOB_BYTES = 1 << 20
"""How much the tasks of one job may weigh together, since every Spark task is sent all of them."""


def run(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    session: Session,
    progress: Progress | None = None,
    retries: int = 2,
    halve: Callable[[Task], tuple[Task, Task] | None] | None = None,
    weight: Callable[[Task], int] | None = None,
    worth: Callable[[Result], int] | None = None,
    give_up: Callable[[Task, Raised], Task | None] | None = None,
    cancel: Cancel | None = None,
) -> list[Result]:
    """Call ``function`` on every task, on Spark's workers, and return the results in the order of the tasks.

    A task is a small description of work; tasks and results are pickled. A task that raises is tried again up
    to ``retries`` times, alone: the others keep their results. A ``FloodmarkError`` is meant for the user and is
    raised at once, as it is. A task that runs out of memory, or whose worker dies, is replaced by the two that
    ``halve`` makes of it, whose results both stand in its place; when ``halve`` returns None it is tried again as it
    is, and in the end replaced by the task that ``give_up`` makes of it, if it makes one. ``TaskFailed`` names a task
    that never succeeded. ``weight`` says how many units (rows) a task is worth to ``progress``; where only a result
    tells how much was done, ``worth`` says it. Ctrl-C, ``cancel`` and every error cancel what is still running.

    A task may be begun twice, and the first may still be running: it must write to a temporary name and rename.
    """
    attempts: Attempts[Task, Result] = Attempts(
        tasks, retries=retries, halve=halve, weight=weight, worth=worth, give_up=give_up
    )
    if not tasks:
        return []
    with packing() as pack:
        packed = pack(function)
    jobs: Jobs[Task] = Jobs(session)
    shown = 0
    size = 0
    try:
        while not attempts.finished:
            if cancel is not None and cancel.cancelled:
                raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
            while attempts.waiting and jobs.room:
                size = size or _FIRST * jobs.parallelism
                chosen, payloads = next_job(attempts.waiting, size)
                jobs.submit(chosen, Shipment(packed, payloads))
            for end in jobs.wait(_POLL):
                if end.failure is not None:
                    attempts.job_died(end.job.attempts, end.failure)
                elif len(end.job.attempts) == size:
                    size = next_size(size, end.seconds, jobs.parallelism)
                for attempt, outcome in zip(end.job.attempts, end.outcomes, strict=end.failure is None):
                    attempts.settle(attempt, outcome)
            if progress is not None:
                # What a dying job had done may have to be done again: the bar then waits, it never goes back.
                done = attempts.done + (jobs.units_done() if worth is None else 0)
                if done > shown:
                    progress.advance(done - shown)
                    shown = done
    except BaseException:
        jobs.cancel()
        raise
    return attempts.results()


def next_size(size: int, seconds: float, parallelism: int) -> int:
    """How many tasks the next job should have, after one of ``size`` took so many seconds."""
    factor = min(4.0, max(0.25, _JOB_SECONDS / max(seconds, 0.001)))
    return min(_LARGEST * parallelism, max(parallelism, round(size * factor)))


def next_job(
    waiting: deque[Attempt[Task]], most_tasks: int, most_bytes: int = _JOB_BYTES
) -> tuple[list[Attempt[Task]], list[bytes]]:
    """Take the attempts of one job from the front of those that wait: at least one, and a suspect by itself."""
    chosen: list[Attempt[Task]] = []
    payloads: list[bytes] = []
    weight = 0
    with packing() as pack:
        while waiting and len(chosen) < most_tasks:
            if chosen and (chosen[0].alone or waiting[0].alone):
                break
            payload = pack(waiting[0].task)
            weight += len(payload)
            if chosen and weight > most_bytes:
                break
            chosen.append(waiting.popleft())
            payloads.append(payload)
    return chosen, payloads
