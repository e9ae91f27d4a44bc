"""Runs tasks in worker processes of our own: the same contract as ``run``, and no JVM."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.engine.attempts import Attempt, Attempts, Cancel
from floodmark.engine.errors import Cancelled
from floodmark.engine.progress import Progress, SilentProgress
from floodmark.engine.run import next_job
from floodmark.engine.shipping import packing
from floodmark.engine.task import Raised

Task = TypeVar("Task")
Result = TypeVar("Result")
_POLL = 0.1
_AHEAD = 64
"""How many tasks are packed at a time: it takes longer to get ready for packing than to pack a task."""


def run_in_processes(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    processes: int = 2,
    progress: Progress | None = None,
    retries: int = 2,
    halve: Callable[[Task], tuple[Task, Task] | None] | None = None,
    weight: Callable[[Task], int] | None = None,
    worth: Callable[[Result], int] | None = None,
    give_up: Callable[[Task, Raised], Task | None] | None = None,
    cancel: Cancel | None = None,
) -> list[Result]:
    """Call ``function`` on every task, in worker processes, and return the results in the order of the tasks.

    What fails is tried again, halved and reported as ``floodmark.engine.run`` does it; the function never runs in
    this process, so that memory it takes or a crash of it ends a worker only. Ctrl-C, ``cancel`` and every error
    end the workers that are in the middle of a task. The others wait for the next run, and with them whatever
    modules keep in memory. What a function prints goes to stderr.
    """
    attempts: Attempts[Task, Result] = Attempts(
        tasks, retries=retries, halve=halve, weight=weight, worth=worth, give_up=give_up
    )
    if not tasks:
        return []
    from floodmark.engine.pool import Crew, Died
    from floodmark.engine.surroundings import Orders, Surroundings

    shown = progress or SilentProgress()
    with packing() as pack:
        orders = Orders(pack(function), Surroundings.here())
    crew: Crew[Attempt[Task]] = Crew(max(1, processes), orders)
    packed: deque[tuple[Attempt[Task], bytes]] = deque()
    try:
        while not attempts.finished:
            if cancel is not None and cancel.cancelled:
                raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
            while packed or attempts.waiting:
                if not packed:
                    packed.extend(zip(*next_job(attempts.waiting, _AHEAD), strict=True))
                if not crew.free(len(packed) + len(attempts.waiting)):
                    break
                crew.give(*packed.popleft())
            for attempt, outcome in crew.wait(_POLL):
                before = attempts.done
                if isinstance(outcome, Died):
                    attempts.job_died([attempt], outcome.reason)
                else:
                    attempts.settle(attempt, outcome)
                if attempts.done > before:
                    shown.advance(attempts.done - before)
    finally:
        crew.dismiss()
    return attempts.results()
