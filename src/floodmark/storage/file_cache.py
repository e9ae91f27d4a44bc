"""Memory-mapped stored files, local copies of remote ones, and the cache folder of the user."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floodmark.storage.store import Store

SMALL_BYTES = 1 << 20
"""Remote files up to this size are read into memory. Larger files are copied to the user's cache."""

KEEP_COPIES_SECONDS = 30 * 24 * 3600.0
"""A copy is removed if it was not opened for this many seconds."""

_log = logging.getLogger(__name__)


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of the user for Floodmark. It may not exist yet."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires to ignore relative paths.
    if base and Path(base).is_absolute():
        return Path(base) / "floodmark"
    home = environ.get("HOME") or str(Path("~").expanduser())
    return Path(home) / ".cache" / "floodmark"


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically: other processes see all of the content or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_object(store: Store, key: str, size: int, kind: str, check: Callable[[memoryview], None]) -> memoryview:
    """The bytes of an immutable object: memory-mapped, or in memory if the object is small and remote.

    `check` gets the bytes of a remote object after the download, before they are used or copied. The copy is in the
    folder `kind` of the user's cache, under the last segment of the key.
    """
    path = store.local_path(key)
    if path is None and size > SMALL_BYTES:
        path = _copy(store, key, size, kind, check)
    return _fetch(store, key, check) if path is None else map_file(path)


def map_file(path: Path) -> memoryview:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def drop_copy(store: Store, key: str, kind: str) -> bool:
    """Remove the local copy of a remote object; True if there was one."""
    copy = _copy_path(key, kind)
    if store.local_path(key) is not None or not copy.exists():
        return False
    copy.unlink(missing_ok=True)
    return True


def _fetch(store: Store, key: str, check: Callable[[memoryview], None]) -> memoryview:
    data = memoryview(store.get(key))
    check(data)
    return data


def _copy(store: Store, key: str, size: int, kind: str, check: Callable[[memoryview], None]) -> Path | None:
    """The copy of a remote object in the user's cache, created if missing; None if that fails."""
    copy = _copy_path(key, kind)
    try:
        if copy.exists() and copy.stat().st_size == size:
            os.utime(copy)
        else:
            _remove_old_copies(copy.parent)
            replace_file(copy, bytes(_fetch(store, key, check)))
    except OSError as error:
        _log.warning("could not copy %s to %s: %s", copy.name, copy.parent, error)
        return None
    return copy


def _copy_path(key: str, kind: str) -> Path:
    return user_cache() / kind / key.rpartition("/")[2]


def _remove_old_copies(folder: Path) -> None:
    if folder.is_dir():
        for copy in folder.iterdir():
            if time.time() - copy.stat().st_mtime > KEEP_COPIES_SECONDS:
                copy.unlink(missing_ok=True)
