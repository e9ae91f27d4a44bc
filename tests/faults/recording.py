"""A file system that remembers every change made through it, and ways to break its calls.

It tells files from their names, as a disk does: a file is a node, a folder maps names to nodes. What was
written and what was named become durable by different calls, so they are different operations.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.storage.file_system import OsFileSystem

ROOT = 0  # the node of the folder that is watched
CHANGES = ("write_new", "copy_new", "link", "rename", "unlink", "mkdir")


@dataclass(frozen=True)
class Write:
    """A file's content was set; durable by `FsyncFile` of the node."""

    node: int
    data: bytes
    path: str


@dataclass(frozen=True)
class Entries:
    """Names of one folder were changed in one step (None: removed); durable by `FsyncDir` of the folder."""

    folder: int
    changes: tuple[tuple[str, int | None], ...]
    path: str


@dataclass(frozen=True)
class FsyncFile:
    """What was written to the node is durable."""

    node: int
    path: str


@dataclass(frozen=True)
class FsyncDir:
    """The names in the folder are durable."""

    folder: int
    path: str


@dataclass(frozen=True)
class Mark:
    """Something was acknowledged to the caller."""

    name: str


Operation = Write | Entries | FsyncFile | FsyncDir | Mark


@dataclass(frozen=True)
class Recording:
    """What was on the disk at first, and what was done to it."""

    entries: dict[int, dict[str, int]]  # of each folder, at first
    contents: dict[int, bytes]  # of each file, at first
    operations: tuple[Operation, ...]


