"""Where the files of the key index are: in the dataset's store, in a local copy of it, or aside when it takes none."""

from __future__ import annotations

import logging
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from floodmark.engine.cache import replace_file, user_cache
from floodmark.ledger.keys.dead import Dead, DeadFile, open_dead
from floodmark.ledger.keys.run import Run, RunFile, open_run
from floodmark.ledger.keys.sealed import bad
from floodmark.ledger.keys.search import Probes
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.staging import staging_area
from floodmark.storage.errors import ObjectNotFound, StorageError

SMALL_BYTES = 1 << 20
"""Files of a remote store up to this size are kept in memory, larger ones as a copy in the user's cache."""

KEEP_COPIES = 30 * 24 * 3600.0
"""Copies that nobody has opened for so many seconds are removed."""

Cache = dict[str, Any]
"""Runs opened before, by name: they never change."""

_log = logging.getLogger(__name__)
_of_this_process: Cache = {}
_REMEMBERED = 256


class KeyFiles:
    """The files of one dataset's key index. Opened runs are remembered in a cache; pickled, it is left behind."""

    def __init__(self, objects: DatasetObjects, cache: Cache, aside: Path | None = None) -> None:
        self.objects = objects
        self.cache = cache
        self.probes = Probes()
        self._aside = aside

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.objects, self._aside)

    @property
    def are_kept(self) -> bool:
        """Whether the store took every file so far."""
        return self._aside is None

    def run(self, file: RunFile) -> Run:
        """The run, opened; `BadIndex` when a file of it is gone or is not what it should be."""
        found: Run | None = self.cache.get(file.name)
        if found is None or found.damaged:
            if found is not None:
                self._forget_copy(file.data_name)
            found = open_run(
                file, self._data(file.data_name, file.size), self._data(file.name, file.fence_size), self.probes
            )
            self.cache[file.name] = found
        return found

    def dead(self, file: DeadFile) -> Dead:
        """The kills, opened; `BadIndex` when the file is gone or is not what it should be."""
        return open_dead(file, self._data(file.name, file.size))

    @contextmanager
    def workroom(self) -> Iterator[Path]:
        """A folder for files that are being written; what is not put in its place by then is removed."""
        with ExitStack() as held:
            folder = self._aside
            if folder is None:
                try:
                    folder = held.enter_context(staging_area(self.objects.store))
                except (OSError, StorageError) as error:
                    folder = self._turned_away(error)
            yield folder

    def put(self, folder: Path, names: Iterable[str]) -> None:
        """Move files from a folder to where they belong; aside if the store does not take them."""
        for name in names:
            aside = self._aside
            if aside is None:
                try:
                    self.objects.store.put_derived_file(self.objects.key_file_key(name), folder / name)
                    continue
                except (OSError, StorageError) as error:
                    aside = self._turned_away(error)
            if folder != aside:
                shutil.move(folder / name, aside / name)

    def forget_all_but(self, names: set[str]) -> None:
        """Let go of runs that were opened before and are none of these."""
        for name in [known for known, value in list(self.cache.items()) if isinstance(value, Run)]:
            if name not in names:
                self.cache.pop(name, None)

    def forget(self, names: Iterable[str]) -> None:
        """Let go of runs that are no longer needed."""
        for name in names:
            self.cache.pop(name, None)

    def _turned_away(self, error: Exception) -> Path:
        folder = self.objects.folder
        _log.warning("the key index of %s could not be kept (%s); it will be caught up later", folder, error)
        self._aside = Path(tempfile.mkdtemp(prefix="floodmark-keys-"))
        weakref.finalize(self, shutil.rmtree, self._aside, ignore_errors=True)
        return self._aside

    def _data(self, name: str, size: int) -> memoryview:
        path = self._path(name, size)
        if path is None:
            return memoryview(self._get(name))
        try:
            with path.open("rb") as file:
                there = os.fstat(file.fileno()).st_size
                if there != size:
                    raise bad(name, f"{there} bytes, should be {size}")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError as error:
            raise bad(name, "it is gone") from error
        except OSError as error:
            raise bad(name, str(error)) from error

    def _path(self, name: str, size: int) -> Path | None:
        """Where the file can be mapped, None when it is to be held in memory."""
        if self._aside is not None and (self._aside / name).exists():
            return self._aside / name
        local = self.objects.store.local_path(self.objects.key_file_key(name))
        return local if local is not None or size <= SMALL_BYTES else self._copy(name, size)

    def _copy(self, name: str, size: int) -> Path | None:
        """The copy of a remote file in the user's cache, made if missing; None when there can be none."""
        copy = _copies() / name
        try:
            if copy.exists() and copy.stat().st_size == size:
                os.utime(copy)
            else:
                _remove_old_copies()
                replace_file(copy, self._get(name))
        except OSError as error:
            _log.warning("%s could not be copied to %s (%s)", name, copy.parent, error)
            return None
        return copy

    def _get(self, name: str) -> bytes:
        try:
            return self.objects.store.get(self.objects.key_file_key(name))
        except ObjectNotFound as error:
            raise bad(name, "it is gone") from error

    def _forget_copy(self, name: str) -> None:
        if self.objects.store.local_path(self.objects.key_file_key(name)) is None:
            (_copies() / name).unlink(missing_ok=True)


def _reopened(objects: DatasetObjects, aside: Path | None) -> KeyFiles:
    """In another process, or a later task of the same one: what tasks before it have opened stays open."""
    while len(_of_this_process) > _REMEMBERED:
        _of_this_process.pop(next(iter(_of_this_process)))
    return KeyFiles(objects, _of_this_process, aside)


def _copies() -> Path:
    return user_cache() / "keys"


def _remove_old_copies() -> None:
    folder = _copies()
    if folder.is_dir():
        for copy in folder.iterdir():
            if time.time() - copy.stat().st_mtime > KEEP_COPIES:
                copy.unlink(missing_ok=True)
