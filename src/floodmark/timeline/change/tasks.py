"""Running a timeline's tasks: in threads of this process while there is little to do, else on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from floodmark.engine import run, run_here
from floodmark.ledger.runtime import Runtime

SPARK_BYTES = 1 << 30
"""From this much data on, Spark's tasks read and write it."""

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
    """The results of some tasks, in their order. `size` is how many bytes they read, `rows` what each is worth."""
    if not tasks:
        return []
    threads = min(_THREADS, len(tasks))
    runner: Any = partial(run, session=runtime.session) if size >= SPARK_BYTES else partial(run_here, threads=threads)
    progress = runtime.progress()
    progress.start(what, sum(map(rows, tasks)))
    try:
        results: list[Result] = runner(tasks, function, progress=progress, weight=rows)
    finally:
        progress.finish()
    return results
