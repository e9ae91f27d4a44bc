"""A store that counts what is asked of another: for tests and benchmarks."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.storage.store import ObjectInfo, Store


@dataclass(frozen=True)
class Counts:
    """How often a store was asked, and for how many bytes."""

    reads: int = 0  # get, get_range and open
    bytes_read: int = 0  # through these; of an opened file only what was read
    local_paths: int = 0  # asked for by who reads a file without the store
    stats: int = 0
    lists: int = 0
    listed: int = 0  # objects that the listings gave
    puts: int = 0  # put_if_absent, put_file, put_derived and put_derived_file
    bytes_put: int = 0
    swaps: int = 0
    deletes: int = 0

    def __sub__(self, earlier: Counts) -> Counts:
        """What was asked since an earlier count."""
        return Counts(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(Counts)))


class CountingStore:
    """Another store, with counts of what it was asked for.

    `counts` is a snapshot; `keys_read` are the keys of all reads in order. A pickled copy counts for itself.
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

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._add(puts=1, bytes_put=len(data))
        return self.inner.put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        self._add(puts=1, bytes_put=path.stat().st_size)
        return self.inner.put_file(key, path)

    def put_derived(self, key: str, data: bytes) -> None:
        self._add(puts=1, bytes_put=len(data))
        self.inner.put_derived(key, data)

    def put_derived_file(self, key: str, path: Path) -> None:
        self._add(puts=1, bytes_put=path.stat().st_size)
        self.inner.put_derived_file(key, path)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        self._add(swaps=1)
        return self.inner.compare_and_swap(key, expected, new)

    def turn(self, key: str) -> AbstractContextManager[None]:
        return self.inner.turn(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._add(lists=1)
        return self._listed(self.inner.list(prefix))

    def _listed(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in found:
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
