import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest

from floodmark.engine.attempts import CancelSwitch
from floodmark.engine.run import run_on_spark
from floodmark.errors import Cancelled, FloodmarkError, TaskFailed

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Span:
    start: int
    end: int

    def halves(self):
        middle = (self.start + self.end) // 2
        return None if self.end - self.start < 2 else (Span(self.start, middle), Span(middle, self.end))


class BadRow(FloodmarkError):
    offset: int


class Count:
    def __init__(self):
        self.steps = []

    def start(self, label, total): ...

    def finish(self): ...

    def advance(self, units):
        self.steps.append(units)


def times_called(folder, name):
    """Note a call in a file, for tasks run in other processes; returns how many there were before."""
    count = len(list(folder.glob(f"{name}-*")))
    (folder / f"{name}-{time.time_ns()}-{os.getpid()}").touch()
    return count


def test_results_come_in_the_order_of_the_tasks_from_other_processes(session):
    results = run_on_spark(range(20), lambda n: (n * n, os.getpid()), session=session)
    assert [square for square, _ in results] == [n * n for n in range(20)]
    assert os.getpid() not in {process for _, process in results}


def test_class_of_this_file_comes_back_as_itself(session):
    assert run_on_spark([Span(0, 4)], lambda span: span.halves(), session=session) == [(Span(0, 2), Span(2, 4))]


def test_task_that_raises_is_tried_again_and_the_others_are_not(session, tmp_path):
    def flaky(n):
        if times_called(tmp_path, n) < 2 and n == 1:
            raise OSError("busy")
        return n

    assert run_on_spark(range(4), flaky, session=session) == [0, 1, 2, 3]
    assert [len(list(tmp_path.glob(f"{n}-*"))) for n in range(4)] == [1, 3, 1, 1]


def test_task_that_always_raises_is_named_with_its_trace(session):
    def fails(span):
        raise ValueError("no good")

    with pytest.raises(TaskFailed, match=r"Span\(start=3, end=4\) failed 2 times: ValueError: no good") as caught:
        run_on_spark([Span(3, 4)], fails, session=session, retries=1)
    assert "in fails" in caught.value.trace
    assert isinstance(caught.value.__cause__, ValueError)


def test_floodmark_error_is_raised_at_once_with_its_type_and_facts(session, tmp_path):
    def refuse(n):
        times_called(tmp_path, n)
        raise BadRow("a bad row", hint="fix it", offset=41)

    with pytest.raises(BadRow) as caught:
        run_on_spark([1], refuse, session=session)
    assert (caught.value.offset, caught.value.hint) == (41, "fix it")
    assert "in refuse" in caught.value.__notes__[0]
    assert len(list(tmp_path.iterdir())) == 1


def test_task_out_of_memory_is_halved_in_place(session):
    def hungry(span):
        if span.end - span.start > 2:
            raise MemoryError
        return (span.start, span.end)

    tasks = [Span(0, 2), Span(2, 7), Span(7, 8)]
    assert run_on_spark(tasks, hungry, session=session, halve=Span.halves) == [(0, 2), (2, 4), (4, 5), (5, 7), (7, 8)]


def test_worker_killed_once_is_replaced(session, tmp_path):
    def dies_once(n):
        if n == 2 and times_called(tmp_path, n) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    assert run_on_spark(range(4), dies_once, session=session) == [0, 1, 2, 3]


def test_job_that_died_is_run_again_task_by_task(session, tmp_path):
    def dies_until_spark_gives_up(n):
        # Spark tries a task three times in this session; then the whole job dies.
        if n == 2 and times_called(tmp_path, n) < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    assert run_on_spark(range(4), dies_until_spark_gives_up, session=session) == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 4


def test_task_whose_worker_dies_is_halved(session):
    def dies_when_large(span):
        if span.end - span.start > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return (span.start, span.end)

    assert run_on_spark([Span(0, 4)], dies_when_large, session=session, halve=Span.halves) == [(0, 2), (2, 4)]


def test_task_that_always_kills_its_worker_is_named(session):
    def dies(n):
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TaskFailed, match="The task 1 failed 1 times: WorkerDied") as caught:
        run_on_spark(range(2), dies, session=session, retries=0)
    assert caught.value.task == "1"


def test_progress_is_shown_while_tasks_finish_and_adds_up(session, tmp_path):
    class Noting(Count):
        def advance(self, units):
            super().advance(units)
            (tmp_path / "shown").touch()

    def work(n):
        while n == 1 and not (tmp_path / "shown").exists():
            time.sleep(0.02)

    count = Noting()
    run_on_spark([0, 1], work, session=session, progress=count, weight=lambda _: 30)
    assert count.steps == [30, 30]


def cancelled_soon(session, tmp_path, begin):
    """Run tasks that would take minutes and have ``begin`` called when the first is under way."""

    def slow(n):
        times_called(tmp_path, n)
        time.sleep(600)

    def when_under_way():
        while not any(tmp_path.iterdir()):
            time.sleep(0.02)
        begin()

    watcher = threading.Thread(target=when_under_way)
    watcher.start()
    return slow, watcher


def nothing_runs(spark):
    tracker = spark.sparkContext.statusTracker()
    return not tracker.getActiveJobsIds()


def test_cancelled_run_stops_the_spark_job(session, spark, tmp_path):
    cancel = CancelSwitch()
    slow, watcher = cancelled_soon(session, tmp_path, cancel.cancel)
    with pytest.raises(Cancelled) as caught:
        run_on_spark(range(40), slow, session=session, cancel=cancel)
    watcher.join()
    assert caught.value.total == 40
    assert nothing_runs(spark)
    assert len(list(tmp_path.iterdir())) <= 2
    assert run_on_spark([1], str, session=session) == ["1"]


def test_ctrl_c_stops_the_spark_job_and_reaches_the_caller(session, spark, tmp_path):
    slow, watcher = cancelled_soon(session, tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_on_spark(range(40), slow, session=session)
    watcher.join()
    assert nothing_runs(spark)
    assert run_on_spark([1], str, session=session) == ["1"]


def test_error_of_one_task_stops_the_others(session, spark, tmp_path):
    def work(n):
        if n == 0:
            while not list(tmp_path.iterdir()):
                time.sleep(0.02)  # until another job is under way
            raise BadRow("a bad row", offset=0)
        if n == 9:  # not in the first job, which has four tasks for each of two cores
            times_called(tmp_path, n)
            time.sleep(600)

    with pytest.raises(BadRow):
        run_on_spark(range(12), work, session=session)
    assert nothing_runs(spark)
