"""Where a run can crash: after each change that it makes to the file system, each time in a copy of the same lake."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.storage.local import LocalStore
from profiles import sample
from transforms.crashing import Crash, DyingFileSystem

ENDLESS = 1 << 30


class CountingFileSystem(DyingFileSystem):
    """Counts the changes and never dies."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)

    @property
    def changes(self) -> int:
        return ENDLESS - self._left


def crashed_lakes(prepared: Path, run: Callable[[fm.Lake], Any], count: int) -> Iterator[fm.Lake]:
    """Copies of a prepared lake in which a run has crashed, each at another change; `soak` has them all."""
    counting = CountingFileSystem()
    run(fm.Lake(LocalStore(_copy(prepared, "whole"), counting)))
    for changes in sample(range(counting.changes), count):
        folder = _copy(prepared, str(changes))
        try:
            run(fm.Lake(LocalStore(folder, DyingFileSystem(changes))))
        except Crash:
            yield fm.Lake(LocalStore(folder, HastyFileSystem()))
        else:
            raise AssertionError(f"no crash at change {changes} of {counting.changes}")
        shutil.rmtree(folder)


def _copy(prepared: Path, name: str) -> Path:
    return Path(shutil.copytree(prepared, prepared.parent / f"{prepared.name}-{name}"))
