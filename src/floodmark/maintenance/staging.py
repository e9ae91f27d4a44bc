"""Unfinished files of killed writers in a lake on disk. For a bucket they are in the temporary folder, not the lake."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.storage.store import ObjectInfo, Store

DAY_SECONDS = 24 * 3600.0
"""How long an unfinished file stays after the last write to it."""

_FOLDER = ".staging"
_OWNER = ".owner"


def find(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """Entries that were not written to for a day and that no running writer has locked; a folder is one entry."""
    root = _root(store)
    if root is None or not root.is_dir():
        return ()
    entries = ((entry, _inspect(entry)) for entry in sorted(root.iterdir()))
    oldest = now - DAY_SECONDS
    return tuple(
        info for entry, info in entries if info is not None and info.modified < oldest and not is_locked(entry)
    )


def collect(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """Remove these entries, and return those that were removed."""
    root = _root(store)
    return () if root is None else tuple(_remove(root, find(store, now)))


def is_locked(entry: Path) -> bool:
    """Whether the writer of a folder still runs: it holds a lock, which the system releases when the process ends."""
    try:
        descriptor = os.open(entry / _OWNER, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _root(store: Store) -> Path | None:
    inside = store.local_path("names")
    return None if inside is None else inside.parent / _FOLDER


def _inspect(entry: Path) -> ObjectInfo | None:
    """The size of an entry, and when anything in it was last written; None if it was removed meanwhile."""
    try:
        inside = [path.stat() for path in (entry, *(entry.rglob("*") if entry.is_dir() else ()))]
    except FileNotFoundError:
        return None
    size = sum(status.st_size for status in (inside[1:] if entry.is_dir() else inside))
    return ObjectInfo(f"{_FOLDER}/{entry.name}", size, max(status.st_mtime for status in inside))


def _remove(root: Path, found: tuple[ObjectInfo, ...]) -> Iterator[ObjectInfo]:
    for info in found:
        entry = root / Path(info.key).name
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                entry.unlink()
        if not entry.exists():  # without the permission to remove it, it is still there
            yield info
