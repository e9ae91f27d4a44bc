"""Users' functions run in the process of the test: a worker costs a second of CPU, and few tests are about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from floodmark.engine import rounds
from floodmark.engine.attempts import TaskAttempts
from floodmark.engine.run import run_in_processes
from floodmark.engine.task import call
from floodmark.errors import Cancelled


def choose_where_functions_run(item: pytest.Item) -> None:
    """Let only tests that are marked `process` use worker processes."""
    rounds.run_in_processes = run_in_processes if item.get_closest_marker("process") else run_inline


def run_inline(
    tasks: Sequence[Any],
    function: Callable[[Any], Any],
    *,
    processes: int = 2,
    progress: Any = None,
    cancel: Any = None,
    **rules: Any,
) -> list[Any]:
    """Do what `run_in_processes` does, one task after the other and without a process."""
    attempts: TaskAttempts[Any, Any] = TaskAttempts(tasks, **{"retries": 2, "halve": None, "weight": None, **rules})
    while not attempts.finished:
        if cancel is not None and cancel.cancelled:
            raise Cancelled("The work was cancelled.", done=attempts.done, total=attempts.total)
        attempt, before = attempts.waiting.popleft(), attempts.done
        attempts.settle(attempt, call(function, attempt.task))
        if progress is not None and attempts.done > before:
            progress.advance(attempts.done - before)
    return attempts.results()
