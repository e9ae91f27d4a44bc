"""A store in memory whose user dies before its nth change."""

from __future__ import annotations

from floodmark.storage.memory import MemoryStore


class Dies(Exception):
    """The process ends here."""


class MortalStore(MemoryStore):
    """A store whose user dies before its nth change."""

    left = 10**9
    changes = 0

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Dies

    def put_if_absent(self, key, data):
        self._count()
        return super().put_if_absent(key, data)

    def put_file(self, key, path):
        self._count()
        return super().put_file(key, path)

    def put_derived(self, key, data):
        self._count()
        super().put_derived(key, data)

    def put_derived_file(self, key, path):
        self._count()
        super().put_derived_file(key, path)

    def compare_and_swap(self, key, old, new):
        self._count()
        return super().compare_and_swap(key, old, new)

    def delete(self, key):
        self._count()
        super().delete(key)


def copied(template):
    """Another store with the same objects."""
    store = MortalStore()
    for info in list(template.list("")):
        store.put_derived(info.key, template.get(info.key))
    return store
