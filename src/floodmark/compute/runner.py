"""Where the tasks of a backfill or a run go: to Spark, or for a little work to worker processes of this machine.

A user's function never runs in the driver: what it leaks, or the memory limit it hits, is its worker's affair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from floodmark.engine import Progress, Raised, Session, run, run_here, run_in_processes

Task = TypeVar("Task")
Result = TypeVar("Result")

LITTLE_ROWS = 1 << 20
"""So few rows are computed without Spark where Spark would use no other machine: its jobs would only take longer."""

MANY_ROWS = 1 << 24
"""From so many records on, reading them goes to Spark even where that has no other machine, if it takes many tasks."""

LIGHT_TASKS = 64
"""So few files are put together by threads of this process."""

_THREADS = 2


@dataclass
class Runner:
    """Runs tasks for one backfill. `begun` is set once there were too many rows to do it without Spark."""

    session: Session
    begun: bool = False

    @property
    def cores(self) -> int:
        """How many tasks are worked on at once, as far as is known without starting Spark."""
        return self.session.parallelism() if self._on_spark else len(os.sched_getaffinity(0))

    @property
    def _on_spark(self) -> bool:
        return self.begun or not self.session.is_local

    def run(
        self,
        tasks: Sequence[Task],
        function: Callable[[Task], Result],
        *,
        halve: Callable[[Task], tuple[Task, Task] | None],
        worth: Callable[[Result], int],
        progress: Progress,
        rows: int,
        give_up: Callable[[Task, Raised], Task | None] | None = None,
    ) -> list[Result]:
        """Call a user's function on every task, away from this process."""
        self.begun = self.begun or rows > LITTLE_ROWS
        rules: dict[str, Any] = {"halve": halve, "give_up": give_up, "worth": worth, "progress": progress}
        if self._on_spark:
            return run(tasks, function, session=self.session, **rules)
        processes = min(self.cores, len(tasks))
        return run_in_processes(tasks, function, processes=processes, **rules)

    def run_light(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """Call a function of our own on every task."""
        if len(tasks) > LIGHT_TASKS and self._on_spark:
            return run(tasks, function, session=self.session)
        return run_here(tasks, function, threads=_THREADS)

    def run_reading(self, tasks: Sequence[Task], function: Callable[[Task], Result], rows: int) -> list[Result]:
        """Call a function of our own that reads so many records: on Spark where that has other machines to do it."""
        self.begun = self.begun or rows > MANY_ROWS
        if rows > LITTLE_ROWS and not self.session.is_local:
            return run(tasks, function, session=self.session)
        return self.run_light(tasks, function)
