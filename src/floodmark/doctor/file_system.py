"""What commits in a folder stand on: files that can be written, synced, linked and renamed, and locks that hold."""

from __future__ import annotations

import errno
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.doctor.finding import Finding
from floodmark.storage.files import FileSystem, OsFileSystem

_TRY = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""
_HELD = 3
_OTHER = "keep the lake on a file system that has hard links, flock and fsync of folders (ext4, xfs, NFS 4 with locks)"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def lock_is_held(path: Path) -> bool:
    """Whether another process finds the lock of a file taken: locks of one process may not hinder itself."""
    tried = subprocess.run([sys.executable, "-I", "-c", _TRY, str(path)], capture_output=True, timeout=60, check=False)
    return tried.returncode == _HELD


def check_file_system(
    folder: Path, fs: FileSystem | None = None, is_held: Callable[[Path], bool] = lock_is_held
) -> Iterator[Finding]:
    """Do in a folder, with files of its own, what a commit does; they are gone afterwards."""
    fs = OsFileSystem() if fs is None else fs
    first, second = (folder / f"doctor-{uuid.uuid4().hex}" for _ in range(2))
    try:
        yield _did(fs, first, second)
        yield _locked(fs, first, is_held)
    finally:
        for path in (first, second):
            with suppress(OSError):
                fs.unlink(path)


def _did(fs: FileSystem, first: Path, second: Path) -> Finding:
    what = "files"
    steps: list[tuple[str, Callable[[], None]]] = [
        ("write", lambda: fs.write_new(first, b"floodmark")),
        ("fsync", lambda: fs.fsync_file(first)),
        ("link", lambda: fs.link(first, second)),
        ("rename", lambda: fs.rename(second, first)),
        ("fsync of folders", lambda: fs.fsync_dir(first.parent)),
    ]
    for step, act in steps:
        try:
            act()
        except OSError as error:
            return Finding(what, "bad", f"{step} does not work in {first.parent}: {error}", _remedy(error))
    return Finding(what, "ok", f"{', '.join(step for step, _ in steps)} work")


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "make room on the disk, or have the quota raised"
    return "check who owns the folder, and that this user may write there" if error.errno in _REFUSED else _OTHER


def _locked(fs: FileSystem, path: Path, is_held: Callable[[Path], bool]) -> Finding:
    what = "locks"
    try:
        with fs.flock(path):
            held = is_held(path)
    except OSError as error:
        return Finding(what, "bad", f"flock does not work in {path.parent}: {error}", _remedy(error))
    if not held:
        return Finding(what, "bad", f"a lock in {path.parent} keeps nobody out: two writers could both commit", _OTHER)
    return Finding(what, "ok", "another process finds a lock taken")
