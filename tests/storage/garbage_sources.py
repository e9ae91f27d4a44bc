"""Sources of garbage that a test decides all of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from floodmark.storage.memory import MemoryStore
from floodmark.storage.store import ObjectInfo, Store
from floodmark.storage.sweep import GarbageSource, Listing, ObjectUsage


@dataclass
class StaticSource(GarbageSource[str]):
    """Objects with the moments at which they were modified, and what is in use of them; nothing is stored."""

    modified: Mapping[str, float]
    in_use: ObjectUsage

    @property
    def store(self) -> Store:
        return MemoryStore()

    def listed(self) -> list[ObjectInfo]:
        return [ObjectInfo(key, 1, modified) for key, modified in self.modified.items()]

    def root(self) -> str:
        return "root"

    def usage(self, listing: Listing[str]) -> ObjectUsage:
        return self.in_use


@dataclass
class NamingSource(GarbageSource[bytes]):
    """Objects of a store, in use if the root, which is another object of it, names them; the root's text is names.

    `before` is called before each step with its name, for another process to step in.
    """

    objects: MemoryStore
    released: Mapping[str, float] = field(default_factory=dict)
    purged: frozenset[str] = frozenset()
    before: Callable[[str], None] = lambda step: None

    @property
    def store(self) -> Store:
        return self.objects

    def listed(self) -> list[ObjectInfo]:
        self.before("list")
        return list(self.store.list("files"))

    def root(self) -> bytes | None:
        self.before("root")
        data = self.store.get("root")
        return None if data == b"damaged" else data

    def usage(self, listing: Listing[bytes]) -> ObjectUsage | None:
        self.before("usage")
        if listing.root == b"unreadable":
            return None
        named = set(listing.root.decode().split())
        return ObjectUsage(lambda info, _: info.name in named, self.released, self.purged)
