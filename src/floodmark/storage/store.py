"""The `Store` protocol, which every store implements, and the check of object keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import uuid4

import pyarrow as pa

from floodmark.errors import StorageError

BytesLike: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""What every store takes as the content of an object."""

_SEGMENT_BYTES = 240  # file names have at most 255 bytes, and the local store adds a few for its locks
_KEY_BYTES = 1024  # the limit of S3
_USUAL_KEY = re.compile(r"(?:[\w=-][\w=.-]{0,199}/)*[\w=-][\w=.-]{0,199}", re.ASCII)
_NOT_IN_A_KEY = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return the key if it is valid in every store; raise `StorageError` otherwise."""
    if len(key) <= _KEY_BYTES and _USUAL_KEY.fullmatch(key):
        return key
    if not key:
        raise _bad_key(key, "is empty")
    if len(key.encode("utf-8", "surrogatepass")) > _KEY_BYTES:
        raise _bad_key(key, f"is longer than {_KEY_BYTES} bytes")
    for segment in key.split("/"):
        if problem := _segment_problem(segment):
            raise _bad_key(key, problem)
    return key


def check_prefix(prefix: str) -> str:
    """The folder to list, without a slash at the end. '' is the whole store."""
    return check_key(prefix.removesuffix("/")) if prefix else ""


def is_segment(name: str) -> bool:
    """Whether a name can be a segment of a key. Other names belong to the store itself or to other programs."""
    return not _segment_problem(name)


def _segment_problem(segment: str) -> str:
    if segment == "":
        return "has an empty segment"
    if segment.startswith("."):
        return f"has the segment {segment!r}: names that start with '.' belong to the store itself"
    if _NOT_IN_A_KEY.search(segment):
        return f"has the segment {segment!r} with a backslash, a control character or a lone surrogate"
    if len(segment.encode()) > _SEGMENT_BYTES:
        return f"has a segment longer than {_SEGMENT_BYTES} bytes"
    return ""


def _bad_key(key: str, problem: str) -> StorageError:
    return StorageError(
        f"The key {key!r} {problem}.",
        hint="Use a relative key with '/' as separator, such as 'blocks/f1620ab'; hash names from outside.",
        key=key,
    )


@dataclass(frozen=True)
class ObjectInfo:
    """One stored object: its key, its size in bytes and the time of its last write (epoch seconds)."""

    key: str
    size: int
    modified: float

    @property
    def name(self) -> str:
        """The last segment of the key."""
        return self.key.rpartition("/")[2]


@runtime_checkable
class Store(Protocol):
    """A folder or bucket that stores the objects of a lake.

    Keys are relative, '/'-separated and never leave the store's root. Objects never change, with two exceptions:
    pointers, which `compare_and_swap` replaces, and derived objects, which can be replaced or lost at any time.
    A store can be pickled, so that Spark tasks can use it.
    """

    @property
    def url(self) -> str:
        """The address that opens this store again."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of the object; `ObjectNotFound` if it does not exist."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of the object, fewer if the object ends before."""
        ...

    def stat(self, key: str) -> ObjectInfo | None:
        """Size and time of the object; None if it does not exist."""
        ...

    def open(self, key: str) -> pa.NativeFile:
        """A seekable file for pyarrow that reads the object."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The path of the object if Spark and pyarrow can read it as a plain file, else None."""
        ...

    def put_if_absent(self, key: str, data: BytesLike) -> bool:
        """Store an object durably if it does not exist; True if this call created it.

        In both cases the object is durable when the call returns, and counts as newly written.
        """
        ...

    def put_file(self, key: str, path: Path) -> bool:
        """Like `put_if_absent`, from a local file. The call removes the file."""
        ...

    def put_derived(self, key: str, data: BytesLike) -> None:
        """Store or replace an object that can be rebuilt. The write is atomic for readers, but not durable.

        After a crash the object may be missing or damaged, so its readers must check it.
        """
        ...

    def put_derived_file(self, key: str, path: Path) -> None:
        """Like `put_derived`, from a local file. The call removes the file."""
        ...

    def compare_and_swap(self, key: str, expected: bytes | None, new: BytesLike) -> bool:
        """Replace `expected` (None: no object) by `new`, durably and atomically; False if the content differs.

        Raises `SwapUnknown` if the result is unknown. With `expected == new` nothing changes, and the call makes the
        present content durable.
        """
        ...

    def turn(self, key: str) -> AbstractContextManager[None]:
        """Wait for the turn of this key and hold it. Writers that take turns do not lose races to each other.

        A turn is only a hint: a store may give turns to several writers at once. Only `compare_and_swap` decides.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects in the folder `prefix`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is not an error."""
        ...

    def staging(self) -> Path:
        """A local folder for unfinished files. `put_file` is cheap from there. The writer of a file removes it."""
        ...


def read_store_time(store: Store) -> float:
    """The store's time in epoch seconds: the time of a small object that is written and removed."""
    key = f"runs/clock-{uuid4().hex}"
    store.put_derived(key, b"")
    try:
        info = store.stat(key)
    finally:
        store.delete(key)
    assert info is not None
    return info.modified
