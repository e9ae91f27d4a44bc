"""Sharing work out in rounds: what slow tasks give back is shared out again, by the speed measured so far.

So no task lasts much longer than the target duration, and no core waits long for the last one. A user's function never
runs in the driver: what it leaks, or the memory limit it hits, is its worker's affair.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from floodmark.engine import Progress, Raised, Session, run, run_here, run_in_processes

if TYPE_CHECKING:
    import pyarrow as pa

LITTLE_ROWS = 1 << 20
"""So few rows are computed without Spark where Spark would use no other machine: its jobs would only take longer."""

MANY_ROWS = 1 << 24
"""From so many records on, reading them goes to Spark even where that has no other machine, if it takes many tasks."""

LIGHT_TASKS = 64
"""So few files are put together by threads of this process."""

PROBING = 0.2
"""While nothing is known about the function's speed, a task that will take long gives its rest back after this part of
the target duration."""

TARGET_SECONDS = 10.0
_THREADS = 2
_REMEMBERED = 3
_GROWTH = 10
_CATCH_UP = 100  # a checkpoint was held back by the median: its growth is made up for
_INSTANT = 1e-9  # seconds; a clock can say that no time has passed

Task = TypeVar("Task")
Result = TypeVar("Result")
Unit = TypeVar("Unit")
Unit_co = TypeVar("Unit_co", covariant=True)


class Outcome(Protocol[Unit_co]):
    """What came of a task: how fast it was, by its `rows` and `seconds`, and what is left for other tasks."""

    @property
    def left(self) -> Sequence[Unit_co]: ...
    @property
    def done(self) -> int: ...  # rows, for progress; those that failed among them
    @property
    def failed(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class _Sized(Protocol):
    @property
    def rows(self) -> int: ...


Applied = TypeVar("Applied", bound=Outcome[Any])
Share = TypeVar("Share", bound=_Sized)


@dataclass(frozen=True)
class Pace:
    """The cost model: how fast the function is, and so how large a task may be."""

    target_seconds: float
    rate: float | None = None
    """Rows per second of one worker; None while nothing is known."""
    is_first: bool = True
    """Whether no round was done yet."""

    @property
    def patience(self) -> float:
        """Seconds after which a task that will take far longer gives its rest back."""
        return self.target_seconds * (PROBING if self.rate is None else 1.0)

    @property
    def rows(self) -> int | None:
        """The rows that take the target duration; None while nothing is known."""
        return None if self.rate is None else int(self.rate * self.target_seconds)

    def after(self, round_: Sequence[Outcome[Any]]) -> Pace:
        """The pace as the tasks of a round have measured it."""
        rows, seconds = sum(a.rows for a in round_), sum(a.seconds for a in round_)
        return Pace(self.target_seconds, rows / seconds if rows and seconds else self.rate, is_first=False)


def share(
    units: Sequence[Unit],
    cut: Callable[[Sequence[Unit], Pace], list[Share]],
    function: Callable[[], Callable[[Share], Applied]],
    runner: Runner,
    *,
    target_seconds: float,
    progress: Progress,
    halve: Callable[[Share], tuple[Share, Share] | None],
    give_up: Callable[[Share, Raised], Share | None] | None = None,
) -> Iterator[list[Applied]]:
    """Do all units as tasks, round by round; yields what came of each round.

    `cut` makes the tasks of a round, which hold all units. `function` is asked for before each round, so that tasks
    know what was learnt from the round before.
    """
    pace = Pace(target_seconds)
    while units:
        tasks = cut(units, pace)
        applied = runner.run(
            tasks,
            function(),
            halve=halve,
            give_up=give_up,
            worth=partial(_advance, progress),
            progress=progress,
            rows=sum(task.rows for task in tasks),
        )
        yield applied
        pace = pace.after(applied)
        units = [unit for a in applied for unit in a.left]


def _advance(progress: Progress, applied: Outcome[Any]) -> int:
    """The rows that a task has done; of those that failed, progress is told here."""
    if applied.failed:
        progress.fail(applied.failed)
    return applied.done


@dataclass
class Runner:
    """Runs tasks for one backfill or run. `begun` is set once there were too many rows to do it without Spark."""

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
        self, tasks: Sequence[Task], function: Callable[[Task], Result], *, rows: int, **rules: Any
    ) -> list[Result]:
        """Call a user's function on every task, away from this process; the rules are those of `engine.run`."""
        self.begun = self.begun or rows > LITTLE_ROWS
        if self._on_spark:
            return run(tasks, function, session=self.session, **rules)
        return run_in_processes(tasks, function, processes=min(self.cores, len(tasks)), **rules)

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


class CheckpointSizer:
    """Aims each checkpoint at the target duration, from what the last few took. It reads no clock itself.

    The rate is the median of the last three, so that one slow checkpoint changes nothing and a lasting change is
    believed at the second. The size grows at most tenfold for each checkpoint that asked for it: a rate seen on a few
    rows says little about many. It shrinks at once.
    """

    def __init__(self, minimum: int, maximum: int, target_seconds: float = TARGET_SECONDS, start: int = 1) -> None:
        if not 1 <= minimum <= maximum or not target_seconds > 0:
            raise ValueError(f"no checkpoint has from {minimum} to {maximum} rows and aims at {target_seconds} seconds")
        self.minimum = minimum
        self.maximum = maximum
        self.target_seconds = target_seconds
        self._size = self._clamped(start)
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)
        self._reach = self._size  # how far the size may grow

    @property
    def size(self) -> int:
        """How many rows the next checkpoint should have."""
        return self._size

    def record(self, rows: int, seconds: float) -> None:
        """Note how long a checkpoint of so many rows took; an empty one says nothing."""
        if rows < 1:
            return
        rate = rows / max(seconds, _INSTANT)
        self._rates.append(rate)
        asks = rate * self.target_seconds > self._size
        self._reach = min(max(self._reach, self._size) * _GROWTH, self._size * _CATCH_UP) if asks else self._size
        self._size = self._clamped(min(int(self._rate() * self.target_seconds), self._reach))

    def _rate(self) -> float:
        """Rows per second; of two the newer, for the first call of a function may have had to load its model."""
        return sorted(self._rates)[1] if len(self._rates) == _REMEMBERED else self._rates[-1]

    def _clamped(self, size: int) -> int:
        return max(self.minimum, min(size, self.maximum))


def fitting(values: pa.Array | pa.ChunkedArray | pa.RecordBatch, size: int) -> int:
    """How many of the first rows have at most so many bytes; one at least, if there are any."""
    return most_rows(len(values), size, lambda rows: int(values.slice(0, rows).nbytes))


def most_rows(rows: int, size: int, bytes_of: Callable[[int], int]) -> int:
    """The same for anything that can tell the bytes of its first rows."""
    if rows <= 1 or bytes_of(rows) <= size:
        return rows
    return max(1, bisect_right(range(1, rows), size, key=bytes_of))
