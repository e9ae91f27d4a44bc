"""The single checks of `floodmark doctor`: versions, Java and Spark, clocks, folders, disk, locks, conditional puts."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal
from uuid import uuid4

from floodmark.engine.java import OLDEST, Java, find_java
from floodmark.errors import FloodmarkError, JavaNotFound, StorageError
from floodmark.storage.conditional import CONDITIONAL_HINT, WRITERS, race_writers
from floodmark.storage.file_cache import user_cache
from floodmark.storage.file_system import FileSystem, OsFileSystem
from floodmark.storage.store import Store

FindingState = Literal["ok", "warn", "bad"]
"""`warn`: it works, but not as well as it should. `bad`: something does not work."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    state: FindingState
    detail: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def run_check(what: str, check: Check) -> Iterator[Finding]:
    """Run a check; an error becomes a bad finding, so that the other checks still run."""
    try:
        yield from check()
    except FloodmarkError as error:
        yield Finding(what, "bad", error.message, error.hint)
    except OSError as error:
        yield Finding(what, "bad", str(error), "check the disk and the permissions of the folder")


# Python and packages

PYTHON = (3, 11)
NEEDED: Mapping[str, tuple[str, str | None]] = {
    "pyspark": ("4.3", "5"),
    "pyarrow": ("26", None),
    "pandas": ("2.2", "3"),
    "numpy": ("2", None),
    "duckdb": ("2", None),
}
"""The first version that works, and the first that does not; pyproject.toml must have the same."""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of Python."""
    current = ".".join(map(str, version))
    if version[:2] < PYTHON:
        oldest = ".".join(map(str, PYTHON))
        return Finding("python", "bad", f"{current} is too old", f"use Python {oldest} or newer")
    return Finding("python", "ok", current)


def check_packages(installed: Callable[[str], str] = metadata.version) -> Iterator[Finding]:
    """Check the versions of the installed packages without importing them."""
    for name, (oldest, before) in NEEDED.items():
        requirement = f"{name}>={oldest}" + (f",<{before}" if before else "")
        remedy = f"pip install '{requirement}'"
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "bad", "is not installed", remedy)
            continue
        fits = version_numbers(version) >= version_numbers(oldest) and (
            before is None or version_numbers(version) < version_numbers(before)
        )
        yield Finding(name, "ok", version) if fits else Finding(name, "bad", f"{version} is not {requirement}", remedy)


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: 2.0 is 2."""
    numbers = [int(part) for part in re.match(r"[0-9.]*", version)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


# Java and Spark

START_SECONDS = 120.0
"""How long a Spark session may take to start."""

_PROGRAM = """
import json, sys
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
with Session(settings=json.loads(sys.argv[1]), profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
    spark = session.get()
    assert spark.range(7).count() == 7
    print("VERSION", spark.version)
"""
_LINES = 3


def check_java(find: Callable[[], Java] = find_java, environ: Mapping[str, str] = os.environ) -> Finding:
    """Check the Java that Spark will use."""
    try:
        java = find()
    except JavaNotFound as error:
        return Finding("java", "bad", error.message, error.hint)
    detail = f"{java.version} from {java.source} ({java.executable})"
    home = environ.get("JAVA_HOME")
    if home and java.source != "JAVA_HOME":
        detail += f"; JAVA_HOME={home} is ignored: it has no Java {OLDEST} or newer"
        return Finding("java", "warn", detail, f"set JAVA_HOME to a Java {OLDEST} or newer, or unset it")
    return Finding("java", "ok", detail)


def check_session(
    settings: Mapping[str, str], seconds: float = START_SECONDS, command: Sequence[str] | None = None
) -> Finding:
    """Start a session with these settings in a separate process and count seven rows."""
    program = "from floodmark.engine.session import Session; Session().get()"
    remedy = f"run `python -c '{program}'` to see the error, or skip this check with --no-spark"
    started = time.monotonic()
    arguments = command or [sys.executable, "-c", _PROGRAM, json.dumps(dict(settings))]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return Finding("spark session", "bad", f"does not start within {seconds:,.0f} seconds", remedy)
        except BaseException:
            _end(process)
            raise
    took = time.monotonic() - started
    versions = [line.split()[1] for line in out.splitlines() if line.startswith("VERSION ")]
    if process.returncode != 0 or not versions:
        problem = " | ".join(err.strip().splitlines()[-_LINES:]) or f"exit code {process.returncode}"
        return Finding("spark session", "bad", f"does not start: {problem}", remedy)
    return Finding("spark session", "ok", f"Spark {versions[0]} started and counted in {took:.1f} s")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process and the Java that it started: both are in its process group."""
    os.killpg(process.pid, signal.SIGKILL)


# Clocks

EARLIEST = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
LATEST = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
WARN_SECONDS = 5.0
BAD_SECONDS = 3600.0
"""Differences in seconds: more than SOME is a warning, more than MUCH is bad."""

_SET = "set the clock of this machine, preferably by NTP"


def check_clock(now: Callable[[], float] = time.time) -> Finding:
    """Check that the clock shows a possible time and does not go back."""
    first, second = now(), now()
    if not EARLIEST <= first < LATEST:
        return Finding("clock", "bad", f"it shows {_text(first)}", _SET)
    if second < first:
        return Finding("clock", "bad", f"it went back by {first - second:.6f} s during the check", _SET)
    return Finding("clock", "ok", _text(first))


def check_file_times(
    store_time: Callable[[], float], now: Callable[[], float] = time.time, where: str = "the lake"
) -> Finding:
    """Compare the times of two new objects with the clock of this machine."""
    what = "object times"
    before = now()
    first, second = store_time(), store_time()
    after = now()
    if second < first - 1:  # file systems may count whole seconds
        return Finding(what, "bad", f"an object is {first - second:.1f} s older than one written before it", _SET)
    apart = before - first if first < before else max(0.0, first - after)
    side = "behind" if first < before else "ahead of"
    detail = f"times of {where} are {apart:.1f} s {side} this machine's clock"
    if apart > BAD_SECONDS:
        return Finding(what, "bad", detail, f"{_SET}, or the clock of the server; gc finds old objects by these times")
    if apart > WARN_SECONDS:
        return Finding(what, "warn", detail, f"{_SET}, or the clock of the server")
    return Finding(what, "ok", f"times of {where} agree with this machine's clock")


def check_newest(newest: float | None, name: str = "", now: Callable[[], float] = time.time) -> Finding:
    """Compare the time of the newest block with the clock: a time in the future comes from another clock."""
    what = "newest block"
    if newest is None:
        return Finding(what, "ok", "there are no blocks yet")
    ahead = newest - now()
    detail = f"dataset {name!r} has one from {_text(newest)}"
    if ahead > WARN_SECONDS:
        remedy = (
            f"{_SET}, or the clock of the machine that wrote the block; until that time, new blocks get the same time, "
            "and reads with as_of= a time are wrong"
        )
        return Finding(
            what, "bad" if ahead > BAD_SECONDS else "warn", f"{detail}, {ahead:,.0f} s in the future", remedy
        )
    return Finding(what, "ok", detail)


def _text(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{moment} seconds after 1970"


# Folders and disk


def check_temporary(
    environ: Mapping[str, str] = os.environ, folder: Callable[[], str] = tempfile.gettempdir
) -> Finding:
    """Check that the folder for temporary files of tasks and Spark is writable."""
    what = "temporary files"
    remedy = "set TMPDIR to a folder that this user may write to, with enough space for data that Spark sorts"
    try:
        chosen = Path(folder())  # raises FileNotFoundError if no folder is usable
        _write(chosen)
    except OSError as error:
        return Finding(what, "bad", f"the folder is not writable: {error}", remedy)
    configured = environ.get("TMPDIR")
    if configured and Path(configured).absolute() != chosen.absolute():
        return Finding(what, "warn", f"TMPDIR={configured} is not writable; they go to {chosen}", remedy)
    return Finding(what, "ok", str(chosen))


def check_cache(environ: Mapping[str, str] = os.environ) -> Finding:
    """Check the user's cache folder, which has copies of remote indexes and makes Java start faster."""
    what, folder = "cache", user_cache(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder)
    except OSError as error:
        return Finding(what, "warn", f"the folder is not writable: {error}", "set XDG_CACHE_HOME to a writable folder")
    return Finding(what, "ok", str(folder))


def _write(folder: Path) -> None:
    handle, name = tempfile.mkstemp(prefix="floodmark-doctor-", dir=folder)
    try:
        os.write(handle, b"floodmark")
    finally:
        os.close(handle)
        with suppress(FileNotFoundError):
            Path(name).unlink()


LEAST_BYTES = 100 * 10**6
FEW_BYTES = 2 * 10**9
LEAST_FILES = 1_000
FEW_FILES = 50_000
LOW_PART = 0.05
"""A smaller free part of the disk is a warning, too: large disks fill up in large steps."""


def check_disk(folder: Path, look: Callable[[Path], os.statvfs_result] = os.statvfs) -> Iterator[Finding]:
    """Check the free bytes and inodes of a folder's file system."""
    usage = look(_nearest(folder))
    free, size = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    state = _state(free, size, LEAST_BYTES, FEW_BYTES)
    remedy = "free disk space: `floodmark gc` removes unused files, `floodmark purge` removes old records"
    yield Finding("disk space", state, f"{free / 1e9:,.1f} of {size / 1e9:,.1f} GB free", _if_not_ok(state, remedy))
    if usage.f_files == 0:  # a file system that creates inodes on demand
        yield Finding("inodes", "ok", "this file system does not count files")
        return
    state = _state(usage.f_favail, usage.f_files, LEAST_FILES, FEW_FILES)
    remedy = "every block and slice is a file: write in larger batches, run `floodmark gc`, or use another file system"
    yield Finding("inodes", state, f"{usage.f_favail:,} of {usage.f_files:,} free", _if_not_ok(state, remedy))


def _state(free: int, whole: int, least: int, few: int) -> FindingState:
    if free < least:
        return "bad"
    return "warn" if free < few or free < LOW_PART * whole else "ok"


def _if_not_ok(state: FindingState, remedy: str) -> str:
    return "" if state == "ok" else remedy


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


# Files and locks of a folder

_TRY_LOCK = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""
_LOCKED = 3
_OTHER = "keep the lake on a file system that has hard links, flock and fsync of folders (ext4, xfs, NFS 4 with locks)"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def lock_is_held(path: Path) -> bool:
    """Whether the lock of a file excludes another process; a process may not be excluded by its own locks."""
    tried = subprocess.run(
        [sys.executable, "-I", "-c", _TRY_LOCK, str(path)], capture_output=True, timeout=60, check=False
    )
    return tried.returncode == _LOCKED


def check_file_system(
    folder: Path, fs: FileSystem | None = None, is_held: Callable[[Path], bool] = lock_is_held
) -> Iterator[Finding]:
    """Do the file operations of a commit in a folder, with new files that are removed afterwards."""
    fs = OsFileSystem() if fs is None else fs
    first, second = (folder / f"doctor-{uuid.uuid4().hex}" for _ in range(2))
    try:
        yield _check_operations(fs, first, second)
        yield _check_lock(fs, first, is_held)
    finally:
        for path in (first, second):
            with suppress(OSError):
                fs.unlink(path)


def _check_operations(fs: FileSystem, first: Path, second: Path) -> Finding:
    what = "files"
    steps: list[tuple[str, Callable[[], None]]] = [
        ("write", lambda: fs.write_new(first, b"floodmark")),
        ("fsync", lambda: fs.fsync_file(first)),
        ("link", lambda: fs.link(first, second)),
        ("rename", lambda: fs.rename(second, first)),
        ("fsync of folders", lambda: fs.fsync_dir(first.parent)),
    ]
    for step, act in steps:
        try:
            act()
        except OSError as error:
            return Finding(what, "bad", f"{step} does not work in {first.parent}: {error}", _remedy(error))
    return Finding(what, "ok", f"{', '.join(step for step, _ in steps)} work")


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "free disk space, or raise the quota"
    return "check the owner and the permissions of the folder" if error.errno in _REFUSED else _OTHER


def _check_lock(fs: FileSystem, path: Path, is_held: Callable[[Path], bool]) -> Finding:
    what = "locks"
    try:
        with fs.flock(path):
            held = is_held(path)
    except OSError as error:
        return Finding(what, "bad", f"flock does not work in {path.parent}: {error}", _remedy(error))
    if not held:
        detail = f"a lock in {path.parent} does not exclude another process: two writers could both commit"
        return Finding(what, "bad", detail, _OTHER)
    return Finding(what, "ok", "a lock excludes another process")


# Conditional puts of a bucket

ROUNDS = 3


def check_conditional(store: Store) -> Finding:
    """Let several threads create an object, then replace it, at the same moment; the objects are removed afterwards."""
    what = "conditional puts"
    try:
        for _ in range(ROUNDS):
            race = race_writers(store, f"runs/doctor-{uuid4().hex}")
            if not race.is_fair:
                return Finding(what, "bad", str(race), CONDITIONAL_HINT)
    except StorageError as error:
        return Finding(what, "bad", error.message, error.hint or CONDITIONAL_HINT)
    return Finding(what, "ok", f"of {WRITERS} concurrent writers, one won each time")
