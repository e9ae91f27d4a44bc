"""Copy objects from one store to another in bounded memory. Each is compared with its hash on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from floodmark.backup.inventory import Required, refuse_damaged
from floodmark.backup.manifest import BackedObject, Inventory
from floodmark.backup.snapshot import THREADS
from floodmark.storage.scratch import explain_write_errors, staging_area
from floodmark.storage.store import ObjectInfo, Store

_IN_MEMORY = 4 << 20
"""Larger objects are copied through a file, piece by piece."""

_PIECE = 1 << 20
_AHEAD = 4 * THREADS


@dataclass(frozen=True)
class Copy:
    """An object to copy: where it is in the dataset's folder, and what it must be."""

    folder: str
    object: Required

    @property
    def key(self) -> str:
        return f"{self.folder}/{self.object.path}"


@dataclass(frozen=True)
class Copier:
    """Copies objects between two stores."""

    source: Store
    destination: Store
    area: Path  # for unfinished files

    def copy(self, task: Copy) -> BackedObject:
        """Copy one object; afterwards it is durable at the destination, and has this content.

        An object that is there counts as newly written. If it is damaged, it is replaced.
        """
        info = self.source.stat(task.key)
        if info is None or info.size <= _IN_MEMORY:
            return self._copy_small(task)
        return self._copy_large(task)

    def _copy_small(self, task: Copy) -> BackedObject:
        data = self.source.get(task.key)
        found = self._checked(task, len(data), hashlib.sha3_256(data).digest())
        for _ in range(2):
            if self.destination.put_if_absent(task.key, data) or self.destination.get(task.key) == data:
                break
            self.destination.delete(task.key)
        return found

    def _copy_large(self, task: Copy) -> BackedObject:
        for _ in range(2):
            path = self.area / uuid4().hex
            try:
                found = self._read_into(path, task)
                if self.destination.put_file(task.key, path) or digest_of(self.destination, task.key) == found.digest:
                    break
            finally:
                with suppress(FileNotFoundError):
                    path.unlink()
            self.destination.delete(task.key)
        return found

    def _read_into(self, path: Path, task: Copy) -> BackedObject:
        digest, size = hashlib.sha3_256(), 0
        with explain_write_errors(repr(task.key), path.parent), path.open("xb") as file:
            for piece in _pieces(self.source, task.key):
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        return self._checked(task, size, digest.digest())

    def _checked(self, task: Copy, size: int, digest: bytes) -> BackedObject:
        expected = task.object
        if expected.size is not None and expected.size != size:
            raise refuse_damaged(task.key, self.source.url, f"has {size} bytes, not {expected.size}")
        if expected.digest is not None and expected.digest != digest:
            raise refuse_damaged(task.key, self.source.url, "does not match its hash")
        return BackedObject(expected.path, size, digest)


def digest_of(store: Store, key: str) -> bytes:
    """The SHA3-256 of an object, read piece by piece."""
    digest = hashlib.sha3_256()
    for piece in _pieces(store, key):
        digest.update(piece)
    return digest.digest()


def _pieces(store: Store, key: str) -> Iterator[bytes]:
    with store.open(key) as file:
        while piece := file.read(_PIECE):
            yield piece


def copy_all(source: Store, destination: Store, tasks: Sequence[Copy]) -> Iterator[BackedObject]:
    """Copy objects in threads. They are returned in the order in which they were copied; the first error ends it."""
    if not tasks:
        return
    with staging_area(destination) as area, ThreadPoolExecutor(THREADS) as pool:
        copier = Copier(source, destination, area)
        running: set[Future[BackedObject]] = set()
        try:
            for task in tasks:
                running.add(pool.submit(copier.copy, task))
                if len(running) >= _AHEAD:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            done, running = wait(running)
            yield from (future.result() for future in done)
        finally:
            pool.shutdown(cancel_futures=True)


Listing = Mapping[str, Mapping[str, ObjectInfo]]
"""The objects of a store by the folder of their dataset, then by key."""


def list_datasets(store: Store) -> Listing:
    """The objects of all datasets."""
    found: dict[str, dict[str, ObjectInfo]] = {}
    for info in store.list("datasets"):
        found.setdefault("/".join(info.key.split("/", 2)[:2]), {})[info.key] = info
    return found


def find_missing(store: Store, inventory: Inventory, present: Listing) -> str | None:
    """The key of an object of an inventory that a listing lacks, or has in another size; None if all are there."""
    folder = inventory.folder(store).folder
    there = present.get(folder, {})
    for one in inventory.objects:
        info = there.get(f"{folder}/{one.path}")
        if info is None or info.size != one.size:
            return f"{folder}/{one.path}"
    return None
