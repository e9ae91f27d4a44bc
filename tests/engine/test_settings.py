import shlex
from pathlib import Path

import pytest

from floodmark.engine.spark_launch import Machine, Profile, driver_memory, launch_environment, session_settings

MACHINE = Machine(cores=4, memory=16 << 30, tmpdir="/tmp/t", private_dir="/tmp/t/own", python="/venv/bin/python")


def settings(overrides=(), profile=Profile.FULL, archive=None, machine=MACHINE):
    return session_settings(machine, profile, dict(overrides), archive)


@pytest.mark.parametrize(
    ("gib", "expected"), [(0.5, "512m"), (4, "1024m"), (16, "4096m"), (24, "6144m"), (256, "8192m")]
)
def test_driver_takes_a_quarter_of_the_machine_and_at_most_8_gib(gib, expected):
    assert driver_memory(int(gib * (1 << 30))) == expected


def test_own_session_is_local_quiet_and_keeps_to_itself():
    ours = settings()
    assert ours["spark.master"] == "local[4,3]"
    assert ours["spark.driver.bindAddress"] == "127.0.0.1"
    assert ours["spark.ui.enabled"] == "false"
    assert ours["spark.sql.session.timeZone"] == "UTC"
    assert ours["spark.sql.warehouse.dir"].startswith("file:///tmp/t/")
    assert "-Djava.io.tmpdir=/tmp/t" in shlex.split(ours["spark.driver.extraJavaOptions"])


def test_short_profile_uses_the_fast_compiler_and_full_does_not():
    flag = "-XX:TieredStopAtLevel=1"
    assert flag in settings(profile=Profile.SHORT)["spark.driver.extraJavaOptions"]
    assert flag not in settings(profile=Profile.FULL)["spark.driver.extraJavaOptions"]


def test_archive_is_given_to_java_even_when_its_path_has_a_space():
    flags = settings(archive=Path("/my cache/a.jsa"))["spark.driver.extraJavaOptions"]
    assert "-XX:SharedArchiveFile=/my cache/a.jsa" in shlex.split(flags)


def test_what_the_user_sets_wins_and_java_options_are_joined():
    theirs = settings({"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Dmine=1"})
    assert theirs["spark.driver.memory"] == "1g"
    flags = shlex.split(theirs["spark.driver.extraJavaOptions"])
    assert flags[-1] == "-Dmine=1"
    assert "-Djava.io.tmpdir=/tmp/t" in flags


def test_session_on_a_cluster_is_not_bound_to_loopback():
    cluster = settings({"spark.master": "spark://host:7077"})
    assert "spark.driver.bindAddress" not in cluster
    assert "spark.python.unix.domain.socket.enabled" not in cluster


def test_unix_sockets_are_left_off_when_the_temporary_folder_has_a_long_path():
    long = Machine(cores=1, memory=1 << 30, tmpdir="/tmp/" + "x" * 90, private_dir="/tmp/" + "x" * 99, python="python")
    assert "spark.python.unix.domain.socket.enabled" in settings()
    assert "spark.python.unix.domain.socket.enabled" not in settings(machine=long)


def test_connect_session_gets_only_what_the_user_set():
    assert settings({"spark.remote": "sc://host"}) == {"spark.remote": "sc://host"}


def test_local_workers_run_the_interpreter_that_runs_us():
    variables = launch_environment(
        MACHINE, settings(), {"PYSPARK_PYTHON": "/other/python"}, Path("/spark"), Path("/wrapper")
    )
    assert variables["PYSPARK_PYTHON"] == "/venv/bin/python"
    assert variables["JAVA_HOME"] == "/wrapper"


def test_workers_of_a_cluster_run_the_interpreter_that_the_user_names():
    cluster = settings({"spark.master": "spark://host:7077"})
    variables = launch_environment(MACHINE, cluster, {"PYSPARK_PYTHON": "/other/python"}, Path("/spark"), None)
    assert variables["PYSPARK_PYTHON"] == "/other/python"
    assert "SPARK_LOCAL_IP" not in variables
    assert "JAVA_HOME" not in variables
