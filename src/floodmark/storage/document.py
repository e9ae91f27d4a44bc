"""Documents: JSON facts and binary sections in one checked envelope. Every file of ours but Parquet and blocks is one.

The envelope is a fixed prefix, a JSON header, and the sections. The prefix has the header's digest, and the header has
the digest of each section. A reader checks the header at once, and a section when it takes it.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = b"FMD1"
_PREFIX = struct.Struct("<4sI16s")  # magic, bytes of the header, its digest
_SECTION_DIGEST_BYTES = 12


class Damaged(Exception):
    """Bytes that are torn, damaged, or not the document that was asked for."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


@dataclass(frozen=True)
class Document:
    """A document whose header is right."""

    key: str
    version: int
    facts: dict[str, Any]
    _sections: dict[str, tuple[int, int, str]] = field(repr=False)
    _data: memoryview = field(repr=False)

    @property
    def sections(self) -> tuple[str, ...]:
        return tuple(self._sections)

    def section(self, name: str) -> memoryview:
        """The bytes of a section, not copied; `Damaged` when they are not those that were written."""
        start, length, digest = self._sections[name]
        data = self._data[start : start + length]
        if _section_digest(data) != digest:
            raise Damaged(self.key, f"its section {name!r} does not have its checksum")
        return data

    def array(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A section as an array, not copied."""
        return np.frombuffer(self.section(name), dtype)


def encode(
    kind: str, version: int, facts: Mapping[str, Any], sections: Mapping[str, Any] | None = None, align: int = 8
) -> bytes:
    """A document as bytes. Equal input gives equal bytes. Each section begins at a multiple of `align` bytes."""
    views = {name: memoryview(section).cast("B") for name, section in (sections or {}).items()}
    lengths = [[name, len(view), _section_digest(view)] for name, view in views.items()]
    header = _dumps([kind, version, facts, lengths, align])
    parts: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, len(header), _digest(header)), header]
    at = _PREFIX.size + len(header)
    for view in views.values():
        parts += [bytes(-at % align), view]
        at += -at % align + len(view)
    return b"".join(parts)


def decode(data: bytes | memoryview, kind: str, key: str, version: int = 1) -> Document:
    """The document of this kind that these bytes are; `Damaged` for any other bytes."""
    view = memoryview(data).cast("B")
    header = _checked_header(view, key)
    present_kind, present_version, facts, lengths, align = json.loads(header)
    if present_kind != kind:
        raise Damaged(key, f"it is a {present_kind}, not a {kind}")
    if present_version > version:
        raise Damaged(key, f"its format {present_version} is newer than this release, which reads {version}")
    at = _PREFIX.size + len(header)
    sections = {}
    for name, length, digest in lengths:
        start = at + -at % align
        if any(view[at:start]):
            raise Damaged(key, f"there are bytes before its section {name!r}")
        sections[name] = (start, length, digest)
        at = start + length
    if at != len(view):
        raise Damaged(key, f"it has {len(view)} bytes instead of {at}")
    return Document(key, present_version, facts, sections, view)


def decode_named(data: bytes | memoryview, kind: str, name: str, digest: str = "") -> Document:
    """The document whose header has this digest; when none is given, the file's name ends in `-DIGEST.suffix`."""
    found = decode(data, kind, name)
    if header_digest(data) != (digest or name.rpartition(".")[0].rpartition("-")[2]):
        raise Damaged(name, "its header does not fit its name")
    return found


def header_digest(data: bytes | memoryview) -> str:
    """The digest of a document's header, which covers every byte of the document: its name where content names it."""
    _, _, digest = _PREFIX.unpack_from(data)
    return bytes(digest).hex()


def _checked_header(view: memoryview, key: str) -> bytes:
    if len(view) < _PREFIX.size:
        raise Damaged(key, "it is empty" if len(view) == 0 else "it is cut short")
    magic, length, digest = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise Damaged(key, "it is no document of this program, or of another format")
    header = bytes(view[_PREFIX.size : _PREFIX.size + length])
    if len(header) != length or _digest(header) != digest:
        raise Damaged(key, "its header does not have its checksum")
    return header


def _dumps(header: list[Any]) -> bytes:
    return json.dumps(header, separators=(",", ":"), sort_keys=True, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Bytes as hex, objects as their fields (quicker than `asdict`, which copies all of them first)."""
    return value.hex() if isinstance(value, bytes) else vars(value)


def _digest(data: Any) -> bytes:
    return hashlib.sha256(data).digest()[:16]  # processors compute SHA-256: 2.4 times as fast as BLAKE2b


def _section_digest(data: Any) -> str:
    return hashlib.sha256(data).digest()[:_SECTION_DIGEST_BYTES].hex()
