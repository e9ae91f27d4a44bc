"""Staging areas: a folder for the unfinished files of one write, and the removal of folders that a crash left.

Also the files in which a run keeps rows sorted by part.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from floodmark.errors import StorageError
from floodmark.storage.store import Store

_PREFIX = "write-"
_UNLOCKED = "new-"
_LOCK = ".owner"
_LOCK_GRACE_SECONDS = 60  # a writer locks its folder immediately after creating it
_FILE_GRACE_SECONDS = 24 * 3600


@contextmanager
def staging_area(store: Store) -> Iterator[Path]:
    """A new folder for unfinished files, removed at the end. Also removes folders of writers that crashed."""
    root = store.staging()
    _sweep(root)
    folder, owner = _new_area(root)
    try:
        yield folder
    finally:
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
            hint="Free disk space or check the permissions of the folder, then write again. Nothing was committed.",
        ) from error


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
        owner = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True  # it is being removed, or its writer was killed during the removal
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(owner)
    return True


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
