"""Threads that need PySpark first at the same moment all get it whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from floodmark.engine import spark_launch, task

def slowed(*_):  # so that the other thread is in the middle of it, too
    import time; time.sleep(0.002)

errors = []
start = threading.Barrier(2)

def attempt(work):
    sys.settrace(lambda frame, event, arg: slowed() if "pyspark" in frame.f_code.co_filename else None)
    start.wait()
    try:
        work()
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=attempt, args=(work,)) for work in (spark_launch.active, task.cloudpickle)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors)
"""


@pytest.mark.process
def test_two_threads_that_import_pyspark_at_different_places_both_get_it():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
