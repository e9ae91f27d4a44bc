"""A store in memory, for tests, and a store that counts the calls to another store."""

from __future__ import annotations

import io
import itertools
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.errors import BadStoreUrl, ObjectNotFound
from floodmark.storage.scratch import TemporaryFolder
from floodmark.storage.store import BytesLike, ObjectInfo, Store, check_key, check_prefix


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
        self._staging: TemporaryFolder | None = None
        _open_stores[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_store, (self._number,)

    @property
    def url(self) -> str:
        return f"memory://{self._number}"

    def get(self, key: str) -> bytes:
        stored = self._objects.get(check_key(key))
        if stored is None:
            raise ObjectNotFound(
                f"There is no object {key!r} in {self.url}.",
                hint="Check the key: the object was never written, or it was purged or dropped.",
                key=key,
                url=self.url,
            )
        return stored.data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.get(key)[start : max(start, end)]

    def stat(self, key: str) -> ObjectInfo | None:
        stored = self._objects.get(check_key(key))
        return ObjectInfo(key, len(stored.data), stored.modified) if stored else None

    def open(self, key: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(key))

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    def put_if_absent(self, key: str, data: BytesLike) -> bool:
        check_key(key)
        with self._lock:
            current = self._objects.get(key)
            self._objects[key] = _Object(current.data if current else bytes(data), time.time())
            return current is None

    def put_file(self, key: str, path: Path) -> bool:
        created = self.put_if_absent(key, path.read_bytes())
        path.unlink()
        return created

    def put_derived(self, key: str, data: BytesLike) -> None:
        check_key(key)
        with self._lock:
            self._objects[key] = _Object(bytes(data), time.time())

    def put_derived_file(self, key: str, path: Path) -> None:
        self.put_derived(key, path.read_bytes())
        path.unlink()

    def compare_and_swap(self, key: str, expected: bytes | None, new: BytesLike) -> bool:
        check_key(key)
        with self._lock:
            current = self._objects.get(key)
            if (current.data if current else None) != expected:
                return False
            if expected != (content := bytes(new)):
                self._objects[key] = _Object(content, time.time())
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
            stored = [(key, value) for key, value in self._objects.items() if key.startswith(start)]
        return iter([ObjectInfo(key, len(value.data), value.modified) for key, value in sorted(stored)])

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def staging(self) -> Path:
        with self._lock:
            if self._staging is None:
                self._staging = TemporaryFolder()
            return self._staging.path


_numbers = itertools.count(1)
_open_stores: weakref.WeakValueDictionary[int, MemoryStore] = weakref.WeakValueDictionary()


def _find_store(number: int) -> MemoryStore:
    """The same store after pickling: a copy would soon have other content."""
    store = _open_stores.get(number)
    if store is None:
        raise BadStoreUrl(
            f"memory://{number} is not in this process.",
            hint="Use a local folder: a store in memory cannot be sent to another process.",
            url=f"memory://{number}",
        )
    return store


# Counting


@dataclass(frozen=True)
class Counts:
    """Numbers of calls to a store, and of bytes."""

    reads: int = 0  # get, get_range and open
    bytes_read: int = 0  # by these calls; of an opened file only the bytes that were read
    local_paths: int = 0  # requested to read a file without the store
    stats: int = 0
    lists: int = 0
    listed: int = 0  # objects in the listings
    puts: int = 0  # put_if_absent, put_file, put_derived and put_derived_file
    bytes_put: int = 0
    swaps: int = 0
    deletes: int = 0

    def __sub__(self, earlier: Counts) -> Counts:
        """The calls since an earlier count."""
        return Counts(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(Counts)))


class CountingStore:
    """Wraps another store and counts the calls to it.

    `counts` is a snapshot. `keys_read` has the keys of all reads, in order. A pickled copy has its own counts.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.keys_read: list[str] = []
        self._counts = dict.fromkeys((f.name for f in fields(Counts)), 0)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return CountingStore, (self.inner,)

    @property
    def counts(self) -> Counts:
        with self._lock:
            return Counts(**self._counts)

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str) -> bytes:
        self._read(key)
        data = self.inner.get(key)
        self._add(bytes_read=len(data))
        return data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._read(key)
        data = self.inner.get_range(key, start, end)
        self._add(bytes_read=len(data))
        return data

    def stat(self, key: str) -> ObjectInfo | None:
        self._add(stats=1)
        return self.inner.stat(key)

    def open(self, key: str) -> pa.NativeFile:
        self._read(key)
        return pa.PythonFile(_CountedFile(self.inner.open(key), self), "r")

    def local_path(self, key: str) -> Path | None:
        self._add(local_paths=1)
        return self.inner.local_path(key)

    def put_if_absent(self, key: str, data: BytesLike) -> bool:
        self._add(puts=1, bytes_put=len(data))
        return self.inner.put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        self._add(puts=1, bytes_put=path.stat().st_size)
        return self.inner.put_file(key, path)

    def put_derived(self, key: str, data: BytesLike) -> None:
        self._add(puts=1, bytes_put=len(data))
        self.inner.put_derived(key, data)

    def put_derived_file(self, key: str, path: Path) -> None:
        self._add(puts=1, bytes_put=path.stat().st_size)
        self.inner.put_derived_file(key, path)

    def compare_and_swap(self, key: str, expected: bytes | None, new: BytesLike) -> bool:
        self._add(swaps=1)
        return self.inner.compare_and_swap(key, expected, new)

    def turn(self, key: str) -> AbstractContextManager[None]:
        return self.inner.turn(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._add(lists=1)
        return self._count_listed(self.inner.list(prefix))

    def _count_listed(self, objects: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in objects:
            self._add(listed=1)
            yield info

    def delete(self, key: str) -> None:
        self._add(deletes=1)
        self.inner.delete(key)

    def staging(self) -> Path:
        return self.inner.staging()

    def _read(self, key: str) -> None:
        self._add(reads=1)
        self.keys_read.append(key)

    def _add(self, **counted: int) -> None:
        with self._lock:
            for name, count in counted.items():
                self._counts[name] += count


class _CountedFile(io.RawIOBase):
    def __init__(self, file: pa.NativeFile, store: CountingStore) -> None:
        super().__init__()
        self._file = file
        self._store = store

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = self._file.read(None if size is None or size < 0 else size)
        self._store._add(bytes_read=len(data))
        return data

    def close(self) -> None:
        self._file.close()
        super().close()
