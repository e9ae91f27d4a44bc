"""The Store protocol: bytes at rest under '/'-separated keys, and the few promises the ledger stands on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from floodmark.storage.errors import BadKey

_SEGMENT_BYTES = 240  # file systems take names of 255 bytes; the rest is for the local store's lock names
_KEY_BYTES = 1024  # the longest key that S3 takes
_USUAL_KEY = re.compile(r"(?:[\w=-][\w=.-]{0,199}/)*[\w=-][\w=.-]{0,199}", re.ASCII)
_NOT_IN_A_KEY = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """The key itself, when every store can hold it; `BadKey` otherwise."""
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
    """The folder to list, without a slash at its end; '' is the whole store."""
    return check_key(prefix.removesuffix("/")) if prefix else ""


def is_segment(name: str) -> bool:
    """Whether a name can be one segment of a key: what is not belongs to the store itself, or to others."""
    return not _segment_problem(name)


def _segment_problem(segment: str) -> str:
    if segment == "":
        return "has an empty segment"
    if segment.startswith("."):
        return f"has the segment {segment!r}: names that start with '.' belong to the store itself"
    if _NOT_IN_A_KEY.search(segment):
        return f"has the segment {segment!r} with a backslash, a control character or half a character"
    if len(segment.encode()) > _SEGMENT_BYTES:
        return f"has a segment longer than {_SEGMENT_BYTES} bytes"
    return ""


def _bad_key(key: str, problem: str) -> BadKey:
    return BadKey(
        f"The key {key!r} {problem}.",
        hint="Keys are relative and '/'-separated, such as 'blocks/f1620ab'; hash what comes from outside.",
        key=key,
    )


@dataclass(frozen=True)
class ObjectInfo:
    """One stored object: its key, its size in bytes and when it was last written (epoch seconds)."""

    key: str
    size: int
    modified: float

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.key.rpartition("/")[2]


@runtime_checkable
class Store(Protocol):
    """Where a lake keeps its objects.

    Keys are relative, '/'-separated and never leave the store's root. Objects are immutable once put, with
    two exceptions: what `compare_and_swap` moves, and derived objects, which can be lost at any time.
    A store can be pickled and used by Spark's tasks.
    """

    @property
    def url(self) -> str:
        """What a user would pass to open this store again."""
        ...

    def get(self, key: str) -> bytes:
        """The object's bytes; `ObjectNotFound` when there is none."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of the object, cut short at its end."""
        ...

    def stat(self, key: str) -> ObjectInfo | None:
        """Size and age of an object, or None when there is none."""
        ...

    def open(self, key: str) -> pa.NativeFile:
        """A seekable file to read the object from, as pyarrow takes it."""
        ...

    def local_path(self, key: str) -> Path | None:
        """The object's path when Spark and pyarrow can read it as a plain file, else None."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store an object durably unless it is there already; True if this call made it.

        Either way the object is durable when the call returns, and its age is renewed.
        """
        ...

    def put_file(self, key: str, path: Path) -> bool:
        """Like `put_if_absent`, from a local file, which is gone afterwards."""
        ...

    def put_derived(self, key: str, data: bytes) -> None:
        """Store or replace an object that can be rebuilt: whole or not at all for readers, but not durable.

        After a crash it may be missing or torn, so its reader must check it.
        """
        ...

    def put_derived_file(self, key: str, path: Path) -> None:
        """Like `put_derived`, from a local file, which is gone afterwards."""
        ...

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        """Replace `expected` (None: nothing there) by `new`, durably and atomically; False if it differs.

        Raises `SwapUnknown` when the outcome cannot be known. With `expected == new` it moves nothing and
        makes sure that what is there is durable.
        """
        ...

    def turn(self, key: str) -> AbstractContextManager[None]:
        """Wait for and hold this key's turn: writers that take turns do not lose races to each other.

        Only a courtesy (a store may give everyone a turn at once); `compare_and_swap` alone decides.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with the folder `prefix`, in key order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        ...

    def staging(self) -> Path:
        """A local folder for unfinished files, from which `put_file` is cheap; who makes one removes it."""
        ...
