"""Staging areas: a folder for the unfinished files of one write, and the removal of folders that a crash left.

Also private folders in the temporary folder of the machine, and the files in which a run keeps rows sorted by part.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from floodmark.errors import StorageError
from floodmark.storage.store import Store

_PREFIX = "write-"
_UNLOCKED = "new-"
_LOCK = ".owner"
_LOCK_GRACE_SECONDS = 60  # a writer locks its folder immediately after creating it
_FILE_GRACE_SECONDS = 24 * 3600
_DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ESTALE)


@contextmanager
def staging_area(store: Store) -> Iterator[Path]:
    """A new folder for unfinished files, removed at the end. Also removes folders of writers that crashed."""
    root = store.staging()
    _sweep(root)
    folder, owner = _new_area(root)
    try:
        with explain_disk_errors(root):
            yield folder
    finally:
        with suppress(OSError):  # the write is done
            os.close(owner)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def explain_write_errors(what: str, folder: Path) -> Iterator[None]:
    """Raise a failed write of an unfinished file as `StorageError` with a hint."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Could not write {what} to {folder}: {error.strerror or error}.",
            hint=f"Free disk space in {folder} or check the permissions of the folder, then try again. Nothing was "
            "committed.",
            errno=error.errno,
        ) from error


@contextmanager
def explain_disk_errors(place: Path | None = None) -> Iterator[None]:
    """Raise the failure of a disk as `StorageError` with a hint. `place` is where this code writes, if not only in the
    temporary folder.

    Other errors stay as they are: they may come from the code or the data of the user.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FAILURES or isinstance(error, ConnectionError):
            raise
        folders = [str(folder) for folder in (place, _temporary_root()) if folder is not None]
        path = error.filename if isinstance(error.filename, str) else " or ".join(folders)
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"The disk failed at {path}: {error.strerror or error}.",
            hint=f"Free disk space in {' and '.join(folders)}, then try again."
            if is_full
            else "Check the disk and the limits of this process, then try again.",
            errno=error.errno,
        ) from error


def _temporary_root() -> Path | None:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder is usable
        return None


def _new_area(root: Path) -> tuple[Path, int]:
    """A new folder, and its lock, which shows that its writer is running. The system releases it when the process ends.

    The folder gets its final name only after it is locked, because other writers look for abandoned folders by name.
    """
    name = uuid.uuid4().hex
    unlocked, folder = root / f"{_UNLOCKED}{name}", root / f"{_PREFIX}{name}"
    with ExitStack() as cleanup, explain_write_errors("unfinished files", root):
        cleanup.callback(shutil.rmtree, unlocked, ignore_errors=True)
        unlocked.mkdir()
        owner = os.open(unlocked / _LOCK, os.O_CREAT | os.O_RDWR)
        cleanup.callback(os.close, owner)
        fcntl.flock(owner, fcntl.LOCK_EX)
        unlocked.rename(folder)
        cleanup.pop_all()
    return folder, owner


def _sweep(root: Path) -> None:
    """Remove the folders of writers that crashed, and single files that are too old to be in use."""
    with suppress(OSError):  # another process may remove it at the same time
        for entry in list(root.iterdir()):
            _remove_abandoned(entry)


def _remove_abandoned(entry: Path) -> None:
    with suppress(OSError):
        age = time.time() - entry.stat().st_mtime
        if entry.name.startswith(_PREFIX) and entry.is_dir():
            if _is_abandoned(entry):
                shutil.rmtree(entry, ignore_errors=True)
        elif entry.name.startswith(_UNLOCKED) and entry.is_dir():
            if age > _LOCK_GRACE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        elif entry.is_file() and age > _FILE_GRACE_SECONDS:
            entry.unlink()


def _is_abandoned(folder: Path) -> bool:
    try:
        return not _is_locked(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True  # it is being removed, or its writer was killed during the removal


def _is_locked(path: Path, flags: int) -> bool:
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# Temporary folders of this machine

_TEMPORARY = "floodmark-tmp-"
_TEMPORARY_NAME = re.compile(_TEMPORARY + "[a-z0-9_]{8}")


class TemporaryFolder:
    """A private folder in the temporary folder of this machine.

    It is removed by `remove`, with this object, or when the process ends. A killed process leaves its folders; the next
    new folder of this user removes them.
    """

    def __init__(self) -> None:
        with explain_write_errors("temporary files", Path(os.environ.get("TMPDIR", "the temporary folder"))):
            root = Path(tempfile.gettempdir())
        with explain_write_errors("temporary files", root):
            _sweep_temporary(root)
            self.path = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=root))
            owner = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._end = weakref.finalize(self, _remove_temporary, self.path, owner, os.getpid())
            fcntl.flock(owner, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and all files in it."""
        self._end()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove_temporary(path: Path, owner: int, process: int) -> None:
    if os.getpid() == process:  # a forked process has a copy of the object
        os.close(owner)
        shutil.rmtree(path, ignore_errors=True)


