"""Distributes work to tasks in rounds: slow tasks return their rest, and the next round distributes it again.

The size of tasks depends on the measured speed. So no task takes much longer than the target duration, and no core
waits long for the last task. A user's function never runs in the driver, so its memory leaks and out-of-memory errors
affect only a worker. The module also chooses the size of checkpoints and batches.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from floodmark.engine.call_size import CallTimes
from floodmark.engine.progress import Progress
from floodmark.engine.run import run_in_processes, run_in_threads, run_on_spark
from floodmark.engine.session import Session
from floodmark.engine.task import TaskRaised

if TYPE_CHECKING:
    import pyarrow as pa

LOCAL_ROWS = 1 << 20
"""Up to this many rows, local worker processes are faster than local Spark jobs."""

LOCAL_READ_ROWS = 1 << 24
"""Above this many records, more than `LOCAL_TASKS` reading tasks run on Spark, even if it is local."""

LOCAL_TASKS = 64
"""Up to this many light tasks run in threads of this process."""

PROBE_FRACTION = 0.2
"""While the speed of the function is unknown, a long task returns its rest after this part of the target duration."""

MAX_TASKS_PER_CORE = 64
"""A limit for slow functions: a task that is too large returns its rest, but many small tasks cost time."""

TARGET_SECONDS = 10.0
_THREADS = 2
_RATES = 3
_GROWTH = 10
_CATCH_UP = 100  # the median delays growth by a checkpoint; this allows to make up for it
_MIN_SECONDS = 1e-9  # seconds; a clock may show no elapsed time

Task = TypeVar("Task")
Result = TypeVar("Result")
Unit = TypeVar("Unit")
Unit_co = TypeVar("Unit_co", covariant=True)


class TaskReport(Protocol[Unit_co]):
    """The outcome of a task: its speed, from `rows`, `seconds` and `times`, and the units left for other tasks."""

    @property
    def left(self) -> Sequence[Unit_co]: ...
    @property
    def done(self) -> int: ...  # rows, for progress, including failed ones
    @property
    def failed(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def times(self) -> CallTimes: ...


class _Sized(Protocol):
    @property
    def rows(self) -> int: ...


Applied = TypeVar("Applied", bound=TaskReport[Any])
Share = TypeVar("Share", bound=_Sized)


@dataclass(frozen=True)
class TaskPace:
    """The cost model: the speed of the function, which limits the size of a task."""

    target_seconds: float
    rate: float | None = None
    """Rows per second of one worker; None while unknown."""
    is_first: bool = True
    """Whether no round has ended yet."""
    times: CallTimes = field(default_factory=CallTimes)
    """What calls took, by their size."""

    @property
    def patience(self) -> float:
        """Seconds after which a much longer task returns its rest."""
        return self.target_seconds * (PROBE_FRACTION if self.rate is None else 1.0)

    @property
    def rows(self) -> int | None:
        """The number of rows that take the target duration; None while unknown."""
        return None if self.rate is None else int(self.rate * self.target_seconds)

    @property
    def is_guess(self) -> bool:
        """Whether the rate is unknown, or that of one call: its time may have been a fixed cost, or a warm-up."""
        return self.rate is None or len(self.times.calls) == 1

    def task_rows(self, total: int, cores: int) -> int:
        """How many of `total` rows a task gets when the speed is known: the target duration, or a call worth its cost.

        Every core gets the same number of tasks, and not very many: a task that is too large returns its rest.
        """
        assert self.rows is not None
        rows = max(1, self.rows, self.times.worth(self.target_seconds))
        tasks = min(MAX_TASKS_PER_CORE, -(-total // (cores * rows)))
        return max(1, -(-total // (cores * max(1, tasks))))

    def after(self, round_: Sequence[TaskReport[Any]]) -> TaskPace:
        """The pace after a round, from the measurements of its tasks."""
        rows, seconds = sum(a.rows for a in round_), sum(a.seconds for a in round_)
        rate = rows / seconds if rows and seconds else self.rate
        times = CallTimes.joined(a.times for a in round_)
        return TaskPace(self.target_seconds, rate, is_first=False, times=times if times.calls else self.times)


def run_rounds(
    units: Sequence[Unit],
    cut: Callable[[Sequence[Unit], TaskPace], list[Share]],
    function: Callable[[], Callable[[Share], Applied]],
    runner: TaskRunner,
    *,
    target_seconds: float,
    progress: Progress,
    halve: Callable[[Share], tuple[Share, Share] | None],
    give_up: Callable[[Share, TaskRaised], Share | None] | None = None,
) -> Iterator[list[Applied]]:
    """Process all units as tasks, round by round; yields the outcomes of each round.

    `cut` divides all remaining units into the tasks of a round. `function` is called before each round and returns the
    function for its tasks, so that it can use results of earlier rounds.
    """
    pace = TaskPace(target_seconds)
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


def _advance(progress: Progress, applied: TaskReport[Any]) -> int:
    """The rows that a task has done. Reports failed rows to progress."""
    if applied.failed:
        progress.fail(applied.failed)
    return applied.done


@dataclass
class TaskRunner:
    """Runs the tasks of one backfill or run. `begun`: there were too many rows to continue without Spark."""

    session: Session
    begun: bool = False

    @property
    def cores(self) -> int:
        """How many tasks run at once. Does not start Spark to find out."""
        return self.session.parallelism() if self._on_spark else len(os.sched_getaffinity(0))

    @property
    def _on_spark(self) -> bool:
        return self.begun or not self.session.is_local

    def run(
        self, tasks: Sequence[Task], function: Callable[[Task], Result], *, rows: int, **rules: Any
    ) -> list[Result]:
        """Call a user's function on every task, outside this process. For `rules` see `engine.run.run`."""
        self.begun = self.begun or rows > LOCAL_ROWS
        if self._on_spark:
            return run_on_spark(tasks, function, session=self.session, **rules)
        return run_in_processes(tasks, function, processes=min(self.cores, len(tasks)), **rules)

    def run_light(self, tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
        """Call one of our own functions on every task."""
        if len(tasks) > LOCAL_TASKS and self._on_spark:
            return run_on_spark(tasks, function, session=self.session)
        return run_in_threads(tasks, function, threads=_THREADS)

    def run_reading(self, tasks: Sequence[Task], function: Callable[[Task], Result], rows: int) -> list[Result]:
        """Call one of our own functions, which reads `rows` records in total: on Spark if it has other machines."""
        self.begun = self.begun or rows > LOCAL_READ_ROWS
        if rows > LOCAL_ROWS and not self.session.is_local:
            return run_on_spark(tasks, function, session=self.session)
        return self.run_light(tasks, function)


class CheckpointSizer:
    """Chooses the size of checkpoints so that each takes the target duration, from the times of the last ones.

    The rate is the median of the last three checkpoints. So one slow checkpoint has no effect, and a lasting change has
    one from the second checkpoint on. The size grows at most tenfold per checkpoint that was too fast, because the rate
    of a few rows is not a good estimate for many. It shrinks at once.
    """

    def __init__(self, minimum: int, maximum: int, target_seconds: float = TARGET_SECONDS, start: int = 1) -> None:
        if not 1 <= minimum <= maximum or not target_seconds > 0:
            raise ValueError(f"invalid checkpoint size: {minimum} to {maximum} rows, {target_seconds} seconds")
        self.minimum = minimum
        self.maximum = maximum
        self.target_seconds = target_seconds
        self._size = self._clamped(start)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._reach = self._size  # the current limit of the size

    @property
    def size(self) -> int:
        """The number of rows for the next checkpoint."""
        return self._size

    def record(self, rows: int, seconds: float) -> None:
        """Record how long a checkpoint took. Empty checkpoints are ignored."""
        if rows < 1:
            return
        rate = rows / max(seconds, _MIN_SECONDS)
        self._rates.append(rate)
        was_fast = rate * self.target_seconds > self._size
        self._reach = min(max(self._reach, self._size) * _GROWTH, self._size * _CATCH_UP) if was_fast else self._size
        self._size = self._clamped(min(int(self._rate() * self.target_seconds), self._reach))

    def _rate(self) -> float:
        """Rows per second. Of two rates the newer, because the first call of a function may load a model."""
        return sorted(self._rates)[1] if len(self._rates) == _RATES else self._rates[-1]

    def _clamped(self, size: int) -> int:
        return max(self.minimum, min(size, self.maximum))


def rows_that_fit(values: pa.Array | pa.ChunkedArray | pa.RecordBatch, size: int) -> int:
    """How many of the first rows have at most `size` bytes together; at least one, if there are any."""
    return most_rows_that_fit(len(values), size, lambda rows: int(values.slice(0, rows).nbytes))


def most_rows_that_fit(rows: int, size: int, bytes_of: Callable[[int], int]) -> int:
    """Like `rows_that_fit`, for any data: `bytes_of(n)` is the size of the first `n` rows."""
    if rows <= 1 or bytes_of(rows) <= size:
        return rows
    return max(1, bisect_right(range(1, rows), size, key=bytes_of))
