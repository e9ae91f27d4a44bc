"""The few file-system calls that a local store makes: a test can record, fail or crash any of them."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class FileInfo:
    """What a store wants to know of a name in a folder."""

    name: str
    is_folder: bool
    size: int
    modified: float


class FileSystem(Protocol):
    """File-system calls, one method each; every failure is the `OSError` that the system gave."""

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file that was not there (`FileExistsError` if it was) and write it, not yet durably."""
        ...

    def copy_new(self, source: Path, target: Path) -> None:
        """Copy a file's content to one that was not there, also from another file system, not yet durably."""
        ...

    def fsync_file(self, path: Path) -> None:
        """Make the file's content durable; its name is not until the folder is synced too."""
        ...

    def fsync_dir(self, path: Path) -> None:
        """Make the folder's entries durable: what was linked into it, renamed in it and removed from it."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; `FileExistsError` if that name is taken."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move a file to a name in one step, in place of what is there."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""
        ...

    def mkdir(self, path: Path) -> None:
        """Make a folder in one that is there; `FileExistsError` if the name is taken."""
        ...

    def utime(self, path: Path) -> None:
        """Set the time of the last change to now."""
        ...

    def read(self, path: Path) -> bytes:
        """A file's whole content."""
        ...

    def read_range(self, path: Path, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file, cut short at its end."""
        ...

    def stat(self, path: Path) -> FileInfo:
        """Size and age of a file or folder."""
        ...

    def scan(self, path: Path) -> list[FileInfo]:
        """Everything in a folder, in no order; names that vanish meanwhile are left out."""
        ...

    def free_bytes(self, path: Path) -> int:
        """How much more the file system that holds `path` takes."""
        ...

    def flock(self, path: Path) -> AbstractContextManager[None]:
        """Hold the lock of this file (made if missing), which a process loses when it dies."""
        ...


@dataclass(frozen=True)
class OsFileSystem:
    """The operating system's own file system."""

    def write_new(self, path: Path, data: bytes) -> None:
        with path.open("xb") as file:
            file.write(data)

    def copy_new(self, source: Path, target: Path) -> None:
        with source.open("rb") as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)

    def fsync_file(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def utime(self, path: Path) -> None:
        os.utime(path)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_range(self, path: Path, start: int, end: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, end - start))

    def stat(self, path: Path) -> FileInfo:
        return _info(path.name, path.stat())

    def scan(self, path: Path) -> list[FileInfo]:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    found.append(_info(entry.name, entry.stat()))
                except FileNotFoundError:
                    continue  # removed between the listing and the look at it
        return found

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    @contextmanager
    def flock(self, path: Path) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing would not do: a process forked meanwhile has a copy of the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _info(name: str, status: os.stat_result) -> FileInfo:
    return FileInfo(name, stat.S_ISDIR(status.st_mode), status.st_size, status.st_mtime)
