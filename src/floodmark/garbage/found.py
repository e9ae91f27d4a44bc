"""What a collection found or removed, and how one kind of garbage is found and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from floodmark.compute.stored.gc import GRACE_NANOS
from floodmark.storage.store import ObjectInfo, Store

GRACE_SECONDS = GRACE_NANOS / 10**9
"""How long everything stays that nobody needs: somebody may have begun to read it, or be about to name it."""

Kind = Literal[
    "checkpoints",
    "files of columns and timelines",
    "folded files",
    "key index",
    "copies of rows",
    "slices and blocks",
    "transform meta",
    "results of stopped runs",
    "staging",
    "unnamed dataset",
]


@dataclass(frozen=True)
class Found:
    """Objects of one kind that are of no use: those of a dataset, or of the lake itself (None)."""

    dataset: str | None
    kind: Kind
    objects: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.objects)


@dataclass(frozen=True)
class Failed:
    """A dataset, or the lake itself, that could not be looked through: nothing more of it was removed."""

    dataset: str | None
    error: str
    hint: str


@dataclass(frozen=True)
class Collector:
    """One way in which garbage comes about: `find` only looks, `collect` says what it removed."""

    find: Callable[[], Sequence[Found]]
    collect: Callable[[], Sequence[Found]]


def young(info: ObjectInfo, oldest: float) -> bool:
    """Whether an object was written since a moment (epoch seconds)."""
    return info.modified >= oldest


def remove(store: Store, objects: Iterable[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    """Delete objects, but none that was written again since it was looked at; says which went."""
    gone = []
    for info in objects:
        if store.stat(info.key) == info:
            store.delete(info.key)
            gone.append(info)
    return tuple(gone)


def last_name(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[2]
