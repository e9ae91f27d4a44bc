"""Stores that act before a call, and lakes whose whole content can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import floodmark as fm
from floodmark.storage.memory import MemoryStore

READS = ("get", "stat", "open", "list")
CHANGES = ("put_if_absent", "put_file", "put_derived", "put_derived_file", "compare_and_swap", "delete")


class Killed(BaseException):
    """The process ends here."""


class ActingStore(MemoryStore):
    """A store in memory that acts before the nth call of some kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._kinds: tuple[str, ...] = ()
        self._nth, self._act = -1, lambda: None

    def before(self, nth: int, act: Callable[[], Any], kinds: tuple[str, ...]) -> None:
        """Act before the nth call of these kinds from now on."""
        self.calls, self._nth, self._act, self._kinds = 0, nth, act, kinds

    def count(self, kinds: tuple[str, ...]) -> None:
        self.before(-1, lambda: None, kinds)

    def _called(self, kind: str) -> None:
        if kind in self._kinds:
            self.calls += 1
            if self.calls - 1 == self._nth:
                self._nth = -1
                self._act()


def _acting(kind: str) -> Any:
    def call(self: ActingStore, *given: Any) -> Any:
        self._called(kind)
        return getattr(MemoryStore, kind)(self, *given)

    return call


for _kind in (*READS, *CHANGES):
    setattr(ActingStore, _kind, _acting(_kind))


def kill() -> None:
    raise Killed


def copied(store: MemoryStore) -> ActingStore:
    """Another store with the same objects."""
    other = ActingStore()
    for info in list(MemoryStore.list(store, "")):
        other.put_derived(info.key, MemoryStore.get(store, info.key))
    return other


def content(lake: fm.Lake) -> dict[str, Any]:
    """All that can be read of a lake: heads, rows of now, and every record."""
    return {dataset.name: _content(dataset) for dataset in lake}


def _content(dataset: fm.Dataset) -> Any:
    if dataset.schema is None:
        return dataset.head, (), ()
    changes = dataset.changes_arrow(since=dataset.snapshot().purged_before - 1)
    return dataset.head, sorted(map(repr, dataset.to_arrow().to_pylist())), rows(changes)


def rows(table: pa.Table) -> list[str]:
    return list(map(repr, table.to_pylist()))


def problems(lake: fm.Lake) -> list[Any]:
    """What `verify` finds in the lake and its datasets."""
    from floodmark.backup.verify import find_backup_problems

    return [*find_backup_problems(lake.store), *(p for dataset in lake for p in dataset.verify().problems)]
