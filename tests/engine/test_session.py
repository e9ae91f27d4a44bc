"""Sessions: the caller's own when there is one, else one of ours that is quiet and is replaced when it dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from floodmark.engine.run import run_on_spark
from floodmark.engine.session import Session

pytestmark = pytest.mark.timeout(900)

START = """
import json, os, pathlib, signal, sys
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from floodmark.errors import EngineError
from floodmark.engine import spark_launch
from floodmark.engine.run import run_on_spark

seen = {}
settings = {"spark.driver.memory": "1g", "spark.master": "local[2,3]"}
session = Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE)
"""

QUIET = """
spark = session.get()
spark.sql("create table t using parquet as select 1 as a")
seen["first_job"] = [spark.sql("select a from t").collect()[0].a, *run_on_spark([4], lambda n: n * n, session=session)]
seen["time_zone"] = spark.conf.get("spark.sql.session.timeZone")
spark.sql("drop table t")
given = Session(spark)
session.stop()
seen["started_after_stop"] = session.started
try:
    given.get()
except EngineError as error:
    seen["given_after_stop"] = str(error)
seen["replaced_after_stop"] = [*run_on_spark([1], str, session=session), session.started]
session.get().stop()
seen["replaced_after_stop_by_others"] = run_on_spark([1], str, session=session)
print(json.dumps(seen))
"""

KILLED = """
from pyspark.sql import SparkSession

def work(n):
    if n == 1 and not once.exists():
        once.touch()
        os.kill(victim or os.getpid(), signal.SIGKILL)
    return n

session.get()
session.stop()
theirs = SparkSession.builder.master("local[2]").getOrCreate()  # gives up at the first failure of a task
once, victim = pathlib.Path("worker_killed"), None
seen["worker_killed"] = run_on_spark([0, 1, 2], work, session=session)
seen["used_theirs"] = once.exists() and session.get() is theirs and not session.started
theirs.stop()

session.get()
once, victim = pathlib.Path("jvm_killed"), spark_launch.jvm_process().pid
seen["jvm_killed"] = run_on_spark([0, 1, 2], work, session=session)
seen["jvm_was_killed"] = once.exists() and spark_launch.jvm_process().pid != victim

jvm = spark_launch.jvm_process()
os.kill(jvm.pid, signal.SIGKILL)
jvm.wait()
seen["started_when_dead"] = session.started
seen["replaced_when_dead"] = [*run_on_spark([1], str, session=session), session.started]
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Life:
    """What a process with sessions of its own saw, wrote and left."""

    seen: dict[str, object]
    errors: str
    left: list[str]


def begin(code: str, folder: Path) -> subprocess.Popen[str]:
    cwd, tmp = folder / "cwd", folder / "tmp"
    cwd.mkdir(parents=True)
    tmp.mkdir()
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", START + code],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(tmp), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def lives(tmp_path_factory) -> dict[str, Life]:
    """Two processes at the same time, each with JVMs of its own."""
    folder = tmp_path_factory.mktemp("lives")
    running = {name: begin(code, folder / name) for name, code in (("quiet", QUIET), ("killed", KILLED))}
    found = {}
    for name, process in running.items():
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        found[name] = Life(json.loads(out), errors, [path.name for path in (folder / name / "cwd").iterdir()])
    return found


@pytest.mark.spark
def test_active_session_of_the_caller_is_used_as_it_is(spark):
    assert spark.range(3).count() == 3  # the first query changes how the warehouse folder is written
    before = dict(spark.sparkContext.getConf().getAll())
    sql_before = dict(spark.conf.getAll)
    other = Session(settings={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "77"})
    assert other.get().sparkContext is spark.sparkContext
    assert run_on_spark([1, 2], lambda n: n + 1, session=other) == [2, 3]
    assert not other.started
    other.stop()
    assert spark.range(3).count() == 3
    assert dict(spark.sparkContext.getConf().getAll()) == before
    assert dict(spark.conf.getAll) == sql_before


@pytest.mark.spark
def test_session_that_was_given_is_used(spark):
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session = Session(given)
    assert session.get() is given
    assert run_on_spark([1], str, session=session) == ["1"]
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


@pytest.mark.spark
@pytest.mark.process
def test_first_job_leaves_no_litter_and_no_noise(lives):
    quiet = lives["quiet"]
    assert quiet.seen["first_job"] == [1, 16]
    assert quiet.seen["time_zone"] == "UTC"
    assert quiet.errors == ""
    assert quiet.left == []


@pytest.mark.spark
@pytest.mark.process
def test_stopped_session_that_was_given_is_refused(lives):
    assert "has been stopped" in lives["quiet"].seen["given_after_stop"]


@pytest.mark.spark
@pytest.mark.process
def test_stopped_session_is_replaced(lives):
    seen = lives["quiet"].seen
    assert seen["started_after_stop"] is False
    assert seen["replaced_after_stop"] == ["1", True]
    assert seen["replaced_after_stop_by_others"] == ["1"]


@pytest.mark.spark
@pytest.mark.process
def test_killed_worker_is_survived_in_a_users_session_that_does_not_retry(lives):
    assert lives["killed"].seen["worker_killed"] == [0, 1, 2]
    assert lives["killed"].seen["used_theirs"] is True


@pytest.mark.spark
@pytest.mark.process
def test_jvm_killed_in_the_middle_of_a_run_costs_only_time(lives):
    assert lives["killed"].seen["jvm_killed"] == [0, 1, 2]
    assert lives["killed"].seen["jvm_was_killed"] is True


@pytest.mark.spark
@pytest.mark.process
def test_dead_session_is_replaced(lives):
    assert lives["killed"].seen["started_when_dead"] is False
    assert lives["killed"].seen["replaced_when_dead"] == ["1", True]
