"""Lakes on folders whose disk is quick, and one whose process ends at the nth change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.storage.local import LocalStore
from profiles import sample

World = TypeVar("World")


class Crash(BaseException):
    """The process ends here: no handler of errors sees it."""


class DyingFileSystem(HastyFileSystem):
    """Makes this many changes, then fails at each one, so that nothing can be tidied up after the crash."""

    def __init__(self, changes: int, error: Callable[[], BaseException] = Crash) -> None:
        self._left, self._error = changes, error
        self._lock = threading.Lock()

    @property
    def dead(self) -> bool:
        return self._left < 0

    def _change(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise self._error()

    def write_new(self, path: Path, data: bytes) -> None:
        self._change()
        super().write_new(path, data)

    def copy_new(self, source: Path, target: Path) -> None:
        self._change()
        super().copy_new(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._change()
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._change()
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._change()
        super().mkdir(path)


def open_lake(folder: Path, disk: Any = None, runtime: fm.Runtime | None = None) -> fm.Lake:
    """The lake in a folder, without waiting for the disk."""
    return fm.Lake(LocalStore(folder, HastyFileSystem() if disk is None else disk), runtime=runtime)


def after_faults(
    begin: Callable[[], World], act: Callable[[World, DyingFileSystem], object], error: Callable[[], BaseException]
) -> Iterator[tuple[World, DyingFileSystem]]:
    """Worlds in which an act was cut short by a disk that fails from the nth change on, and one in which it was not.

    `act` starts from a new world each time. A few values of n are tried, under `soak` each one.
    """
    world, counting = begin(), _Counting()
    act(world, counting)
    yield world, counting
    for changes in sample(range(counting.changes), 5):
        world, disk = begin(), DyingFileSystem(changes, error)
        with suppress(Crash, OSError, fm.FloodmarkError):
            act(world, disk)
        assert disk.dead
        yield world, disk


class _Counting(DyingFileSystem):
    """Never dies, and counts its changes."""

    def __init__(self) -> None:
        super().__init__(0)
        self._numbers = itertools.count(1)
        self.changes = 0

    @property
    def dead(self) -> bool:
        return False

    def _change(self) -> None:
        self.changes = next(self._numbers)
