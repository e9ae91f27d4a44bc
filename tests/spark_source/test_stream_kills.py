"""A streaming query from one dataset to another that is killed and restarted copies every record exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark import Lake, stream_sink
from spark_source.copying import copy_records
from spark_source.worlds import numbers

TESTS = Path(__file__).parents[1]


def is_killed(lake: Path, checkpoint: Path, *when: str) -> bool:
    """Whether a process with the query died as planned."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "spark_source.copying", str(lake), str(checkpoint), *when]
    # A group of its own, so that what it starts is killed with it and nothing else is.
    life = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert life.returncode == -signal.SIGKILL, life.stderr
    return True


@pytest.mark.soak(only=True)  # test_spark_jobs has a batch that Spark has not noted, in one process
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_record_is_copied_once_whenever_the_query_is_killed(tmp_path: Path, spark):
    lake = Lake(tmp_path / "lake")
    events = lake.create("events")
    events.write(numbers(0, 10))
    copy = lake.create("copy", schema={"n": "int64"})
    places = (tmp_path / "lake", tmp_path / "checkpoint")

    assert is_killed(*places, "after", "1")
    assert copy.to_arrow().to_pydict() == {"n": list(range(6))}  # the second batch is there, and Spark has not noted it
    assert not (tmp_path / "checkpoint/commits/1").exists()

    assert is_killed(*places, "before", "2")
    assert copy.to_arrow().to_pydict() == {"n": list(range(6))}  # the second was not written again, the third not yet

    events.write(numbers(10, 14))
    for _ in range(2):
        copy_records(spark, *map(str, places), stream_sink(lake, "copy"))
        assert copy.to_arrow().to_pydict() == {"n": list(range(14))}
    assert copy.verify().problems == ()
