"""Staging areas: a folder for the unfinished files of one write, and the removal of folders that a crash left."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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
