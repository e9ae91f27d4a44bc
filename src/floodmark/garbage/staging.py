"""Unfinished files that killed writers left in a folder; a bucket has none, since they lie in a temporary folder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.storage.store import ObjectInfo, Store

DAY_SECONDS = 24 * 3600.0
"""How long what is unfinished stays: longer than anybody writes to one file without adding to it."""

_FOLDER = ".staging"
_OWNER = ".owner"


def find(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """What was not touched for a day and no living writer holds; a folder counts as one."""
    root = _root(store)
    if root is None or not root.is_dir():
        return ()
    entries = ((entry, _looked_at(entry)) for entry in sorted(root.iterdir()))
    oldest = now - DAY_SECONDS
    return tuple(info for entry, info in entries if info is not None and info.modified < oldest and not is_held(entry))


def collect(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """Remove it; says what went."""
    root = _root(store)
    return () if root is None else tuple(_removed(root, find(store, now)))


def is_held(entry: Path) -> bool:
    """Whether the writer of a folder lives: it holds a lock there, which the system takes from the dead."""
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


def _looked_at(entry: Path) -> ObjectInfo | None:
    """Its size, and when anything in it was last written; None when it vanished meanwhile."""
    try:
        inside = [path.stat() for path in (entry, *(entry.rglob("*") if entry.is_dir() else ()))]
    except FileNotFoundError:
        return None
    size = sum(status.st_size for status in (inside[1:] if entry.is_dir() else inside))
    return ObjectInfo(f"{_FOLDER}/{entry.name}", size, max(status.st_mtime for status in inside))


def _removed(root: Path, found: tuple[ObjectInfo, ...]) -> Iterator[ObjectInfo]:
    for info in found:
        entry = root / Path(info.key).name
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                entry.unlink()
        if not entry.exists():  # who lacks the right to remove it is not told that it went
            yield info
