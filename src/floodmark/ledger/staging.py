"""Staging areas: the folder of unfinished files that one write owns, and the removal of those a crash left."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from floodmark.storage.store import Store

_PREFIX = "write-"
_LOCK = ".owner"
_FILE_GRACE_SECONDS = 24 * 3600


@contextmanager
def staging_area(store: Store) -> Iterator[Path]:
    """A fresh folder for unfinished files, gone afterwards whatever happens; leftovers of dead writers go too."""
    root = store.staging()
    _sweep(root)
    folder = root / f"{_PREFIX}{uuid.uuid4().hex}"
    folder.mkdir()
    # The lock is how others know that this write is alive; the system releases it when the process dies.
    owner = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(owner)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove the folders of dead writers, and single files that no living writer can still need."""
    for entry in list(root.iterdir()):
        with suppress(OSError):  # somebody else may be removing it too
            if entry.name.startswith(_PREFIX) and entry.is_dir():
                if _is_abandoned(entry):
                    shutil.rmtree(entry, ignore_errors=True)
            elif entry.is_file() and time.time() - entry.stat().st_mtime > _FILE_GRACE_SECONDS:
                entry.unlink()


def _is_abandoned(folder: Path) -> bool:
    try:
        owner = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        # Between mkdir and the lock there is an instant; only an old folder without one is dead.
        return time.time() - folder.stat().st_mtime > 60
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(owner)
    return True
