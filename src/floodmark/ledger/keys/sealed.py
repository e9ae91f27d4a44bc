"""Sealed files: named sections behind a header with their digests; the file's name carries the header's digest.

One name is one content, whoever wrote it. A file that is torn, damaged or somebody else's does not fit its name.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.ledger.errors import BadIndex

MAGIC = b"FMKEYS1\n"
_PREFIX = struct.Struct("<8sQ")
_ALIGNMENT = 8


@dataclass
class Sealed:
    """An opened file whose header is right; sections are checked when they are read."""

    name: str
    meta: dict[str, Any]
    _sections: dict[str, tuple[int, int, str]]
    _data: memoryview = field(repr=False)

    def section(self, name: str) -> memoryview:
        start, length, digest = self._sections[name]
        data = self._data[start : start + length]
        if len(data) != length or _digest(data) != digest:
            raise bad(self.name, f"its section {name!r} is damaged")
        return data

    def array(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.frombuffer(self.section(name), dtype)


def write_sealed(folder: Path, stem: str, suffix: str, meta: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Write a file into the folder; its name, which begins with `stem` and ends in `suffix`."""
    views = {name: memoryview(section).cast("B") for name, section in sections.items()}
    lengths = [[name, len(view), _digest(view)] for name, view in views.items()]
    header = json.dumps({"meta": dict(meta), "sections": lengths}, sort_keys=True).encode()
    name = f"{stem}-{_digest(header)}{suffix}"
    with (folder / name).open("wb") as file:
        file.write(_PREFIX.pack(MAGIC, len(header)))
        file.write(header.ljust(_aligned(len(header))))
        for view in views.values():
            file.write(view)
            file.write(b"\0" * (_aligned(len(view)) - len(view)))
    return name


def open_sealed(name: str, data: memoryview) -> Sealed:
    """The file of this name; `BadIndex` when its header is not the one that the name says."""
    if len(data) < _PREFIX.size:
        raise bad(name, "it is cut short")
    magic, length = _PREFIX.unpack_from(data)
    header = bytes(data[_PREFIX.size : _PREFIX.size + length]) if length < len(data) else b""
    if magic != MAGIC or _digest(header) != name.rpartition(".")[0].rpartition("-")[2]:
        raise bad(name, "its header does not fit its name")
    parsed = json.loads(header)
    at = _PREFIX.size + _aligned(length)
    sections = {}
    for section, size, digest in parsed["sections"]:
        sections[section] = (at, size, digest)
        at += _aligned(size)
    return Sealed(name, parsed["meta"], sections, data)


def bad(name: str, problem: str) -> BadIndex:
    return BadIndex(
        f"the file {name!r} of the key index cannot be used: {problem}",
        hint="nothing is lost: the index is made again from the records",
        file=name,
    )


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
