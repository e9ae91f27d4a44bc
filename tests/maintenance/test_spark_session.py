"""A session that does not start is found out in bounded time, and nothing of it is left running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from floodmark.engine.java import Java
from floodmark.errors import JavaNotFound
from floodmark.maintenance.checks import check_java, check_session


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.soak(only=True)
def test_a_small_session_starts_and_counts():
    finding = check_session({"spark.master": "local[1]", "spark.driver.memory": "512m"})
    assert finding.state == "ok", finding
    assert finding.detail.startswith("Spark 4.")


@pytest.mark.process
def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path):
    pid = tmp_path / "pid"
    for seconds in (1, 4, 16, 64):  # a loaded machine takes longer to start the child
        program = f"sleep 600 & echo $! > {pid}.new && mv {pid}.new {pid}; wait"
        finding = check_session({}, seconds=seconds, command=["sh", "-c", program])
        assert (finding.state, f"{seconds} seconds" in finding.detail) == ("bad", True)
        if pid.exists():
            break
    child = int(pid.read_text())
    while is_running(child):
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_one_that_fails_says_its_last_words():
    finding = check_session({}, command=[sys.executable, "-I", "-c", "raise SystemExit('no such master')"])
    assert (finding.state, finding.detail) == ("bad", "does not start: no such master")


def test_one_that_says_nothing_is_not_taken_for_one_that_started():
    assert check_session({}, command=[sys.executable, "-I", "-c", ""]).state == "bad"


def test_java_is_named_with_where_it_was_found():
    java = Java(Path("/opt/java"), 17, "17.0.1", "JAVA_HOME")
    assert check_java(lambda: java).detail == "17.0.1 from JAVA_HOME (/opt/java)"


def test_no_java_is_bad_with_what_to_install():
    def find() -> Java:
        raise JavaNotFound("Spark needs Java 17 or newer.", hint="Install one of: …", found=())

    assert check_java(find).state == "bad"
    assert check_java(find).remedy == "Install one of: …"


def test_a_java_home_that_is_passed_over_is_said():
    java = Java(Path("/usr/bin/java"), 17, "17.0.1", "PATH")
    found = check_java(lambda: java, {"JAVA_HOME": "/opt/java8"})
    assert (found.state, "JAVA_HOME=/opt/java8 is ignored" in found.detail) == ("warn", True)
    assert check_java(lambda: java, {}).state == "ok"


def test_one_that_counted_is_named_with_its_version():
    finding = check_session({}, command=[sys.executable, "-I", "-c", "print('VERSION 4.0.1')"])
    assert (finding.state, finding.detail.partition(" started")[0]) == ("ok", "Spark 4.0.1")
