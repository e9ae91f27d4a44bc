"""A file system whose process ends at the nth change it makes."""

from __future__ import annotations

import threading
from pathlib import Path

from faults.recording import HastyFileSystem


class Crash(BaseException):
    """The process ends here: no handler of errors gets to see it."""


class DyingFileSystem(HastyFileSystem):
    """Makes so many changes, and from then on none: whatever tidies up after the crash does so in vain."""

    def __init__(self, changes: int) -> None:
        self._left = changes
        self._lock = threading.Lock()

    @property
    def dead(self) -> bool:
        return self._left < 0

    def _change(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise Crash

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
