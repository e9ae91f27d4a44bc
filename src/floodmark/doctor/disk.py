"""The disk of a lake: room for bytes and for files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from floodmark.doctor.finding import Finding, State

LEAST_BYTES = 100 * 10**6
FEW_BYTES = 2 * 10**9
LEAST_FILES = 1_000
FEW_FILES = 50_000
LOW_PART = 0.05
"""Below this part of the whole it is said, too: large disks fill up in large steps."""


def check_disk(folder: Path, look: Callable[[Path], os.statvfs_result] = os.statvfs) -> Iterator[Finding]:
    """How much more the file system of a folder takes."""
    there = look(_nearest(folder))
    free, size = there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize
    state = _state(free, size, LEAST_BYTES, FEW_BYTES)
    remedy = "make room: `floodmark gc --dry-run` says what nobody needs, `floodmark purge` removes old records"
    yield Finding("disk space", state, f"{free / 1e9:,.1f} of {size / 1e9:,.1f} GB free", _if_not_ok(state, remedy))
    if there.f_files == 0:  # file systems that make them as they are needed
        yield Finding("inodes", "ok", "this file system does not count files")
        return
    state = _state(there.f_favail, there.f_files, LEAST_FILES, FEW_FILES)
    remedy = "every block and slice is a file: write in larger batches, run `floodmark gc`, or use another file system"
    yield Finding("inodes", state, f"{there.f_favail:,} of {there.f_files:,} free", _if_not_ok(state, remedy))


def _state(free: int, whole: int, least: int, few: int) -> State:
    if free < least:
        return "bad"
    return "warn" if free < few or free < LOW_PART * whole else "ok"


def _if_not_ok(state: State, remedy: str) -> str:
    return "" if state == "ok" else remedy


def _nearest(folder: Path) -> Path:
    """The folder, or the one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())
