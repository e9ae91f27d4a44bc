"""A store in memory, for tests: the same promises as the others, and nothing left behind."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.storage.errors import BadStoreUrl, ObjectNotFound
from floodmark.storage.store import ObjectInfo, check_key, check_prefix


@dataclass(frozen=True)
class _Object:
    data: bytes
    modified: float


class MemoryStore:
    """Objects in this process's memory; threads may share it."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._objects: dict[str, _Object] = {}
        self._lock = threading.Lock()
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._staging: tempfile.TemporaryDirectory[str] | None = None
        _open_stores[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_this_process, (self._number,)

    @property
    def url(self) -> str:
        return f"memory://{self._number}"

    def get(self, key: str) -> bytes:
        found = self._objects.get(check_key(key))
        if found is None:
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="It was never written, or it has been purged or dropped.",
                key=key,
                url=self.url,
            )
        return found.data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.get(key)[start : max(start, end)]

    def stat(self, key: str) -> ObjectInfo | None:
        found = self._objects.get(check_key(key))
        return ObjectInfo(key, len(found.data), found.modified) if found else None

    def open(self, key: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(key))

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._lock:
            there = self._objects.get(key)
            self._objects[key] = _Object(there.data if there else bytes(data), time.time())
            return there is None

    def put_file(self, key: str, path: Path) -> bool:
        made = self.put_if_absent(key, path.read_bytes())
        path.unlink()
        return made

    def put_derived(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            self._objects[key] = _Object(bytes(data), time.time())

    def put_derived_file(self, key: str, path: Path) -> None:
        self.put_derived(key, path.read_bytes())
        path.unlink()

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        check_key(key)
        with self._lock:
            there = self._objects.get(key)
            if (there.data if there else None) != expected:
                return False
            if expected != new:
                self._objects[key] = _Object(bytes(new), time.time())
            return True

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        check_key(key)
        with self._lock:
            turn = self._turns[key]
        with turn:
            yield

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        start = f"{folder}/" if folder else ""
        with self._lock:
            found = [(key, value) for key, value in self._objects.items() if key.startswith(start)]
        return iter([ObjectInfo(key, len(value.data), value.modified) for key, value in sorted(found)])

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def staging(self) -> Path:
        with self._lock:
            if self._staging is None:
                self._staging = tempfile.TemporaryDirectory(prefix="floodmark-")
                # Removed without the warning that a TemporaryDirectory gives when it is forgotten.
                weakref.finalize(self, self._staging.cleanup)
            return Path(self._staging.name)


_numbers = itertools.count(1)
_open_stores: weakref.WeakValueDictionary[int, MemoryStore] = weakref.WeakValueDictionary()


def _in_this_process(number: int) -> MemoryStore:
    """The same store again: pickling one must not make a copy that drifts away from it."""
    found = _open_stores.get(number)
    if found is None:
        raise BadStoreUrl(
            f"memory://{number} is not in this process.",
            hint="A store in memory cannot be sent to another process; use a local folder.",
            url=f"memory://{number}",
        )
    return found
