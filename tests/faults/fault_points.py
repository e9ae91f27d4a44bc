"""Faults at every call of a file system, counted in one sequence: also those of Python's own file functions."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.recording import HastyFileSystem

FILLING = {"write_new", "copy_new", "mkdir", "link", "rename", "fsync_file", "fsync_dir", "flock", "open for writing"}
"""Calls that may need space on the disk."""

REMOVAL = "removal of a folder"
"""Many calls in one: Python announces it before it handles errors. Each call in it may fail, but not the whole."""

_AUDITED = {
    "os.mkdir": "mkdir",
    "os.rename": "rename",
    "os.link": "link",
    "os.remove": "unlink",
    "os.rmdir": "unlink",
    "os.scandir": "scan",
    "os.listdir": "scan",
    "os.truncate": "open for writing",
    "shutil.rmtree": REMOVAL,
}


class Killed(BaseException):
    """The process is no more: no handler of errors sees it, and nothing is done after it."""


@dataclass
class FaultPoint:
    """What happens at the nth call: `act` gets the name of the call, and may raise."""

    nth: int
    act: Callable[[str], None]
    lasts: bool  # it happens at each call from the nth on


def kill(_: str) -> None:
    raise Killed


def fail_once(name: str) -> None:
    if name != REMOVAL:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def is_full(name: str) -> None:
    if name in FILLING:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class DisturbedDisk(HastyFileSystem):
    """A file system on which something happens at the nth call.

    Calls of Python's own file functions below `folders` count too, while `disturbing`. Files that were not synced are
    known, so that a loss of power can tear them.
    """

    def __init__(self, folders: tuple[Path, ...], point: FaultPoint | None = None) -> None:
        self._folders = tuple(f"{folder}{os.sep}" for folder in folders)
        self._point = point
        self._inside = threading.local()
        self._lock = threading.Lock()
        self._synced: set[int] = set()
        self._written: set[Path] = set()
        self.calls: list[str] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return HastyFileSystem, ()

    @contextmanager
    def disturbing(self) -> Iterator[None]:
        _install()
        _disks.append(self)
        try:
            yield
        finally:
            _disks.remove(self)

    def tear(self) -> None:
        """Lose the second half of every file that was not synced, as a loss of power may."""
        for path in self._written:
            if path.is_file() and path.stat().st_ino not in self._synced:
                os.truncate(path, path.stat().st_size // 2)

    def count(self, name: str) -> None:
        with self._lock:
            self.calls.append(name)
            number = len(self.calls) - 1
        point = self._point
        if point is not None and (number == point.nth or (point.lasts and number > point.nth)):
            point.act(name)

    def audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count a call of Python's own file functions, unless it belongs to one of ours."""
        if getattr(self._inside, "call", False):
            return
        path = arguments[0] if arguments else None
        if not isinstance(path, str | bytes | os.PathLike) or not os.fsdecode(path).startswith(self._folders):
            return
        if event == "open":
            flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
            self.count("open for writing" if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else "open")
        else:
            self.count(_AUDITED[event])

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self.count(name)
        self._inside.call = True
        try:
            yield
        finally:
            self._inside.call = False

    def write_new(self, path: Path, data: bytes) -> None:
        with self._counted("write_new"):
            super().write_new(path, data)
            self._written.add(path)

    def copy_new(self, source: Path, target: Path) -> None:
        with self._counted("copy_new"):
            super().copy_new(source, target)
            self._written.add(target)

    def fsync_file(self, path: Path) -> None:
        with self._counted("fsync_file"):
            self._synced.add(path.stat().st_ino)

    def fsync_dir(self, path: Path) -> None:
        self.count("fsync_dir")

    def link(self, source: Path, target: Path) -> None:
        with self._counted("link"):
            super().link(source, target)
            self._written.add(target)

    def rename(self, source: Path, target: Path) -> None:
        with self._counted("rename"):
            super().rename(source, target)
            self._written.add(target)

    def unlink(self, path: Path) -> None:
        with self._counted("unlink"):
            super().unlink(path)

    def mkdir(self, path: Path) -> None:
        with self._counted("mkdir"):
            super().mkdir(path)

    def utime(self, path: Path) -> None:
        with self._counted("utime"):
            super().utime(path)

    def read(self, path: Path) -> bytes:
        with self._counted("read"):
            return super().read(path)

    def read_range(self, path: Path, start: int, end: int) -> bytes:
        with self._counted("read_range"):
            return super().read_range(path, start, end)

    def stat(self, path: Path) -> Any:
        with self._counted("stat"):
            return super().stat(path)

    def scan(self, path: Path) -> Any:
        with self._counted("scan"):
            return super().scan(path)

    def flock(self, path: Path) -> AbstractContextManager[None]:
        with self._counted("flock"):
            return self._locked(path)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        inside = getattr(self._inside, "call", False)
        self._inside.call = True
        try:
            lock = super().flock(path)
            lock.__enter__()
        finally:
            self._inside.call = inside
        try:
            yield
        finally:
            lock.__exit__(None, None, None)  # a process loses its locks when it ends
        self.count("unlock")


_disks: list[DisturbedDisk] = []
_installed = False


def _install() -> None:
    """Hooks cannot be removed. This one does nothing unless a disk is disturbed."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _disks and (event == "open" or event in _AUDITED):
        for disk in _disks:
            disk.audited(event, arguments)
