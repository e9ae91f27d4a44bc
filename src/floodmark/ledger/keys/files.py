"""The files of the key index: in the dataset's store, in a local copy of it, or aside when the store refuses them."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from floodmark.ledger.errors import bad_index
from floodmark.ledger.keys.dead import Dead, DeadFile, open_dead
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.document import Damaged
from floodmark.storage.errors import StorageError
from floodmark.storage.file_cache import map_file
from floodmark.storage.scratch import staging_area
from floodmark.storage.sorted_runs import Run, RunFiles

Cache = dict[str, Any]
"""Runs opened before, by name: they never change."""

_log = logging.getLogger(__name__)


class KeyFiles(RunFiles):
    """The files of one dataset's key index. An index that cannot be stored is kept aside until this object goes."""

    def __init__(self, objects: DatasetObjects, cache: Cache | None, aside: Path | None = None) -> None:
        super().__init__(objects.store, objects.key_file_key(""), "keys", bad_index, cache)
        self.objects = objects
        self._aside = aside

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyFiles, (self.objects, None, self._aside)

    @property
    def are_kept(self) -> bool:
        """Whether the store took every file so far."""
        return self._aside is None

    def dead(self, file: DeadFile) -> Dead:
        """The kills, opened; `BadIndex` when the file is gone or is not what it should be."""
        try:
            data = self.read(file.name, file.size)
        except Damaged as error:
            raise bad_index(file.name, error.problem) from error
        return open_dead(file, data)

    @contextmanager
    def workroom(self) -> Iterator[Path]:
        """A folder for files that are being written; those not put in their place by then are removed."""
        with ExitStack() as held:
            folder = self._aside
            if folder is None:
                try:
                    folder = held.enter_context(staging_area(self.store))
                except (OSError, StorageError) as error:
                    folder = self._turned_away(error)
            yield folder

    def put(self, folder: Path, names: Iterable[str]) -> None:
        """Move files from a folder to where they belong; aside if the store refuses them."""
        for name in names:
            aside = self._aside
            if aside is None:
                try:
                    self.store.put_derived_file(self.key(name), folder / name)
                    continue
                except (OSError, StorageError) as error:
                    aside = self._turned_away(error)
            if folder != aside:
                shutil.move(folder / name, aside / name)

    def forget_all_but(self, names: set[str]) -> None:
        """Let go of runs that were opened before and are none of these."""
        runs = [value.file.name for value in list(self.cache.values()) if isinstance(value, Run)]
        self.forget([name for name in runs if name not in names])

    def _read(self, name: str, size: int, check: Callable[[memoryview], None]) -> memoryview:
        if self._aside is not None and (self._aside / name).exists():
            return map_file(self._aside / name)
        return super()._read(name, size, check)

    def _turned_away(self, error: Exception) -> Path:
        folder = self.objects.folder
        _log.warning("the key index of %s could not be kept (%s); it will be caught up later", folder, error)
        self._aside = Path(tempfile.mkdtemp(prefix="floodmark-keys-"))
        weakref.finalize(self, shutil.rmtree, self._aside, ignore_errors=True)
        return self._aside
