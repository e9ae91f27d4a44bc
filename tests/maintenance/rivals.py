"""A store in memory that two work on at once: at a chosen operation of one, the other does all of its work.

All of it happens in one thread, so nothing is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import ObjectInfo

DAY = 86_400


class Shared(MemoryStore):
    """The objects of another store, seen by one of two: says before each operation what it is about to do."""

    def __init__(self, other: MemoryStore, before: Callable[[str, str], None] | None = None) -> None:
        super().__init__()
        self._objects, self._lock, self._turns = other._objects, other._lock, other._turns
        self._before = before

    def _tell(self, operation: str, key: str) -> None:
        if self._before is not None:
            self._before(operation, key)

    def get(self, key: str) -> bytes:
        self._tell("get", key)
        return super().get(key)

    def stat(self, key: str) -> ObjectInfo | None:
        self._tell("stat", key)
        return super().stat(key)

    def open(self, key: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(key))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._tell("put", key)
        return super().put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        made = self.put_if_absent(key, path.read_bytes())
        path.unlink()
        return made

    def put_derived(self, key: str, data: bytes) -> None:
        self._tell("derive", key)
        super().put_derived(key, data)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self._tell("swap", key)
        return super().compare_and_swap(key, expected, new)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._tell("list", prefix)
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self._tell("delete", key)
        super().delete(key)

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        self._tell("turn", key)
        with super().turn(key):
            yield


class Held(BaseException):
    """A turn that somebody else has: who asked for it ends here."""


class Impatient(Shared):
    """Of somebody who does not wait for turns, and can be told to work in the middle of another one's."""

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        with self._lock:
            turn = self._turns[key]
        if not turn.acquire(blocking=False):
            raise Held
        try:
            yield
        finally:
            turn.release()


def copied(store: MemoryStore) -> MemoryStore:
    """A store of its own with the same objects, and nobody's turn."""
    made = MemoryStore()
    made._objects.update(store._objects)
    return made


def age(store: MemoryStore, days: float) -> None:
    """Everything that is there was written so many days earlier."""
    for key, stored in store._objects.items():
        store._objects[key] = replace(stored, modified=stored.modified - days * DAY)


def operations(store: MemoryStore, work: Callable[[MemoryStore], Any]) -> list[tuple[str, str]]:
    """What somebody who works alone does, one operation after the other."""
    seen: list[tuple[str, str]] = []
    work(Shared(store, lambda *told: seen.append(told)))
    return seen


def interrupted(
    store: MemoryStore, work: Callable[[MemoryStore], Any], at: int, other: Callable[[MemoryStore], Any]
) -> None:
    """Somebody works, and before operation `at` another one does all of its work.

    If it would have to wait for the first to end its turn, it dies there, and does its work once more in the end.
    """
    count, died = 0, False

    def before(*_: str) -> None:
        nonlocal count, died
        count += 1
        if count == at + 1:
            try:
                other(Impatient(store))
            except Held:
                died = True

    work(Shared(store, before))
    if died:
        other(Shared(store))
