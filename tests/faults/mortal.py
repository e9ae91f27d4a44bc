"""Processes that end by SIGKILL at a decided change of the disk.

They are forked from a server that has imported everything once, so a process costs a few milliseconds.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver as forkserver
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from faults.recording import CHANGES, HastyFileSystem, WatchedFileSystem
from waiting import PATIENCE, wait_until

NEVER = 10**9
PRELOADED = [
    "faults.writers",
    "faults.keyed_writers",
    "faults.timeline_writers",
    "faults.transform_runs",
    "faults.backfill_runs",
]

context = multiprocessing.get_context("forkserver")


class MortalFileSystem(WatchedFileSystem):
    """A file system whose process is killed before its nth change; that of its workers is an ordinary one."""

    def __init__(self, nth: int) -> None:
        super().__init__(self._count)
        self._left, self._lock = nth, threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return HastyFileSystem, ()

    def _count(self, number: int, name: str) -> None:
        if name in CHANGES:
            with self._lock:
                self._left -= 1
                if self._left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def serving() -> Iterator[None]:
    """Have a server that finds the modules of the tests; it keeps the environment in which it starts."""
    tests = str(Path(__file__).parents[1])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])):
        context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
        yield


@contextmanager
def started(function: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that calls a function of a module, in a session of its own; it is killed at the end."""
    with serving():
        process = context.Process(target=_in_a_session, args=(function, *arguments))
        process.start()
    try:
        yield process
    finally:
        process.kill()
        ended(process)
        process.close()


def _in_a_session(function: Callable[..., None], *arguments: Any) -> None:
    os.setsid()
    function(*arguments)


def ended(process: BaseProcess) -> int:
    """Wait for the process and its workers; its exit code."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "the process hangs"
    wait_until(lambda: not has_workers(process.pid))
    return process.exitcode


def has_workers(driver: int | None) -> bool:
    return any("floodmark.engine.worker" in words and words[-1] == str(driver) for words in _commands())


def _commands() -> Iterator[list[str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_text(errors="replace").rstrip("\0").split("\0")


def killed(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process that is killed in the middle."""
    with started(function, *arguments) as process:
        assert ended(process) == -signal.SIGKILL


def reaches(process: BaseProcess, true: Callable[[], bool]) -> None:
    """Wait until something is true that the process brings about."""
    wait_until(lambda: true() or process.exitcode is not None)
    assert true(), f"the process ended with {process.exitcode}"


class Log:
    """Numbers that a process has written down, which survive its end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, number: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{number}\n".encode())
        os.close(descriptor)

    def numbers(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []
