"""The files of a key index, and its manifest: a small document, written last, that lists them as of one block."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floodmark.errors import StorageError, bad_index
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.strategy import Strategy
from floodmark.rows.key_entries import KillsFile, OpenKills, open_kills
from floodmark.storage import document
from floodmark.storage.document import DamagedDocument
from floodmark.storage.facts import Natural, build
from floodmark.storage.file_cache import map_file
from floodmark.storage.scratch import Folder, MemoryFolder, TemporaryFolder, staging_area
from floodmark.storage.sorted_runs import RunFile, RunFiles, SortedRun
from floodmark.storage.tiers import RetiredFiles

_KIND = "key index"
HASH_VERSION = 1
"""The version of the hash rules. Files of other versions are not used."""

BlockPosition = tuple[int, bytes]
"""A block: its sequence number and the digest of its hash."""


@dataclass(frozen=True)
class KeyIndexShape:
    """The columns that an index hashes, and the version of the hash rules."""

    key: tuple[str, ...]
    lookup: tuple[str, ...]
    hashing: int = HASH_VERSION
    erasures: int = 0  # how many blocks had erased records: an older index has the keys of these records

    @staticmethod
    def of(strategy: Strategy, erasures: int = 0) -> KeyIndexShape:
        return KeyIndexShape(strategy.key, strategy.lookup, erasures=erasures)

    @property
    def has_prefix(self) -> bool:
        return self.lookup != self.key


@dataclass(frozen=True)
class KeySegment:
    """The index files of the records [start, end): sorted runs with disjoint, ascending hash ranges, and kills."""

    start: Natural
    end: Natural
    runs: tuple[RunFile, ...]
    dead: tuple[KillsFile, ...]

    @property
    def entries(self) -> int:
        return sum(run.entries for run in self.runs)

    @property
    def kills(self) -> int:
        return sum(file.kills for file in self.dead)

    @property
    def names(self) -> list[str]:
        return [*(run.name for run in self.runs), *(file.name for file in self.dead)]


@dataclass(frozen=True)
class KeyManifest:
    """The key index as of a block: segments, newest first, without gaps between them."""

    shape: KeyIndexShape
    at: BlockPosition | None  # None before the first record
    start: Natural  # 0, or the first offset that was not purged when the index was built
    end: Natural
    segments: tuple[KeySegment, ...] = ()
    generation: int = 0
    previous: tuple[str, ...] = ()  # earlier manifests that still exist, newest first
    retired: RetiredFiles = field(default=(), repr=False)

    @property
    def name(self) -> str:
        assert self.at is not None
        return manifest_name(self.at)

    @property
    def kills(self) -> int:
        return sum(segment.kills for segment in self.segments)

    @property
    def names(self) -> set[str]:
        """All files that the index needs."""
        return {name for segment in self.segments for name in segment.names}

    def problem(self) -> str | None:
        """The first problem with the order of the segments; None if they are in order."""
        end = self.end
        for segment in self.segments:
            if segment.end != end or segment.start > segment.end:
                return f"a segment ends at {segment.end}, should end at {end}"
            end = segment.start
        return None if end == self.start else f"the segments begin at {end}, not at {self.start}"


def manifest_name(at: BlockPosition) -> str:
    return f"{at[0]:012d}-{at[1].hex()}"


def encode_index(manifest: KeyManifest) -> bytes:
    """The manifest as a document."""
    return document.encode(_KIND, 1, vars(manifest))


def decode_index(name: str, data: bytes) -> KeyManifest:
    """The manifest in the file with this name. Raises `BadIndex` unless it is a complete result of `encode_index`."""
    try:
        with document.parsing(name):
            manifest = build(KeyManifest, document.decode(data, _KIND, name).facts)
    except DamagedDocument as error:
        raise bad_index(name, error.problem) from error
    if manifest.at is None:
        raise bad_index(name, "it belongs to no block")
    problem = manifest.problem() or (f"its content belongs to {manifest.name}" if manifest.name != name else None)
    if problem:
        raise bad_index(name, problem)
    return manifest


RunCache = dict[str, Any]
"""Runs already opened, by name. Runs never change."""

_log = logging.getLogger(__name__)


class KeyIndexFiles(RunFiles):
    """The files of one dataset's key index.

    If the store refuses files, they are kept in a temporary folder as long as this object exists; if no disk has space
    for them, in memory.
    """

    def __init__(self, objects: DatasetObjects, cache: RunCache | None, aside: tuple[Folder, ...] = ()) -> None:
        super().__init__(objects.store, objects.key_file_key(""), "keys", bad_index, cache)
        self.objects = objects
        self._aside = aside  # folders outside the store; new files go to the last one
        self._temporary: TemporaryFolder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyIndexFiles, (self.objects, None, self._aside)

    @property
    def store_accepts(self) -> bool:
        """Whether the store has accepted every file so far."""
        return not self._aside

    def dead(self, file: KillsFile) -> OpenKills:
        """Open a file of kills. Raises `BadIndex` if the file is missing or damaged."""
        try:
            data = self.read(file.name, file.size)
        except DamagedDocument as error:
            raise bad_index(file.name, error.problem) from error
        return open_kills(file, data)

    @contextmanager
    def staging_folder(self) -> Iterator[Folder]:
        """A folder for new files. On exit, files that were not stored with `put` are removed."""
        with ExitStack() as stack:
            if self._aside:
                folder = self._aside[-1]
            else:
                try:
                    folder = stack.enter_context(staging_area(self.store))
                except (OSError, StorageError) as error:
                    folder = self._use_temporary_folder(error)
            yield folder

    def put(self, folder: Folder, names: Iterable[str]) -> None:
        """Move files from a folder into the store, or aside if the store refuses them."""
        for name in names:
            if not self._aside and isinstance(folder, Path):
                try:
                    self.store.put_derived_file(self.key(name), folder / name)
                    continue
                except (OSError, StorageError) as error:
                    self._use_temporary_folder(error)
            if folder not in self._aside:
                self._set_aside(folder, name)

    def use_memory(self, error: Exception) -> MemoryFolder:
        """Keep new files in memory: a disk is full."""
        self._warn(error)
        folder = MemoryFolder()
        self._aside = (*self._aside, folder)
        return folder

    def forget_all_but(self, names: set[str]) -> None:
        """Remove all opened runs from the cache except these."""
        runs = [value.file.name for value in list(self.cache.values()) if isinstance(value, SortedRun)]
        self.forget([name for name in runs if name not in names])

    def _read(self, name: str, size: int, check: Callable[[memoryview], None]) -> memoryview:
        for folder in self._aside:
            if (file := folder / name).exists():
                return map_file(file) if isinstance(file, Path) else memoryview(file.read_bytes())
        return super()._read(name, size, check)

    def _set_aside(self, folder: Folder, name: str) -> None:
        source, target = folder / name, self._aside[-1] / name
        try:
            if isinstance(source, Path) and isinstance(target, Path):
                shutil.move(source, target)
            else:
                target.write_bytes(source.read_bytes())
        except OSError as error:
            (self.use_memory(error) / name).write_bytes(source.read_bytes())

    def _use_temporary_folder(self, error: Exception) -> Folder:
        try:
            self._temporary = TemporaryFolder()
        except StorageError:
            return self.use_memory(error)
        self._warn(error)
        self._aside = (*self._aside, self._temporary.path)
        return self._temporary.path

    def _warn(self, error: Exception) -> None:
        folder = self.objects.folder
        _log.warning("the key index of %s was not stored (%s); it will be rebuilt later", folder, error)