class RecordingFileSystem(OsFileSystem):
    """The real file system under one folder, with a record of every change to it.

    - What is in the folder at the start counts as durable.
    - A file written by others (pyarrow, say) is taken as written, but not durable, when it is first met.
    - fsync is recorded and not done: what would survive is worked out, so no disk needs to be waited for.
    - Lock files are not recorded: they are always empty and made when missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count(ROOT + 1)
        self._entries: dict[int, dict[str, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._inodes: dict[int, int] = {}
        self._operations: list[Operation] = []
        self._lock = threading.RLock()
        self._load(ROOT, root)
        self._first = ({n: dict(e) for n, e in self._entries.items()}, dict(self._contents))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a recording file system cannot go to another process")

    @property
    def recording(self) -> Recording:
        return Recording(*self._first, tuple(self._operations))

    def mark(self, name: str) -> None:
        """Note that something has been acknowledged: from here on it must survive every crash."""
        with self._lock:
            self._operations.append(Mark(name))

    # the calls that change something

    def write_new(self, path: Path, data: bytes) -> None:
        with self._lock:
            folder = self._meet(path.parent)
            super().write_new(path, data)
            self._add(folder, path, data)

    def copy_new(self, source: Path, target: Path) -> None:
        self.write_new(target, self.read(source))

    def overwrite(self, path: Path, data: bytes) -> None:
        """Write into a file as it lies there, which no store should do: for tests that show why."""
        with self._lock:
            node = self._meet(path)
            path.write_bytes(data)
            self._write(node, path, data)

    def fsync_file(self, path: Path) -> None:
        with self._lock:
            self._operations.append(FsyncFile(self._meet(path), self._name(path)))

    def fsync_dir(self, path: Path) -> None:
        with self._lock:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            folder = self._meet(path)
            for child in path.iterdir():
                if child.name not in self._entries[folder] and not child.name.startswith("."):
                    self._meet(child)  # made by others, and now as durable as the rest
            self._operations.append(FsyncDir(folder, self._name(path)))

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            node, folder = self._meet(source), self._meet(target.parent)
            super().link(source, target)
            self._change(folder, target, ((target.name, node),))

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            node, old, new = self._meet(source), self._meet(source.parent), self._meet(target.parent)
            super().rename(source, target)
            if old == new:
                self._change(new, target, ((source.name, None), (target.name, node)))
            else:
                self._change(new, target, ((target.name, node),))
                self._change(old, source, ((source.name, None),))

    def unlink(self, path: Path) -> None:
        with self._lock:
            super().unlink(path)
            self._change(self._meet(path.parent), path, ((path.name, None),))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            super().mkdir(path)
            self._meet(path)

    # keeping track

    def _meet(self, path: Path) -> int:
        """The node at a path, which is recorded as new or rewritten if others have made it so."""
        if path == self._root:
            return ROOT
        folder = self._meet(path.parent)
        node = self._entries[folder].get(path.name)
        if path.is_dir():
            return self._add(folder, path, None) if node is None else node
        inode, data = path.stat().st_ino, path.read_bytes()
        if node is None or self._inodes[node] != inode:
            return self._add(folder, path, data)
        if self._contents[node] != data:
            self._write(node, path, data)
        return node

    def _add(self, folder: int, path: Path, data: bytes | None) -> int:
        """Record a new file, or a new folder when there is no data."""
        node = next(self._numbers)
        self._inodes[node] = path.stat().st_ino
        self._change(folder, path, ((path.name, node),))
        if data is None:
            self._entries[node] = {}
        else:
            self._write(node, path, data)
        return node

    def _write(self, node: int, path: Path, data: bytes) -> None:
        self._contents[node] = data
        self._operations.append(Write(node, data, self._name(path)))

    def _change(self, folder: int, path: Path, changes: tuple[tuple[str, int | None], ...]) -> None:
        for name, node in changes:
            if node is None:
                self._entries[folder].pop(name, None)
            else:
                self._entries[folder][name] = node
        self._operations.append(Entries(folder, changes, self._name(path)))

    def _load(self, node: int, path: Path) -> None:
        self._inodes[node] = path.stat().st_ino
        if path.is_dir():
            self._entries[node] = {}
            for child in sorted(path.iterdir()):
                number = self._entries[node][child.name] = next(self._numbers)
                self._load(number, child)
        else:
            self._contents[node] = path.read_bytes()

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))


class HastyFileSystem(OsFileSystem):
    """The real file system without waiting for the disk: for work on a state that will not crash again."""

    def fsync_file(self, path: Path) -> None:
        """Not done."""

    def fsync_dir(self, path: Path) -> None:
        """Not done."""


class WatchedFileSystem(HastyFileSystem):
    """A file system that calls a function before each of its calls: to count them, to fail or to end."""

    def __init__(self, before: Callable[[int, str], None] = lambda number, name: None) -> None:
        self._before = before
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        real = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(real):
            return real

        def call(*args: Any) -> Any:
            self.calls.append(name)
            self._before(len(self.calls) - 1, name)
            return real(*args)

        return call

    @property
    def changes(self) -> int:
        """How many calls so far change something."""
        return sum(name in CHANGES for name in self.calls)


class Altered:
    """A file system with one of its calls taken out or made to fail."""

    def __init__(self, inner: Any, call: str, nth: int, error: OSError | None) -> None:
        self._inner, self._call, self._nth, self._error = inner, call, nth, error
        self._counter = itertools.count()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        return self._altered(real) if name == self._call else real

    def _altered(self, real: Any) -> Any:
        def call(*args: Any) -> Any:
            if next(self._counter) != self._nth:
                return real(*args)
            if self._error:
                raise self._error
            return None

        return call


def without(fs: Any, call: str, nth: int) -> Any:
    """The file system with the nth (from 0) call of this name left out, in fact and in the recording."""
    return Altered(fs, call, nth, None)


def failing(fs: Any, call: str, nth: int, code: int = errno.EIO) -> Any:
    """The file system with the nth (from 0) call of this name failing, and not done."""
    return Altered(fs, call, nth, OSError(code, os.strerror(code)))


def fsync_calls(recording: Recording, volatile: Iterable[str] = (".staging",)) -> list[tuple[str, int, str]]:
    """The fsync calls that had something to make durable, as (call, nth, path): for `without`."""
    counts = {"fsync_file": itertools.count(), "fsync_dir": itertools.count()}
    waiting: set[tuple[str, int]] = set()
    found = []
    for operation in recording.operations:
        match operation:
            case Write(node=node):
                waiting.add(("fsync_file", node))
            case Entries(folder=folder, changes=changes) if any(name not in volatile for name, _ in changes):
                waiting.add(("fsync_dir", folder))
            case FsyncFile(node=number, path=path) | FsyncDir(folder=number, path=path):
                call = "fsync_file" if isinstance(operation, FsyncFile) else "fsync_dir"
                nth = next(counts[call])
                if (call, number) in waiting:
                    waiting.discard((call, number))
                    found.append((call, nth, path))
    return found
