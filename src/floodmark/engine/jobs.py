"""Spark jobs that run side by side, each in a thread of its own, so that they can be watched and cancelled."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from floodmark.engine import launch
from floodmark.engine.attempts import Attempt
from floodmark.engine.session import Session
from floodmark.engine.task import SCHEMA, Outcome, Shipment, unpack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
_CANCEL_PATIENCE = 15.0


@dataclass(frozen=True, eq=False)
class Job(Generic[Task]):
    """The attempts that one Spark job makes, one partition for each."""

    attempts: Sequence[Attempt[Task]]
    shipment: Shipment
    tag: str
    spark: SparkSession

    @property
    def units(self) -> int:
        return sum(attempt.units for attempt in self.attempts)


@dataclass(frozen=True)
class JobEnd(Generic[Task]):
    """A job that has ended: with an outcome for every attempt, or with the reason why there is none."""

    job: Job[Task]
    outcomes: Sequence[Outcome]
    failure: str | None
    seconds: float


class Jobs(Generic[Task]):
    """The jobs of one run that are under way."""

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
        """Whether another job is wanted, so that no core waits for the last task of the one before."""
        under_way = sum(len(job.attempts) for job in self._running)
        return len(self._running) < 2 or under_way < 2 * self.parallelism

    def submit(self, attempts: Sequence[Attempt[Task]], shipment: Shipment) -> None:
        """Start a job."""
        from pyspark import InheritableThread

        spark = self._session.get()
        job = Job(attempts, shipment, f"{self._tag}-{uuid.uuid4().hex[:12]}", spark)
        # The thread takes over what the caller set for its own thread, such as a scheduler pool.
        thread = cast("threading.Thread", InheritableThread(self._work, args=(job,), session=spark))
        thread.daemon = True
        self._running[job] = thread
        thread.start()

    def wait(self, timeout: float) -> list[JobEnd[Task]]:
        """The jobs that have ended; waits a moment for one."""
        ended: list[JobEnd[Task]] = []
        with contextlib.suppress(queue.Empty):
            ended.append(self._ended.get(timeout=timeout))
            while True:
                ended.append(self._ended.get_nowait())
        for end in ended:
            self._running.pop(end.job).join()
        return ended

    def units_done(self) -> int:
        """An estimate of what the running jobs have done, from Spark's status; 0 where Spark does not say."""
        return sum(job.units * _tasks_done(job) // len(job.attempts) for job in self._running)

    def cancel(self) -> None:
        """Cancel what is running, and wait until it has stopped."""
        self._cancelled.set()
        until = time.monotonic() + _CANCEL_PATIENCE
        while self._running and time.monotonic() < until:
            for spark in {id(job.spark): job.spark for job in self._running}.values():
                # Again and again, for a job may reach Spark after the first call. Where the session is dead
                # there is nothing to cancel, and the error that brought us here is the one to report.
                with contextlib.suppress(Exception):
                    if launch.is_connect(spark):
                        spark.interruptTag(self._tag)
                    else:
                        spark.sparkContext.cancelJobsWithTag(self._tag)
            self.wait(0.2)

    def _work(self, job: Job[Task]) -> None:
        began = time.monotonic()
        outcomes: Sequence[Outcome] = ()
        failure: str | None = None
        try:
            if self._cancelled.is_set():
                raise RuntimeError("cancelled before it began")
            _tag(job.spark, (self._tag, job.tag))
            outcomes = _outcomes(job)
        except Exception as error:
            failure = launch.text_of(error)
        self._ended.put(JobEnd(job, outcomes, failure, time.monotonic() - began))


def _outcomes(job: Job[Any]) -> list[Outcome]:
    shipment, count = job.shipment, len(job.attempts)

    def body(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from shipment.run(batches)

    # A range of n rows in n partitions: one task each, dealt out by Spark as cores become free, and no shuffle.
    table = job.spark.range(0, count, 1, count).mapInArrow(body, SCHEMA).toArrow()
    packed = dict(zip(table["task"].to_pylist(), table["outcome"].to_pylist(), strict=True))
    return [unpack(packed[number]) for number in range(count)]


def _tag(spark: SparkSession, tags: Sequence[str]) -> None:
    # Tags belong to the thread, which is ours and ends with the job.
    for tag in tags:
        if launch.is_connect(spark):
            spark.addTag(tag)
        else:
            spark.sparkContext.addJobTag(tag)


def _tasks_done(job: Job[Any]) -> int:
    if launch.is_connect(job.spark):
        return 0
    context = job.spark.sparkContext
    tracker = context.statusTracker()
    done = 0
    try:
        for number in context._jsc.sc().statusTracker().getJobIdsForTag(job.tag):
            info = tracker.getJobInfo(number)
            for stage in info.stageIds if info else ():
                found = tracker.getStageInfo(stage)
                done += found.numCompletedTasks if found else 0
    except Exception:
        return 0  # the session is ending; the job itself will say why
    return min(done, len(job.attempts))
