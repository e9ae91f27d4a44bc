"""A view that cannot be declared anew, because the disk is full, leaves nothing of what was to take its place."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from floodmark.errors import StorageError
from floodmark.storage.file_system import OsFileSystem
from views.remade_worlds import COUNTS, FINER, datasets, make_lake, open_lake, without_spark


class FullAfter(OsFileSystem):
    """A disk that takes so many files and folders, and no more; what is there can be read and removed."""

    def __init__(self, room: int) -> None:
        self.room: Iterator[int]
        object.__setattr__(self, "room", iter(range(room)))

    def write_new(self, path: Path, data: bytes) -> None:
        self._take()
        super().write_new(path, data)

    def mkdir(self, path: Path) -> None:
        self._take()
        super().mkdir(path)

    def flock(self, path: Path) -> AbstractContextManager[None]:
        if not path.exists():
            self._take()
        return super().flock(path)

    def _take(self) -> None:
        if next(self.room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_declare_that_fails_anywhere_leaves_no_successor(tmp_path):
    with without_spark():
        lake = make_lake(tmp_path / "lake")
        before = datasets(lake)
        for room in itertools.count():
            try:
                open_lake(tmp_path / "lake", FullAfter(room)).view("daily", sql=FINER)
            except StorageError:
                assert datasets(lake) == before
                assert lake.view("daily").definition.sql == COUNTS
            else:
                break
        assert room > 3
        assert len(datasets(lake)) == len(before) + 1
