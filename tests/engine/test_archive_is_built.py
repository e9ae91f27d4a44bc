import os
import signal
import subprocess
import sys
import time

import pytest

from floodmark.engine import find_java
from floodmark.engine.archive import Archive
from floodmark.engine.launch import spark_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def archive(tmp_path) -> Archive:
    return Archive.of(find_java(), spark_home(), tmp_path / "floodmark")


def builder(tmp_path, *options, **pipes):
    return subprocess.Popen(
        [sys.executable, "-m", "floodmark.engine.cds", *options],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        **pipes,
    )


def loaded_from_archive(tmp_path) -> int:
    """How many classes a session of ours takes from the archive."""
    code = (
        "from floodmark.engine import *\n"
        "log = '-Xlog:class+load:file=classes.txt'\n"
        "settings = {'spark.driver.memory': '2g', 'spark.driver.extraJavaOptions': log}\n"
        "session = Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE)\n"
        "assert session.get().range(10).count() == 10\n"
    )
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=variables, cwd=tmp_path, check=True, timeout=200)
    return (tmp_path / "classes.txt").read_text().count("shared objects file (top)")


def test_one_of_two_builders_makes_the_archive_and_sessions_use_it(tmp_path, archive):
    builders = [builder(tmp_path), builder(tmp_path)]
    said = [process.communicate(timeout=250) for process in builders]
    assert sorted(process.returncode for process in builders) == [0, 1], said
    assert "Another process is making" in said[0][1] + said[1][1]
    assert archive.ready() is not None
    assert list(archive.folder.glob("*.tmp")) == []
    assert loaded_from_archive(tmp_path) > 5000
    archive.path.chmod(0o644)
    os.truncate(archive.path, 1000)
    assert loaded_from_archive(tmp_path) == 0


def test_builder_ends_with_the_process_it_works_for(tmp_path, archive):
    process = builder(tmp_path, "--beside", stdin=subprocess.PIPE)
    until = time.monotonic() + 60
    while "SparkSubmit" not in group(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert "SparkSubmit" in group(process.pid)
    process.communicate(timeout=30)  # closes its stdin, as the end of this process would
    assert process.returncode == -signal.SIGKILL
    until = time.monotonic() + 20
    while group(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert group(process.pid) == ""
    assert archive.ready() is None
    assert list(archive.folder.glob("*.tmp")) == []


def group(number: int) -> str:
    """The commands of the living processes of a group."""
    listing = subprocess.run(["ps", "axww", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
    return "\n".join(row[2] for row in rows if row[0] == str(number) and not row[1].startswith("Z"))
