import os
import subprocess
import sys

import pytest

from floodmark.engine import Session, run

pytestmark = pytest.mark.spark

SHORT = "from floodmark.engine import Session, Profile, ArchiveUse, run\n" + (
    "session = Session(settings={'spark.driver.memory': '1g'}, profile=Profile.SHORT, archive=ArchiveUse.USE)\n"
)


def python(code, cwd, **variables):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_active_session_of_the_caller_is_used_as_it_is(spark):
    before = dict(spark.sparkContext.getConf().getAll())
    sql_before = dict(spark.conf.getAll)
    other = Session(settings={"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.shuffle.partitions": "77"})
    assert other.get().sparkContext is spark.sparkContext
    assert run([1, 2], lambda n: n + 1, session=other) == [2, 3]
    assert not other.started
    other.stop()
    assert spark.range(3).count() == 3
    assert dict(spark.sparkContext.getConf().getAll()) == before
    assert dict(spark.conf.getAll) == sql_before


def test_session_that_was_given_is_used(spark):
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    session = Session(given)
    assert session.get() is given
    assert run([1], str, session=session) == ["1"]
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"


def test_stopped_session_that_was_given_is_refused(tmp_path):
    code = SHORT + (
        "from floodmark.engine import SessionLost\n"
        "mine = session.get(); given = Session(mine); mine.stop()\n"
        "try: given.get()\n"
        "except SessionLost as error: print(error)\n"
    )
    answer = python(code, tmp_path)
    assert "has been stopped" in answer.stdout, answer.stderr


def test_first_job_leaves_no_litter_and_no_noise(tmp_path):
    cwd, tmp = tmp_path / "cwd", tmp_path / "tmp"
    cwd.mkdir()
    tmp.mkdir()
    code = SHORT + (
        "spark = session.get()\n"
        "spark.sql('create table t using parquet as select 1 as a')\n"
        "print(spark.sql('select a from t').collect()[0].a, run([4], lambda n: n * n, session=session))\n"
        "print(spark.conf.get('spark.sql.session.timeZone'))\n"
        "spark.sql('drop table t')\n"
    )
    answer = python(code, cwd, TMPDIR=str(tmp))
    assert answer.stdout.splitlines() == ["1 [16]", "UTC"], answer.stderr
    assert answer.stderr == ""
    assert list(cwd.iterdir()) == []


@pytest.mark.slow
def test_dead_or_stopped_session_is_replaced(tmp_path):
    code = SHORT + (
        "import os, signal\n"
        "from floodmark.engine import launch\n"
        "session.get(); session.stop(); assert not session.started\n"
        "assert run([1], str, session=session) == ['1'] and session.started\n"
        "session.get().stop()\n"
        "assert run([1], str, session=session) == ['1']\n"
        "jvm = launch.jvm_process(); os.kill(jvm.pid, signal.SIGKILL); jvm.wait()\n"
        "assert not session.started\n"
        "print(run([1], str, session=session), session.started)\n"
    )
    answer = python(code, tmp_path)
    assert answer.stdout.strip() == "['1'] True", answer.stderr


@pytest.mark.slow
def test_jvm_killed_in_the_middle_of_a_run_costs_only_time(tmp_path):
    code = SHORT + (
        "import os, signal, sys, pathlib\n"
        "from floodmark.engine import launch\n"
        "def work(n):\n"
        "    once = pathlib.Path('once')\n"
        "    if n == 1 and not once.exists():\n"
        "        once.touch(); os.kill(jvm, signal.SIGKILL)\n"
        "    return n\n"
        "session.get(); jvm = launch.jvm_process().pid\n"
        "print(run([0, 1, 2], work, session=session))\n"
    )
    answer = python(code, tmp_path)
    assert answer.stdout.strip() == "[0, 1, 2]", answer.stderr


@pytest.mark.slow
def test_killed_worker_is_survived_in_a_users_session_that_does_not_retry(tmp_path):
    # The user's local[2] gives up at a task's first failure; the engine does not.
    code = (
        "import os, pathlib, signal\n"
        "from pyspark.sql import SparkSession\n"
        "from floodmark.engine import Session, run\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "def work(n):\n"
        "    once = pathlib.Path('once')\n"
        "    if n == 1 and not once.exists():\n"
        "        once.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return n\n"
        "session = Session()\n"
        "print(run([0, 1, 2], work, session=session), session.get() is spark)\n"
    )
    answer = python(code, tmp_path, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    assert answer.stdout.strip() == "[0, 1, 2] True", answer.stderr
