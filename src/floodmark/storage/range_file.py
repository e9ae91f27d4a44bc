"""A file that reads ranges of an object in a bucket."""

from __future__ import annotations

import io
from collections.abc import Callable

TAIL_BYTES = 64 * 1024  # read when a file is opened; it nearly always contains the Parquet footer
_FIRST_AHEAD = 256 * 1024
_MOST_AHEAD = 8 * 1024 * 1024


class RangeFile(io.RawIOBase):
    """A seekable, read-only file over `fetch(start, end)`, which returns the bytes [start, end).

    It keeps the tail from its opening and the last range that it fetched. A sequential read doubles the size of the
    next range. A jump resets it.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, tail: bytes) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._tail = tail
        self._tail_start = size - len(tail)
        self._ahead = _FIRST_AHEAD
        self._start = 0
        self._fetched = b""
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}, before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        count = self._size if size is None or size < 0 else size
        start = min(self._position, self._size)
        end = min(start + count, self._size)
        self._position = end
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        if not self._start <= start <= end <= self._start + len(self._fetched):
            self._fetch_from(start, end)
        return self._fetched[start - self._start : end - self._start]

    def readall(self) -> bytes:
        return self.read()

    def _fetch_from(self, start: int, end: int) -> None:
        reads_on = self._fetched and self._start <= start <= self._start + len(self._fetched)
        self._ahead = min(self._ahead * 2, _MOST_AHEAD) if reads_on else _FIRST_AHEAD
        self._fetched = self._fetch(start, min(max(end, start + self._ahead), self._size))
        self._start = start
