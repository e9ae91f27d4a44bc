"""Checksums of Parquet files that cover every byte: of each page, of all page headers, and of the tail.

The tail is everything after the last page: the indexes and the footer. A slice has all of these checksums in its own
footer, because not every event of a chain has room for them. Of other files the manifest has the checksum of the tail.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zlib
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.chain.ids import Multihash
from floodmark.errors import BadId
from floodmark.storage.range_file import TAIL_BYTES
from floodmark.storage.store import Store

ReadAt = Callable[[int, int], bytes]
"""Reads the bytes [start, end) of a file."""

# Writing


class _HashingFile(io.RawIOBase):
    """A new file that hashes the bytes written to it, so that no slice is read again to compute its name."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hasher = hashlib.sha3_256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hasher.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()

    def digest(self) -> bytes:
        return self._hasher.digest()


_LARGEST_HEADER = 256
"""In bytes. Headers have about 30, because statistics are in the page index."""


class PagesFile(_HashingFile):
    """A `_HashingFile` for pages with checksums: it also records the positions of the page headers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bounds: list[int] = []
        self._headers_checksum = 0
        self.pages_end = 0
        self.tail_checksum = 0

    def write(self, data: Any) -> int:
        start = self.size
        written = super().write(data)
        if self.pages_end:
            self.tail_checksum = zlib.crc32(data, self.tail_checksum)
        elif written <= _LARGEST_HEADER:  # each header is one write; this includes small pages, which is harmless
            self._headers_checksum = zlib.crc32(data, self._headers_checksum)
            if self._bounds and self._bounds[-1] == start:
                self._bounds[-1] = self.size
            else:
                self._bounds += [start, self.size]
        return written

    def end_of_pages(self) -> PageHeaders:
        """The headers of all pages. The bytes written after this call are the tail of the file."""
        self.pages_end = self.size
        return PageHeaders(np.array(self._bounds, np.int64), self._headers_checksum)


class SealedPagesFile(PagesFile):
    """A file of pages whose footer has its checksums, among them the one of the tail that contains the footer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tail = bytearray()

    def write(self, data: Any) -> int:
        if not self.pages_end:
            return super().write(data)
        before = len(self._tail)
        self._tail += memoryview(data)
        return len(self._tail) - before

    def close(self) -> None:
        tail, self._tail = self._tail, bytearray()
        try:
            if tail:
                super().write(_sealed(tail))
        finally:
            super().close()


# Page headers

HEADERS_KEY = b"floodmark.page-headers"
"""The key of the page headers in the footer of a file."""

_CHECKSUM_BYTES = 4
_MOST_BYTES = 1 << 28
"""The most bytes of positions that are read: those of 30 million pages."""


@dataclass(frozen=True)
class PageHeaders:
    """The positions of the page headers of a file, and the CRC-32 of all of them in order."""

    bounds: npt.NDArray[np.int64]  # start, end, start, end, …
    checksum: int

    def encode(self) -> bytes:
        """As text for a footer. The gaps between positions are small numbers, which compress well."""
        gaps = np.diff(self.bounds, prepend=0).astype("<u4")
        return b64encode(self.checksum.to_bytes(_CHECKSUM_BYTES, "little") + zlib.compress(gaps.tobytes()))

    @staticmethod
    def decode(text: bytes) -> PageHeaders:
        data = b64decode(text, validate=True)
        inflater = zlib.decompressobj()
        try:
            gaps = np.frombuffer(inflater.decompress(data[_CHECKSUM_BYTES:], _MOST_BYTES), "<u4")
        except zlib.error as error:
            raise ValueError(f"its page headers cannot be read: {error}") from error
        if not inflater.eof or len(gaps) % 2:
            raise ValueError("its page headers cannot be read")
        return PageHeaders(np.cumsum(gaps, dtype=np.int64), int.from_bytes(data[:_CHECKSUM_BYTES], "little"))

    def are_in(self, path: Path) -> bool:
        """Whether the file has these headers. Only the headers are read."""
        with path.open("rb", buffering=0) as file:
            return self.are_at(_reader_of(file.fileno()))

    def are_at(self, read: ReadAt) -> bool:
        """The same, for any file."""
        checksum = 0
        for start, end in self.bounds.reshape(-1, 2).tolist():
            checksum = zlib.crc32(read(start, end), checksum)
        return checksum == self.checksum


def _reader_of(descriptor: int) -> ReadAt:
    return lambda start, end: os.pread(descriptor, end - start, start)


# Sealed files: the checksums are in the footer

SEAL_KEY = b"floodmark.checksums"
"""The key of the checksums in the footer of a slice: length and CRC-32 of the tail, in hex, then the page headers."""

_NUMBER = 8  # digits
_NUMBERS = 2 * _NUMBER


def blank_seal(headers: PageHeaders) -> bytes:
    """The value of `SEAL_KEY` while the footer is written. It must be the last value of the footer's metadata."""
    return b"0" * _NUMBERS + headers.encode()


