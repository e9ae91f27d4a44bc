"""Runs one function on many small tasks, on Spark, in threads or in worker processes, and returns results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TypeVar

from floodmark.engine.attempts import CancelSwitch, TaskAttempt, TaskAttempts
from floodmark.engine.progress import Progress, SilentProgress
from floodmark.engine.session import Session
from floodmark.engine.spark_jobs import Jobs
from floodmark.engine.task import JobPayload, TaskOutcome, TaskRaised, call, pickle_by_value
from floodmark.errors import Cancelled

Task = TypeVar("Task")
Result = TypeVar("Result")
_POLL = 0.2
_JOB_SECONDS = 4.0
"""How long a job should take. Results arrive when a job ends, so long jobs delay errors, and lose more finished tasks
if a worker dies. Each job costs about 50 ms, so short jobs are slow."""
_FIRST, _LARGEST = 4, 64
"""Tasks per core: of the first job, and the maximum of any job."""
_JOB_BYTES = 1 << 20
"""The maximum size of all tasks of a job, because Spark sends all of them to every Spark task."""


def run_on_spark(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    session: Session,
    progress: Progress | None = None,
    retries: int = 2,
    halve: Callable[[Task], tuple[Task, Task] | None] | None = None,
    weight: Callable[[Task], int] | None = None,
    worth: Callable[[Result], int] | None = None,
    give_up: Callable[[Task, TaskRaised], Task | None] | None = None,
    cancel: CancelSwitch | None = None,
) -> list[Result]:
    """Call ``function`` on every task, on Spark's workers, and return the results in the order of the tasks.

    A task is a small description of work. Tasks and results are pickled.

    - A task that raises is retried up to ``retries`` times. The other tasks keep their results.
    - A ``FloodmarkError`` is for the user and is raised at once.
    - A task that runs out of memory, or whose worker dies, is replaced by the two tasks that ``halve`` returns. Both
      results take its position. If ``halve`` returns None, the task is retried. After the last retry it is replaced by
      the task that ``give_up`` returns, if any.
    - ``TaskFailed`` is raised for a task that never succeeded.
    - ``weight`` is the number of units (rows) of a task, for ``progress``. If only the result has this number,
      ``worth`` returns it.
    - Ctrl-C, ``cancel`` and every error cancel the running tasks.

    A task may run twice at the same time, so it must write to a temporary name and rename.
    """
    attempts: TaskAttempts[Task, Result] = TaskAttempts(
        tasks, retries=retries, halve=halve, weight=weight, worth=worth, give_up=give_up
    )
    if not tasks:
        return []
    with pickle_by_value() as pack:
        packed = pack(function)
    jobs: Jobs[Task] = Jobs(session)
    reported = 0
    size = 0
    try:
        while not attempts.finished:
            if cancel is not None and cancel.cancelled:
                raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
            while attempts.waiting and jobs.room:
                size = size or _FIRST * jobs.parallelism
                chosen, payloads = next_job(attempts.waiting, size)
                jobs.submit(chosen, JobPayload(packed, payloads))
            for end in jobs.wait(_POLL):
                if end.failure is not None:
                    attempts.record_job_death(end.job.attempts, end.failure)
                elif len(end.job.attempts) == size:
                    size = next_size(size, end.seconds, jobs.parallelism)
                for attempt, outcome in zip(end.job.attempts, end.outcomes, strict=end.failure is None):
                    attempts.settle(attempt, outcome)
            if progress is not None:
                # Work of a job that died is repeated. Progress then waits, and never goes back.
                done = attempts.done + (jobs.units_done() if worth is None else 0)
                if done > reported:
                    progress.advance(done - reported)
                    reported = done
    except BaseException:
        jobs.cancel()
        raise
    return attempts.results()


def next_size(size: int, seconds: float, parallelism: int) -> int:
    """How many tasks the next job should have, after a job of ``size`` tasks took ``seconds``."""
    factor = min(4.0, max(0.25, _JOB_SECONDS / max(seconds, 0.001)))
    return min(_LARGEST * parallelism, max(parallelism, round(size * factor)))


def next_job(
    waiting: deque[TaskAttempt[Task]], most_tasks: int, most_bytes: int = _JOB_BYTES
) -> tuple[list[TaskAttempt[Task]], list[bytes]]:
    """Take the attempts for one job from the waiting ones: at least one; an ``alone`` one only by itself."""
    chosen: list[TaskAttempt[Task]] = []
    payloads: list[bytes] = []
    weight = 0
    with pickle_by_value() as pack:
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


# Threads and processes

_THREAD_POLL = 0.1
_PROCESS_POLL = 0.1


def run_in_threads(
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    *,
    threads: int = 1,
    progress: Progress | None = None,
    retries: int = 2,
    halve: Callable[[Task], tuple[Task, Task] | None] | None = None,
    weight: Callable[[Task], int] | None = None,
    cancel: CancelSwitch | None = None,
) -> list[Result]:
    """Call ``function`` on every task in this process and return the results in the order of the tasks.

    Failed tasks are retried as in ``run``. After an error or a cancellation no new task starts. The call waits for the
    running ones, because a thread cannot be stopped.
    """
    attempts: TaskAttempts[Task, Result] = TaskAttempts(tasks, retries=retries, halve=halve, weight=weight)
    reporter = progress or SilentProgress()
    running: dict[Future[TaskOutcome], TaskAttempt[Task]] = {}
    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="floodmark-task") as pool:
        while not attempts.finished:
            if cancel is not None and cancel.cancelled:
                raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
            while attempts.waiting and len(running) < max(1, threads):
                attempt = attempts.waiting.popleft()
                running[pool.submit(call, function, attempt.task)] = attempt
            ended, _ = wait(running, timeout=_THREAD_POLL, return_when=FIRST_COMPLETED)
            for future in ended:
                attempt, before = running.pop(future), attempts.done
                attempts.settle(attempt, future.result())
                if attempts.done > before:
                    reporter.advance(attempts.done - before)
    return attempts.results()


_AHEAD = 64
"""How many tasks are packed at a time, because the setup for packing takes longer than packing a task."""


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
    give_up: Callable[[Task, TaskRaised], Task | None] | None = None,
    cancel: CancelSwitch | None = None,
) -> list[Result]:
    """Call ``function`` on every task, in worker processes, and return the results in the order of the tasks.

    Failed tasks are retried, halved and reported as in ``run``. The function never runs in this process, so its memory
    use or a crash ends only a worker. Ctrl-C, ``cancel`` and every error end the workers that run a task. The other
    workers wait for the next run and keep the memory of their modules. Output of the function goes to stderr.
    """
    attempts: TaskAttempts[Task, Result] = TaskAttempts(
        tasks, retries=retries, halve=halve, weight=weight, worth=worth, give_up=give_up
    )
    if not tasks:
        return []
    from floodmark.engine.worker_pool import RunWorkers, WorkerDeath
    from floodmark.engine.worker_setup import RunOrders, WorkerEnvironment

    reporter = progress or SilentProgress()
    with pickle_by_value() as pack:
        orders = RunOrders(pack(function), WorkerEnvironment.of_this_process())
    crew: RunWorkers[TaskAttempt[Task]] = RunWorkers(max(1, processes), orders)
    packed: deque[tuple[TaskAttempt[Task], bytes]] = deque()
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
            for attempt, outcome in crew.wait(_PROCESS_POLL):
                before = attempts.done
                if isinstance(outcome, WorkerDeath):
                    attempts.record_job_death([attempt], outcome.reason)
                else:
                    attempts.settle(attempt, outcome)
                if attempts.done > before:
                    reporter.advance(attempts.done - before)
    finally:
        crew.end_run()
    return attempts.results()


MANY = 4_000
"""From this many items on local files, worker processes take less time than one process, in spite of their start."""

_SHARE = 250
_REQUESTS = 16
"""How many requests to a remote store run at once."""

Item = TypeVar("Item")


def run_on_shares(
    items: Sequence[Item], function: Callable[[Sequence[Item]], list[Result]], *, is_local: bool
) -> list[Result]:
    """Call ``function`` on shares of many small items, and return all results in the order of the items.

    Reading many small local files takes mostly Python's time, so worker processes share them. A remote store is mostly
    waited for, so threads are enough.
    """
    if not is_local:
        parts = run_in_threads([[item] for item in items], function, threads=_REQUESTS)
    elif len(items) < MANY:
        return function(items)
    else:
        shares = [items[at : at + _SHARE] for at in range(0, len(items), _SHARE)]
        parts = run_in_processes(shares, function, processes=len(os.sched_getaffinity(0)))
    return [result for part in parts for result in part]


class GeneratorThreads(ThreadPoolExecutor):
    """A thread pool for ``with`` in a generator. If the generator is closed early, the threads are not joined.

    Often the garbage collector closes a generator, at any moment and in any thread. Joining other threads there can
    deadlock. Up to Python 3.12 it does so while a thread starts, because joining needs a lock that is locked then.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_closed_early = kind is not None and issubclass(kind, GeneratorExit)
        self.shutdown(wait=not is_closed_early, cancel_futures=kind is not None)
