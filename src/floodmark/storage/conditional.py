"""Whether a store honours conditional puts. Without them two writers can both commit, and rows are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from floodmark.errors import StorageError
from floodmark.storage.store import Store

WRITERS = 4
CONDITIONAL_HINT = (
    "use a bucket that honours conditional puts (If-None-Match, If-Match); without them commits could be lost"
)

_BEFORE = b"before"


@dataclass(frozen=True)
class WriterRace:
    """How many of `WRITERS` concurrent writers created one object, and then how many replaced it."""

    created: int
    replaced: int

    @property
    def is_fair(self) -> bool:
        """Whether one writer won each time."""
        return (self.created, self.replaced) == (1, 1)

    def __str__(self) -> str:
        return f"{self.created} of {WRITERS} writers created an object and {self.replaced} replaced it; expected 1 each"


def race_writers(store: Store, key: str) -> WriterRace:
    """Let several threads create an object, then replace it, at the same moment. The object is removed afterwards."""
    try:
        return WriterRace(_winners(partial(_put, store, key)), _winners(partial(_replace, store, key)))
    finally:
        with suppress(StorageError):  # raise the first failure, not one of the cleanup
            store.delete(key)


def _put(store: Store, key: str, _: int) -> bool:
    return store.put_if_absent(key, _BEFORE)


def _replace(store: Store, key: str, me: int) -> bool:
    return store.compare_and_swap(key, _BEFORE, b"moved by %d" % me)


def _winners(act: Callable[[int], bool]) -> int:
    """How many of several concurrent calls return True."""
    start = threading.Barrier(WRITERS)

    def one(me: int) -> bool:
        start.wait()
        return act(me)

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(one, range(WRITERS)))
