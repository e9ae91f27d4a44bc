"""The file-system calls of a local store. Tests can record, fail or crash each of them."""

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
    """One entry of a folder: its name, kind, size and time."""

    name: str
    is_folder: bool
    size: int
    modified: float
    is_link: bool = False


class FileSystem(Protocol):
    """File-system calls, one method each. Failures raise the `OSError` of the system."""

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file (`FileExistsError` if it exists) and write it, not yet durably."""
        ...

    def copy_new(self, source: Path, target: Path) -> None:
        """Copy a file to a new one, also from another file system, not yet durably."""
        ...

    def fsync_file(self, path: Path) -> None:
        """Make the content of a file durable. Its name is durable only when the folder is synced too."""
        ...

    def fsync_dir(self, path: Path) -> None:
        """Make the entries of a folder durable: links, renames and removals."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; `FileExistsError` if that name exists."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move a file to a name atomically, and replace the file there."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove the name of a file."""
        ...

    def mkdir(self, path: Path) -> None:
        """Create a folder in an existing folder; `FileExistsError` if the name exists."""
        ...

    def utime(self, path: Path) -> None:
        """Set the modification time to now."""
        ...

    def read(self, path: Path) -> bytes:
        """The whole content of a file."""
        ...

    def read_range(self, path: Path, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file, fewer if the file ends before."""
        ...

    def stat(self, path: Path) -> FileInfo:
        """Size and time of a file or folder."""
        ...

    def scan(self, path: Path) -> list[FileInfo]:
        """All entries of a folder, in no order, links as such. Entries that are removed meanwhile are skipped."""
        ...

    def free_bytes(self, path: Path) -> int:
        """The free space of the file system of `path`."""
        ...

    def flock(self, path: Path) -> AbstractContextManager[None]:
        """Hold the lock of this file (created if missing). A process loses its locks when it ends."""
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
        infos = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    infos.append(_info(entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue  # removed after the listing
        return infos

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    @contextmanager
    def flock(self, path: Path) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing is not enough: a process that was forked meanwhile has a copy of the descriptor.
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
    mode = status.st_mode
    return FileInfo(name, stat.S_ISDIR(mode), status.st_size, status.st_mtime, stat.S_ISLNK(mode))