def _sealed(tail: bytearray) -> bytearray:
    """The tail with its length and checksum, which is that of the tail with zeros in place of the checksum."""
    place = _seal_in(tail)
    if place is not None:
        start = place[0]
        tail[start : start + _NUMBER] = b"%08x" % len(tail)
        tail[start + _NUMBER : start + _NUMBERS] = b"%08x" % zlib.crc32(tail)
    return tail


def _seal_in(tail: bytes | bytearray) -> tuple[int, int] | None:
    """Where the value of the seal is; None if there is none.

    The footer is not parsed, because it may be damaged. Thrift stores a string as 0x18, its length, its bytes.
    """
    at = tail.rfind(SEAL_KEY)
    if at < 0 or tail[at + len(SEAL_KEY) : at + len(SEAL_KEY) + 1] != b"\x18":
        return None
    at += len(SEAL_KEY) + 1
    length, shift = 0, 0
    while at < len(tail) and shift < 35:
        byte = tail[at]
        at, length, shift = at + 1, length | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return (at, length) if _NUMBERS <= length <= len(tail) - at else None
    return None


def check_slice(store: Store, key: str, size: int | None = None) -> None:
    """Raise `OSError` for a slice that was changed outside of its pages, or does not have the given size.

    Pages are checked when they are read. A local file is checked once while it stays unchanged. In a bucket the page
    headers of files above 64 KB are not checked: each would be a request.
    """
    path = store.local_path(key)
    if path is None:
        with store.open(key) as file:
            check_open_slice(store, key, file, size)
        return
    with path.open("rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        check_size(key, found.st_size, size)
        identity = (str(path), found.st_size, found.st_mtime_ns, found.st_ino)
        if identity not in _CHECKED:
            read = _reader_of(file.fileno())
            _check_headers(key, _page_headers(key, found.st_size, read), read)
            _CHECKED.add(identity)


def check_open_slice(store: Store, key: str, file: pa.NativeFile, expected: int | None = None) -> None:
    """The same for a slice in a bucket, of which opening has read the tail. The position is at the start afterwards."""

    def read(start: int, end: int) -> bytes:
        file.seek(start)
        return bytes(file.read(end - start))

    size = file.size()
    check_size(key, size, expected)
    identity = (store.url, key, size)
    if identity not in _CHECKED:
        headers = _page_headers(key, size, read)
        if headers is None:
            _CHECKED.add(identity)  # all bytes were read, which should not happen again
        elif size <= TAIL_BYTES:
            _check_headers(key, headers, read)
    file.seek(0)


def check_size(key: str, actual: int, expected: int | None) -> None:
    """Raise `OSError` for a file that has another size than when it was committed, if that is known."""
    if expected is not None and actual != expected:
        raise OSError(f"{key} has {actual} bytes, but had {expected} when it was committed")


def _check_headers(key: str, headers: PageHeaders | None, read: ReadAt) -> None:
    if headers is not None and not headers.are_at(read):
        raise OSError(f"the pages of {key} were changed or damaged")


def _page_headers(key: str, size: int, read: ReadAt) -> PageHeaders | None:
    """The page headers in the footer of a slice, which is checked.

    None for a file without checksums: another program wrote it, or its footer is damaged. All its bytes are hashed.
    """
    tail = read(max(size - TAIL_BYTES, 0), size)
    footer = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < footer <= size:
        tail = read(size - footer, size)
    place = _seal_in(tail)
    if place is None:
        _check_hash(key, size, read)
        return None
    start = place[0] - len(tail)  # from the end
    try:
        length, checksum = (int(tail[start + n : start + n + _NUMBER], 16) for n in (0, _NUMBER))
        if not -start < length <= size:
            raise ValueError
        whole = bytearray(tail[-length:] if length <= len(tail) else read(size - length, size))
        whole[start + _NUMBER : start + _NUMBERS] = b"0" * _NUMBER
        if zlib.crc32(whole) != checksum:
            raise ValueError
        value = whole[start:]
        return PageHeaders.decode(bytes(value[_NUMBERS : place[1]]))
    except ValueError as error:
        raise OSError(f"the footer of {key} was changed or damaged") from error


def _check_hash(key: str, size: int, read: ReadAt) -> None:
    """Check all bytes of a file against its name."""
    try:
        expected = Multihash.parse(key.rpartition("/")[2])
    except BadId as error:
        raise OSError(f"{key} has no checksums, and no hash in its name") from error
    hasher = hashlib.sha3_256()
    for start in range(0, size, _CHUNK):
        hasher.update(read(start, min(start + _CHUNK, size)))
    if hasher.digest() != expected.digest:
        raise OSError(f"{key} does not match the hash in its name")


_CHUNK = 8 << 20


MAX_CHECKED = 1 << 13
"""The most slices of which it is remembered that they were checked."""


class _Identities:
    """The newest identities of files that were checked."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, identity: Hashable) -> bool:
        return identity in self._known

    def add(self, identity: Hashable) -> None:
        with self._lock:
            self._known[identity] = None
            while len(self._known) > MAX_CHECKED:
                self._known.popitem(last=False)


_CHECKED = _Identities()
