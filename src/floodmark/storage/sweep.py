"""One sweep for every kind of garbage: objects that their root does not name any more, once they are old enough.

A source lists its objects first and reads its root afterwards, so the root names everything that was published before
the listing. Notes of what the root let go of are read last. An object that no root names yet is young: its writer is
still at work. An object is deleted only if it is as it was listed, since a put of an object that is there renews its
age. Every few hundred deletions the root must be the same, since another root may name what this one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from floodmark.storage.store import ObjectInfo, Store

GRACE_NANOS = 7 * 86_400 * 10**9
"""How long an unused object stays: a reader may have begun with it, or a writer may be about to name it."""

GRACE_SECONDS = GRACE_NANOS / 10**9

LOOK_EVERY = 256
"""The number of deletions between two looks at the root."""

R = TypeVar("R")


@dataclass(frozen=True)
class Listing(Generic[R]):
    """The objects of a source, and the root that was read afterwards."""

    objects: Sequence[ObjectInfo]
    root: R
    oldest: float  # objects that were modified since this moment (epoch seconds) stay, unless they are purged

    @property
    def old(self) -> list[ObjectInfo]:
        return [info for info in self.objects if info.modified < self.oldest]


@dataclass(frozen=True)
class Usage:
    """Which of the listed objects are in use as of a root.

    `is_live` is asked in the order of the listing, of old objects only; it also gets the keys that go so far, for
    objects that stay as long as others do. `released` tells since when (epoch seconds) the root does not name an object
    that it named before: the grace period begins there. `purged` objects go at once.
    """

    is_live: Callable[[ObjectInfo, AbstractSet[str]], bool]
    released: Mapping[str, float] = field(default_factory=dict)
    purged: AbstractSet[str] = frozenset()


class GarbageSource(Protocol[R]):
    """One kind of object that can become garbage."""

    @property
    def store(self) -> Store: ...

    def listed(self) -> Iterable[ObjectInfo]:
        """The objects that are there. Called first."""
        ...

    def root(self) -> R | None:
        """What decides which objects are in use; None keeps all of them: it is lost, or cannot be read."""
        ...

    def usage(self, listing: Listing[R]) -> Usage | None:
        """Which objects are in use; None keeps all of them."""
        ...

    def turn(self) -> AbstractContextManager[None] | None:
        """The turn that deletions are made in, if any: no writer puts an object again between two looks at it."""
        return None


@dataclass(frozen=True)
class Garbage(Generic[R]):
    """The objects of a source that can go, as of a root."""

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
    """What can go: purged objects, and those neither in use nor modified or released since a moment (epoch seconds)."""
    listed = list(source.listed())
    root = source.root() if listed else None
    usage = None if root is None else source.usage(Listing(listed, root, oldest))
    if usage is None:
        return Garbage(source, root)
    going: dict[str, ObjectInfo] = {}
    for info in listed:
        unused_since = max(info.modified, usage.released.get(info.key, 0.0))
        if info.key in usage.purged or (unused_since < oldest and not usage.is_live(info, going.keys())):
            going[info.key] = info
    return Garbage(source, root, tuple(going.values()))


def remove(garbage: Garbage[R]) -> Garbage[R]:
    """Delete garbage and return what was deleted; stop when the root has moved, the next sweep goes on."""
    source, removed = garbage.source, []
    for number, info in enumerate(garbage.objects):
        if number % LOOK_EVERY == 0 and source.root() != garbage.root:
            break
        if source.store.stat(info.key) == info:
            source.store.delete(info.key)
            removed.append(info)
    return replace(garbage, objects=tuple(removed))


def collect(source: GarbageSource[R], oldest: float) -> Garbage[R]:
    """Find garbage and delete it. A turn is taken only if there is something to delete, and the search done again."""
    found = find(source, oldest)
    turn = source.turn() if found.objects else None
    if turn is None:
        return remove(found)
    with turn:
        return remove(find(source, oldest))
