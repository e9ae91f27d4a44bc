"""Garbage collection for every kind of object: find old objects that their root no longer references, and delete them.

A source lists its objects first and reads its root afterwards, so the root references everything that was published
before the listing. Notes about released objects are read last. An object that no root references yet is young, because
its writer is still working. An object is deleted only if it has not changed since the listing, because a put of an
existing object renews its time. The root is compared every few hundred deletions, because a newer root may reference
other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from floodmark.storage.store import ObjectInfo, Store

GRACE_NANOS = 7 * 86_400 * 10**9
"""How long an unused object is kept: a reader may still use it, or a writer may be about to reference it."""

GRACE_SECONDS = GRACE_NANOS / 10**9

ROOT_CHECK_INTERVAL = 256
"""The number of deletions between two comparisons of the root."""

R = TypeVar("R")


@dataclass(frozen=True)
class Listing(Generic[R]):
    """The objects of a source, and the root, read afterwards."""

    objects: Sequence[ObjectInfo]
    root: R
    keep_since: float  # objects modified since this moment (epoch seconds) are kept, unless they are purged

    @property
    def old(self) -> list[ObjectInfo]:
        return [info for info in self.objects if info.modified < self.keep_since]


@dataclass(frozen=True)
class ObjectUsage:
    """Which of the listed objects are in use, according to a root.

    `is_live` is called for old objects only, in the order of the listing. It also gets the keys that will be deleted so
    far, for objects that are needed as long as others exist. `released` has the time (epoch seconds) at which the root
    stopped referencing an object; its grace period starts then. `purged` objects are deleted at once.
    """

    is_live: Callable[[ObjectInfo, AbstractSet[str]], bool]
    released: Mapping[str, float] = field(default_factory=dict)
    purged: AbstractSet[str] = frozenset()


class GarbageSource(Protocol[R]):
    """One kind of object that can become garbage."""

    @property
    def store(self) -> Store: ...

    def listed(self) -> Iterable[ObjectInfo]:
        """The existing objects. Called first."""
        ...

    def root(self) -> R | None:
        """The value that decides which objects are in use. None (missing or unreadable) keeps all of them."""
        ...

    def usage(self, listing: Listing[R]) -> ObjectUsage | None:
        """Which objects are in use. None keeps all of them."""
        ...

    def turn(self) -> AbstractContextManager[None] | None:
        """The turn to hold during deletions, if any, so that no writer puts an object again after it was checked."""
        return None


@dataclass(frozen=True)
class Garbage(Generic[R]):
    """The objects of a source that can be deleted, according to a root."""

    source: GarbageSource[R] = field(compare=False, repr=False)
    root: R | None
    objects: tuple[ObjectInfo, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [info.key for info in self.objects]

    @property
    def bytes(self) -> int:
        return sum(info.size for info in self.objects)


def find(source: GarbageSource[R], oldest: float) -> Garbage[R]:
    """Find garbage: purged objects, and unused objects not modified or released since `oldest` (epoch seconds)."""
    listed = list(source.listed())
    root = source.root() if listed else None
    usage = None if root is None else source.usage(Listing(listed, root, oldest))
    if usage is None:
        return Garbage(source, root)
    deletable: dict[str, ObjectInfo] = {}
    for info in listed:
        unused_since = max(info.modified, usage.released.get(info.key, 0.0))
        if info.key in usage.purged or (unused_since < oldest and not usage.is_live(info, deletable.keys())):
            deletable[info.key] = info
    return Garbage(source, root, tuple(deletable.values()))


def remove(garbage: Garbage[R]) -> Garbage[R]:
    """Delete garbage and return the deleted part. Stop if the root has changed; the next sweep continues."""
    source, removed = garbage.source, []
    for number, info in enumerate(garbage.objects):
        if number % ROOT_CHECK_INTERVAL == 0 and source.root() != garbage.root:
            break
        if source.store.stat(info.key) == info:
            source.store.delete(info.key)
            removed.append(info)
    return replace(garbage, objects=tuple(removed))


def collect(source: GarbageSource[R], oldest: float) -> Garbage[R]:
    """Find garbage and delete it. If there is any, take the turn of the source and search again first."""
    garbage = find(source, oldest)
    turn = source.turn() if garbage.objects else None
    if turn is None:
        return remove(garbage)
    with turn:
        return remove(find(source, oldest))