def _sweep_temporary(root: Path) -> None:
    """Remove the temporary folders of this user whose processes were killed."""
    youngest = time.time() - _LOCK_GRACE_SECONDS
    with suppress(OSError):
        entries = [Path(entry) for entry in os.scandir(root) if _TEMPORARY_NAME.fullmatch(entry.name)]
        for entry in entries:
            with suppress(OSError):  # another process may remove it at the same time
                status = entry.lstat()
                is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
                if is_ours and status.st_mtime < youngest and not _is_locked(entry, os.O_RDONLY | os.O_DIRECTORY):
                    shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class SortedFile:
    """A file of rows sorted by part, with one Arrow batch for each part that has rows: parts are read one by one."""

    path: str  # a key in the store, or a local path without a store
    store: Store | None
    rows: tuple[int, ...]  # by part
    size: int

    def read(self, low: int, high: int) -> pa.Table:
        """The rows of the parts [low, high)."""
        source = pa.memory_map(self.path) if self.store is None else self.store.open(self.path)
        reader = pa.ipc.open_file(source)
        first = sum(1 for n in self.rows[:low] if n)
        count = sum(1 for n in self.rows[low:high] if n)
        return pa.Table.from_batches([reader.get_batch(i) for i in range(first, first + count)], reader.schema)

    def read_all(self) -> pa.Table:
        return self.read(0, len(self.rows))


def write_sorted_file(table: pa.Table, rows: Sequence[int], path: Path, what: str) -> SortedFile:
    """Write a table that is sorted by part; `rows` has the number of rows of each part."""
    whole = table.combine_chunks()
    with (
        explain_write_errors(what, path.parent),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        at = 0
        for count in rows:
            if count:
                [batch] = whole.slice(at, count).combine_chunks().to_batches()
                writer.write_batch(batch)
                at += count
    return SortedFile(str(path), None, tuple(rows), path.stat().st_size)


def upload(file: SortedFile, store: Store, key: str) -> SortedFile:
    """Move a local file into a store, from which tasks on other machines read it."""
    path = Path(file.path)
    try:
        store.put_file(key, path)
    finally:
        path.unlink(missing_ok=True)
    return SortedFile(key, store, file.rows, file.size)


class MemoryFolder:
    """Files in memory, by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def __truediv__(self, name: str) -> MemoryFile:
        return MemoryFile(self, name)


@dataclass(frozen=True)
class MemoryFile:
    """A file in memory, with the methods of a path that writers of index files need."""

    folder: MemoryFolder
    name: str

    @contextmanager
    def open(self, _: Literal["wb"]) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        self.write_bytes(content.getvalue())

    def write_bytes(self, data: bytes) -> None:
        self.folder.files[self.name] = data

    def read_bytes(self) -> bytes:
        return self.folder.files[self.name]

    def exists(self) -> bool:
        return self.name in self.folder.files


Folder: TypeAlias = Path | MemoryFolder


def rename_in(folder: Folder, old: str, new: str) -> None:
    """Give a file in a folder another name."""
    if isinstance(folder, MemoryFolder):
        folder.files[new] = folder.files.pop(old)
    else:
        (folder / old).rename(folder / new)
