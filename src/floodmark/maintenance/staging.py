"""What killed processes leave in a lake on disk: unfinished files of writers, and folders of dropped datasets.

For a bucket, unfinished files are in the temporary folder of the machine, not in the lake.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.storage.local import is_lock, remove_empty_folders
from floodmark.storage.store import ObjectInfo, Store

DAY_SECONDS = 24 * 3600.0
"""How long an unfinished file stays after the last write to it."""

_FOLDER = ".staging"
_DATASETS = "datasets"
_OWNER = ".owner"


def find(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """Entries that were not written to for a day and that no running writer has locked; a folder is one entry."""
    root = _root(store)
    if root is None:
        return ()
    oldest = now - DAY_SECONDS
    found = ((entry, _inspect(root, entry)) for entry in _entries(root))
    return tuple(info for entry, info in found if info is not None and info.modified < oldest and not is_locked(entry))


def collect(store: Store, now: float) -> tuple[ObjectInfo, ...]:
    """Remove these entries, and return those that were removed."""
    root = _root(store)
    return () if root is None else tuple(_remove(root, find(store, now)))


def is_locked(entry: Path) -> bool:
    """Whether the writer of a folder still runs: it holds a lock, which the system releases when the process ends."""
    try:
        descriptor = os.open(entry / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
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
    return None if inside is None else inside.parent


def _entries(root: Path) -> Iterator[Path]:
    """Unfinished files and folders of writers, and folders of datasets without objects."""
    unfinished, datasets = root / _FOLDER, root / _DATASETS
    if unfinished.is_dir():
        yield from sorted(unfinished.iterdir())
    if datasets.is_dir():
        yield from (folder for folder in sorted(datasets.iterdir()) if _has_only_locks(folder))


def _has_only_locks(folder: Path) -> bool:
    if folder.is_symlink() or (folder / "refs" / "head").exists():
        return False
    return all(path.is_dir() or is_lock(path.name) for path in folder.rglob("*"))


def _inspect(root: Path, entry: Path) -> ObjectInfo | None:
    """The size of an entry, and when anything in it was last written; None if it was removed meanwhile."""
    try:
        inside = [path.lstat() for path in (entry, *(entry.rglob("*") if _is_folder(entry) else ()))]
    except FileNotFoundError:
        return None
    size = sum(status.st_size for status in (inside[1:] if _is_folder(entry) else inside))
    return ObjectInfo(str(entry.relative_to(root)), size, max(status.st_mtime for status in inside))


def _remove(root: Path, found: tuple[ObjectInfo, ...]) -> Iterator[ObjectInfo]:
    for info in found:
        entry = root / info.key
        if entry.parent.name == _DATASETS:
            remove_empty_folders(entry)
        elif _is_folder(entry):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                entry.unlink()
        if not os.path.lexists(entry):  # without the permission to remove it, it is still there
            yield info


def _is_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.is_symlink()
