"""Run the tasks of a timeline: small amounts in threads of this process, large amounts on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from floodmark.engine.run import run_in_threads, run_on_spark
from floodmark.engine.session import Runtime

SPARK_BYTES = 1 << 30
"""From this many bytes on, tasks run on Spark."""

_THREADS = 2

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    what: str,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    runtime: Runtime,
    *,
    size: int,
    rows: Callable[[Task], int],
) -> list[Result]:
    """The results of some tasks, in their order. `size`: the bytes they read; `rows`: a task's weight for progress."""
    if not tasks:
        return []
    threads = min(_THREADS, len(tasks))
    runner: Any = (
        partial(run_on_spark, session=runtime.session)
        if size >= SPARK_BYTES
        else partial(run_in_threads, threads=threads)
    )
    progress = runtime.progress()
    progress.start(what, sum(map(rows, tasks)))
    try:
        results: list[Result] = runner(tasks, function, progress=progress, weight=rows)
    finally:
        progress.finish()
    return results
