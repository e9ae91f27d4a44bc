"""What was used last, up to a total weight, for threads to share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key; those that were not used for the longest time make room for others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Keep a value, unless it alone is too heavy or there is one already."""
        with self._lock:
            if weight > self._most or key in self._kept:
                return
            self._kept[key] = (value, weight)
            self._weight += weight
            while self._weight > self._most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped

    def drop(self, key: K) -> None:
        """Keep a value no longer."""
        with self._lock:
            if key in self._kept:
                self._weight -= self._kept.pop(key)[1]
