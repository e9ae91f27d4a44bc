"""A streaming query from one dataset to another that is killed and restarted copies every record exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark import Lake
from spark_source.worlds import numbers

TESTS = Path(__file__).parents[1]


def run(lake: Path, checkpoint: Path, *when: str) -> int:
    """One life of the query; how it ended."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "spark_source.copying", str(lake), str(checkpoint), *when]
    # A group of its own, so that what it starts is killed with it and nothing else is.
    life = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert life.returncode in (0, -signal.SIGKILL), life.stderr
    return life.returncode


@pytest.mark.spark
@pytest.mark.timeout(800)
def test_every_record_is_copied_once_whenever_the_query_is_killed(tmp_path: Path):
    lake = Lake(tmp_path / "lake")
    events = lake.create("events")
    events.write(numbers(0, 10))
    copy = lake.create("copy", schema={"n": "int64"})
    places = (tmp_path / "lake", tmp_path / "checkpoint")

    assert run(*places, "after", "1") == -signal.SIGKILL
    assert copy.to_arrow().to_pydict() == {"n": list(range(6))}  # the second batch is there, and Spark has not noted it
    assert not (tmp_path / "checkpoint/commits/1").exists()

    assert run(*places, "before", "2") == -signal.SIGKILL
    assert copy.to_arrow().to_pydict() == {"n": list(range(6))}  # the second was not written again, the third not yet

    events.write(numbers(10, 14))
    assert run(*places, "never") == 0
    assert copy.to_arrow().to_pydict() == {"n": list(range(14))}
    assert copy.verify().problems == ()
    assert run(*places, "never") == 0
    assert copy.count() == 14
