"""Runs tasks in threads of this process: the same contract as ``run``, and no JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from floodmark.engine.attempts import Attempt, Attempts, Cancel
from floodmark.engine.errors import Cancelled
from floodmark.engine.progress import Progress, SilentProgress
from floodmark.engine.task import Outcome, call

Task = TypeVar("Task")
Result = TypeVar("Result")
_POLL = 0.1


def run_here(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    threads: int = 1,
    progress: Progress | None = None,
    retries: int = 2,
    halve: Callable[[Task], tuple[Task, Task] | None] | None = None,
    weight: Callable[[Task], int] | None = None,
    cancel: Cancel | None = None,
) -> list[Result]:
    """Call ``function`` on every task in this process and return the results in the order of the tasks.

    What fails is tried again as ``floodmark.engine.run`` does it. After an error or a cancellation no further
    task is begun; those that are running are waited for, since a thread cannot be stopped.
    """
    attempts: Attempts[Task, Result] = Attempts(tasks, retries=retries, halve=halve, weight=weight)
    shown = progress or SilentProgress()
    running: dict[Future[Outcome], Attempt[Task]] = {}
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="floodmark-task") as pool:
        while not attempts.finished:
            if cancel is not None and cancel.cancelled:
                raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
            while attempts.waiting and len(running) < max(1, threads):
                attempt = attempts.waiting.popleft()
                running[pool.submit(call, function, attempt.task)] = attempt
            ended, _ = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED)
            for future in ended:
                attempt, before = running.pop(future), attempts.done
                attempts.settle(attempt, future.result())
                if attempts.done > before:
                    shown.advance(attempts.done - before)
    return attempts.results()
