"""Concurrent Spark jobs, each in its own thread, so that a run can watch and cancel them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from floodmark.engine import spark_launch
from floodmark.engine.attempts import TaskAttempt
from floodmark.engine.session import Session
from floodmark.engine.task import SCHEMA, JobPayload, TaskOutcome, unpack_outcome

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


Task = TypeVar("Task")
_CANCEL_TIMEOUT = 15.0


@dataclass(frozen=True, eq=False)
class Job(Generic[Task]):
    """One Spark job: several attempts, each in its own partition."""

    attempts: Sequence[TaskAttempt[Task]]
    shipment: JobPayload
    tag: str
    spark: SparkSession

    @property
    def units(self) -> int:
        return sum(attempt.units for attempt in self.attempts)


@dataclass(frozen=True)
class JobEnd(Generic[Task]):
    """A job that has ended: with an outcome for every attempt, or with the reason of its failure."""

    job: Job[Task]
    outcomes: Sequence[TaskOutcome]
    failure: str | None
    seconds: float


class Jobs(Generic[Task]):
    """The running jobs of one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tag = f"floodmark-{uuid.uuid4().hex[:12]}"
        self._running: dict[Job[Task], threading.Thread] = {}
        self._ended: queue.SimpleQueue[JobEnd[Task]] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._parallelism: int | None = None

    @property
    def parallelism(self) -> int:
        """How many tasks Spark runs at once."""
        if self._parallelism is None:
            self._parallelism = self._session.parallelism()
        return self._parallelism

    @property
    def room(self) -> bool:
        """Whether to submit another job, so that no core waits for the last task of the previous job."""
        under_way = sum(len(job.attempts) for job in self._running)
        return len(self._running) < 2 or under_way < 2 * self.parallelism

    def submit(self, attempts: Sequence[TaskAttempt[Task]], shipment: JobPayload) -> None:
        """Start a job."""
        from pyspark import InheritableThread

        spark = self._session.get()
        job = Job(attempts, shipment, f"{self._tag}-{uuid.uuid4().hex[:12]}", spark)
        # The thread inherits the local properties of the caller, such as a scheduler pool.
        thread = cast("threading.Thread", InheritableThread(self._work, args=(job,), session=spark))
        thread.daemon = True
        self._running[job] = thread
        thread.start()

    def wait(self, timeout: float) -> list[JobEnd[Task]]:
        """The jobs that have ended. Waits up to ``timeout`` seconds for one."""
        ended: list[JobEnd[Task]] = []
        with contextlib.suppress(queue.Empty):
            ended.append(self._ended.get(timeout=timeout))
            while True:
                ended.append(self._ended.get_nowait())
        for end in ended:
            self._running.pop(end.job).join()
        return ended

    def units_done(self) -> int:
        """An estimate of the units that running jobs have done, from Spark's status; 0 if it is not available."""
        return sum(job.units * _tasks_done(job) // len(job.attempts) for job in self._running)

    def cancel(self) -> None:
        """Cancel the running jobs, and wait until they have stopped."""
        self._cancelled.set()
        until = time.monotonic() + _CANCEL_TIMEOUT
        while self._running and time.monotonic() < until:
            for spark in {id(job.spark): job.spark for job in self._running}.values():
                # Repeat it, because a job may reach Spark after the first call. If the session has ended, there is
                # nothing to cancel, and the original error is the one to report.
                with contextlib.suppress(Exception):
                    if spark_launch.is_connect(spark):
                        spark.interruptTag(self._tag)
                    else:
                        spark.sparkContext.cancelJobsWithTag(self._tag)
            self.wait(0.2)

    def _work(self, job: Job[Task]) -> None:
        began = time.monotonic()
        outcomes: Sequence[TaskOutcome] = ()
        failure: str | None = None
        try:
            if self._cancelled.is_set():
                raise RuntimeError("cancelled before it began")
            _tag(job.spark, (self._tag, job.tag))
            outcomes = _outcomes(job)
        except Exception as error:
            failure = spark_launch.text_of(error)
        self._ended.put(JobEnd(job, outcomes, failure, time.monotonic() - began))


def _outcomes(job: Job[Any]) -> list[TaskOutcome]:
    shipment, count = job.shipment, len(job.attempts)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from shipment.run(batches)

    # A range of n rows in n partitions: one task per row, without a shuffle. Spark schedules them on free cores.
    table = job.spark.range(0, count, 1, count).mapInArrow(body, SCHEMA).toArrow()
    packed = dict(zip(table["task"].to_pylist(), table["outcome"].to_pylist(), strict=True))
    return [unpack_outcome(packed[number]) for number in range(count)]


def _tag(spark: SparkSession, tags: Sequence[str]) -> None:
    # Tags belong to the thread, which ends with the job.
    for tag in tags:
        if spark_launch.is_connect(spark):
            spark.addTag(tag)
        else:
            spark.sparkContext.addJobTag(tag)


def _tasks_done(job: Job[Any]) -> int:
    if spark_launch.is_connect(job.spark):
        return 0
    context = job.spark.sparkContext
    tracker = context.statusTracker()
    done = 0
    try:
        for number in context._jsc.sc().statusTracker().getJobIdsForTag(job.tag):
            info = tracker.getJobInfo(number)
            for stage in info.stageIds if info else ():
                stage_info = tracker.getStageInfo(stage)
                done += stage_info.numCompletedTasks if stage_info else 0
    except Exception:
        return 0  # the session is ending; the job reports the reason
    return min(done, len(job.attempts))
