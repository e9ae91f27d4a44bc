import threading

import pytest

from floodmark.engine.attempts import CancelSwitch
from floodmark.engine.run import run_in_threads
from floodmark.errors import Cancelled, FloodmarkError, TaskFailed
from waiting import PATIENCE


class BadRow(FloodmarkError):
    offset: int


class Count:
    """A progress that only counts."""

    def __init__(self):
        self.steps = []

    def start(self, label, total): ...

    def finish(self): ...

    def advance(self, units):
        self.steps.append(units)


def halve(span):
    start, end = span
    middle = (start + end) // 2
    return None if end - start < 2 else ((start, middle), (middle, end))


def test_results_come_in_the_order_of_the_tasks():
    last = threading.Event()

    def first_ends_last(n):
        if n == 5:
            last.set()
        if n == 0:
            last.wait()
        return n * 10

    assert run_in_threads(range(6), first_ends_last, threads=3) == [0, 10, 20, 30, 40, 50]


def test_no_tasks_give_no_results():
    assert run_in_threads([], str) == []


def test_task_that_raises_is_tried_again_and_the_others_are_not():
    calls = []

    def flaky(n):
        calls.append(n)
        if n == 1 and calls.count(1) < 3:
            raise OSError("busy")
        return n

    assert run_in_threads(range(3), flaky, retries=2) == [0, 1, 2]
    assert sorted(calls) == [0, 1, 1, 1, 2]


def test_task_that_always_raises_is_named():
    def bad(n):
        raise ValueError(f"no {n}")

    with pytest.raises(TaskFailed, match="The task 7 failed 3 times: ValueError: no 7") as caught:
        run_in_threads([7], bad, retries=2)
    assert caught.value.task == "7"
    assert caught.value.attempts == 3
    assert "in bad" in caught.value.trace
    assert isinstance(caught.value.__cause__, ValueError)


def test_floodmark_error_is_not_retried_and_keeps_its_facts():
    calls = []

    def refuse(n):
        calls.append(n)
        raise BadRow("a bad row", hint="fix it", offset=41)

    with pytest.raises(BadRow) as caught:
        run_in_threads([1], refuse)
    assert calls == [1]
    assert caught.value.offset == 41
    assert "in refuse" in caught.value.__notes__[0]


def test_task_out_of_memory_is_halved_in_place():
    def hungry(span):
        if span[1] - span[0] > 2:
            raise MemoryError
        return list(range(*span))

    results = run_in_threads([(0, 2), (2, 9), (9, 11)], hungry, halve=halve)
    assert results == [[0, 1], [2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_memory_error_of_a_task_that_cannot_be_halved_is_retried_then_named():
    calls = []

    def hungry(span):
        calls.append(span)
        raise MemoryError

    with pytest.raises(TaskFailed, match="MemoryError"):
        run_in_threads([(0, 1)], hungry, halve=halve, retries=1)
    assert calls == [(0, 1), (0, 1)]


def test_halving_without_end_is_bounded():
    def hungry(n):
        raise MemoryError

    with pytest.raises(TaskFailed):
        run_in_threads([0], hungry, halve=lambda n: (n, n), retries=0)


def test_exit_inside_a_task_is_a_failure_of_that_task():
    with pytest.raises(TaskFailed, match="SystemExit"):
        run_in_threads([0], lambda _: exit(3), retries=0)


def test_progress_adds_up_to_the_rows_also_when_tasks_are_halved():
    def hungry(span):
        if span[1] - span[0] > 3:
            raise MemoryError

    count = Count()
    run_in_threads([(0, 10), (10, 12)], hungry, progress=count, halve=halve, weight=lambda s: s[1] - s[0])
    assert sum(count.steps) == 12
    assert len(count.steps) == 5


def test_cancelled_work_begins_no_further_task():
    cancel, begun = CancelSwitch(), []

    def work(n):
        begun.append(n)
        cancel.cancel()

    with pytest.raises(Cancelled) as caught:
        run_in_threads(range(100), work, cancel=cancel)
    assert len(begun) < 3
    assert caught.value.total == 100


def test_threads_work_at_the_same_time():
    barrier = threading.Barrier(3, timeout=PATIENCE)
    run_in_threads(range(3), lambda _: barrier.wait(), threads=3, retries=0)
