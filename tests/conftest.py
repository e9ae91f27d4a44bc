"""The run as a whole: its profile, its folder for temporary files, which worker runs what, one Spark session."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from inline import choose_where_functions_run
from profiles import PROFILE, SEED, load_hypothesis_profile
from scheduling import FileScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent
LONG_FOLDERS = (TESTS / "faults", TESTS / "histories")  # crashes, races and random histories: not for `make test-fast`
MEMORY_DISK = Path("/dev/shm")
MEMORY_DISK_BYTES = 2 << 30  # what a run with all its workers may need


def pytest_configure(config: pytest.Config) -> None:
    load_hypothesis_profile()
    use_memory_disk(config)
    # Tests must not change what this user's own lakes have seen.
    state = tempfile.mkdtemp(prefix="fm-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["FLOODMARK_STATE"] = state
    # Without bytecode every process that a test starts would compile the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A parent that ignores SIGINT (nohup, a shell script) would pass that on to every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def use_memory_disk(config: pytest.Config) -> None:
    """Put temporary files into memory, unless TMPDIR is set: durability is tested by recording, not by a disk."""
    if "TMPDIR" in os.environ or not os.access(MEMORY_DISK, os.W_OK):
        return
    if shutil.disk_usage(MEMORY_DISK).free >= MEMORY_DISK_BYTES:
        # The name is short because sockets are among the files.
        folder = tempfile.mkdtemp(prefix="fm-", dir=MEMORY_DISK)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["TMPDIR"] = folder
        tempfile.tempdir = None


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark random tests, and put Spark's tests and long files first, so that no worker ends with one."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.soak)
        if item.path.parent in LONG_FOLDERS:
            item.add_marker(pytest.mark.slow)
    if config.getoption("soak_until") is not None:
        choose(config, items, [item for item in items if item.get_closest_marker("soak")])
        random.Random(SEED).shuffle(items)
        return
    if PROFILE != "soak":
        choose(config, items, [item for item in items if not is_soak_only(item)])
    long_files = {item.path for item in items if is_long(item)}
    items.sort(key=lambda item: (not is_spark(item), item.path not in long_files))


def pytest_collection_finish() -> None:
    """Take what collecting left out of the garbage collector's view: it would be searched again in every test."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else libraries report as leaked what they left to the interpreter's end


def is_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is not None


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


# Soak: the tests that do more under that profile, for a given time.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-until", type=float, help="run only soak tests; start none after this Unix time")


def choose(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    left = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = chosen


def is_soak_only(item: pytest.Item) -> bool:
    """Marked `soak(only=True)`: too long for every run, and guarded otherwise by a shorter test."""
    mark = item.get_closest_marker("soak")
    return mark is not None and bool(mark.kwargs.get("only"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("soak_until")
    if until is not None and time.time() > until:
        pytest.skip("no time left")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    choose_where_functions_run(item)


# Spark


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """One session for all tests of a worker that can share it."""
    settings = {
        "spark.master": "local[2,3]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        # Compiling a plan takes longer than running it on a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.python.daemon.module": "spark_daemon",
    }
    with Session(settings=settings, profile=Profile.SHORT, archive=ArchiveUse.USE) as ours:
        with pytest.MonkeyPatch.context() as patch:
            # The JVM passes it on to the daemon.
            patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
            # The first test may have its own folder for temporary files. The session must outlive it.
            patch.setattr(tempfile, "tempdir", None)
            ours.get()
        yield ours


@pytest.fixture(scope="session")
def spark(session: Session) -> SparkSession:
    return session.get()


@pytest.fixture(autouse=True)
def activate_shared_session(request: pytest.FixtureRequest) -> None:
    """Make the shared session active again, where Spark looks up data sources. An earlier test may have moved it."""
    if "spark" in request.fixturenames:
        shared = request.getfixturevalue("spark")
        if classic := getattr(shared, "_jsparkSession", None):
            shared._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(classic)
            type(shared)._activeSession = shared


LOG_LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the last lines of each captured part, so that a failure is not buried in log output."""
    report = yield
    report.sections = [(name, last_lines(text)) for name, text in report.sections]
    return report


def last_lines(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= LOG_LINES:
        return text
    return "\n".join([f"… {len(lines) - LOG_LINES} lines before these", *lines[-LOG_LINES:]])
