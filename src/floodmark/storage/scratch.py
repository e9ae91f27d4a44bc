"""Staging areas: the folder of unfinished files that one write owns, and the removal of those a crash left."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from floodmark.storage.errors import StorageError
from floodmark.storage.store import Store

_PREFIX = "write-"
_UNLOCKED = "new-"
_LOCK = ".owner"
_LOCK_GRACE_SECONDS = 60  # a writer is between making its folder and locking it for an instant only
_FILE_GRACE_SECONDS = 24 * 3600


@contextmanager
def staging_area(store: Store) -> Iterator[Path]:
    """A fresh folder for unfinished files, gone afterwards whatever happens; leftovers of dead writers go too."""
    root = store.staging()
    _sweep(root)
    folder, owner = _new_area(root)
    try:
        yield folder
    finally:
        os.close(owner)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def explained(what: str, folder: Path) -> Iterator[None]:
    """Turn a failure to write an unfinished file into one that says what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what} could not be written to {folder}: {error.strerror or error}",
            hint="nothing was committed; make room on this disk (or check its permissions) and write again",
        ) from error


def _new_area(root: Path) -> tuple[Path, int]:
    """A folder and the lock by which others know that its writer lives; the system releases it when the process dies.

    The folder gets the name by which others look for abandoned ones only when the lock is held.
    """
    name = uuid.uuid4().hex
    unlocked, folder = root / f"{_UNLOCKED}{name}", root / f"{_PREFIX}{name}"
    with ExitStack() as undone, explained("unfinished files", root):
        undone.callback(shutil.rmtree, unlocked, ignore_errors=True)
        unlocked.mkdir()
        owner = os.open(unlocked / _LOCK, os.O_CREAT | os.O_RDWR)
        undone.callback(os.close, owner)
        fcntl.flock(owner, fcntl.LOCK_EX)
        unlocked.rename(folder)
        undone.pop_all()
    return folder, owner


def _sweep(root: Path) -> None:
    """Remove the folders of dead writers, and single files that no living writer can still need."""
    with suppress(OSError):  # somebody else may be removing it too
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
        return True  # being removed, or its writer was killed while it did that
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(owner)
    return True
