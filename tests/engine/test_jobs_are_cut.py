from collections import deque
from dataclasses import replace

import pytest

from floodmark.engine.attempts import TaskAttempt, TaskAttempts
from floodmark.engine.run import next_job, next_size
from floodmark.errors import TaskFailed


def waiting(*tasks):
    return deque(TaskAttempt((n,), task, 1) for n, task in enumerate(tasks))


def taken(job):
    return [attempt.task for attempt in job[0]]


def test_job_takes_tasks_in_order_up_to_its_limit():
    tasks = waiting("a", "b", "c")
    assert taken(next_job(tasks, 2)) == ["a", "b"]
    assert taken(next_job(tasks, 2)) == ["c"]


def test_heavy_tasks_are_spread_over_jobs():
    tasks = waiting("x" * 600, "y" * 600, "z")
    assert taken(next_job(tasks, 10, most_bytes=1000)) == ["x" * 600]
    assert taken(next_job(tasks, 10, most_bytes=1000)) == ["y" * 600, "z"]


def test_task_over_the_limit_still_gets_a_job():
    assert taken(next_job(waiting("x" * 5000), 10, most_bytes=1000)) == ["x" * 5000]


def test_suspect_is_in_a_job_by_itself():
    tasks = waiting("a", "b", "c")
    tasks[1] = replace(tasks[1], alone=True)
    assert [taken(next_job(tasks, 10)) for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_death_among_many_makes_each_a_suspect_and_blames_none():
    attempts = TaskAttempts(["a", "b"], retries=0, halve=None, weight=None)
    job = [attempts.waiting.popleft(), attempts.waiting.popleft()]
    attempts.record_job_death(job, "worker exited")
    assert [(a.task, a.alone, a.failures) for a in attempts.waiting] == [("a", True, 0), ("b", True, 0)]


def test_death_of_a_job_of_one_is_its_tasks_fault():
    attempts = TaskAttempts(["a"], retries=0, halve=None, weight=None)
    with pytest.raises(TaskFailed, match="The task a failed 1 times: WorkerDied: worker exited"):
        attempts.record_job_death([attempts.waiting.popleft()], "worker exited")


def test_halves_of_a_task_that_killed_its_worker_are_jobs_of_their_own():
    attempts = TaskAttempts(["ab"], retries=0, halve=lambda text: (text[:1], text[1:]), weight=None)
    attempts.record_job_death([attempts.waiting.popleft()], "worker exited")
    assert [(a.task, a.alone) for a in attempts.waiting] == [("a", True), ("b", True)]


def test_worker_without_floodmark_is_explained():
    attempts = TaskAttempts(["a"], retries=0, halve=None, weight=None)
    with pytest.raises(TaskFailed, match="Install floodmark"):
        attempts.record_job_death(
            [attempts.waiting.popleft()],
            "…\nModuleNotFoundError: No module named 'floodmark.engine'",
        )


def test_jobs_grow_while_they_are_quick_and_shrink_when_they_are_slow():
    assert next_size(8, seconds=0.1, parallelism=2) == 32
    assert next_size(8, seconds=4, parallelism=2) == 8
    assert next_size(8, seconds=8, parallelism=2) == 4
    assert next_size(8, seconds=600, parallelism=2) == 2
    assert next_size(100, seconds=0, parallelism=2) == 128


def test_what_spark_wraps_around_the_reason_is_left_out():
    said = (
        "An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: thrown in awaitResult:\n"
        "Caused by: Job aborted: Task 0 failed 3 times, most recent failure: Lost task 0.2: Python worker exited\n"
    )
    attempts = TaskAttempts(["a"], retries=0, halve=None, weight=None)
    with pytest.raises(TaskFailed, match=r"WorkerDied: Lost task 0\.2: Python worker exited\n"):
        attempts.record_job_death([attempts.waiting.popleft()], said)
