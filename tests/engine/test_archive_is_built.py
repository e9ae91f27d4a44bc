"""The start-up archive: built once, by one process, and used by sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from floodmark.engine.java import find_java
from floodmark.engine.spark_launch import spark_home
from floodmark.engine.startup_archive import Archive

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

SESSION = """
from floodmark.engine.session import ArchiveUse, Session; from floodmark.engine.spark_launch import Profile
log = "-Xlog:class+load:file=classes.txt"
settings = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": log}
session = Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE)
assert session.get().range(10).count() == 10
"""


def start(tmp_path, *command, **pipes):
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        **pipes,
    )


def commands_of_group(number: int) -> str:
    """The commands of the living processes of a group."""
    listing = subprocess.run(["ps", "axww", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
    return "\n".join(row[2] for row in rows if row[0] == str(number) and not row[1].startswith("Z"))


def test_archive_is_built_by_one_process_that_ends_with_the_one_it_works_for(tmp_path):
    archive = Archive.of(find_java(), spark_home(), tmp_path / "floodmark")
    builder = ("-m", "floodmark.engine.startup_archive")

    first = start(tmp_path, *builder, "--beside", stdin=subprocess.PIPE)
    while "SparkSubmit" not in commands_of_group(first.pid):
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = start(tmp_path, *builder)
    assert "Another process is building" in second.communicate()[1]
    assert second.returncode == 1

    first.communicate()  # closes its stdin, as the end of this process would
    assert first.returncode == -signal.SIGKILL
    while commands_of_group(first.pid):
        time.sleep(0.05)
    assert archive.ready() is None
    assert list(archive.folder.glob("*.tmp")) == []

    third = start(tmp_path, *builder)
    said = third.communicate()
    assert third.returncode == 0, said
    assert archive.ready() is not None
    assert list(archive.folder.glob("*.tmp")) == []

    session = start(tmp_path, "-c", SESSION)
    said = session.communicate()
    assert session.returncode == 0, said
    assert (tmp_path / "classes.txt").read_text().count("shared objects file (top)") > 5000
