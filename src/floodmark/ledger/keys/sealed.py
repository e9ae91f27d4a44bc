"""Sealed files of the key index: documents whose name carries the digest of their header.

One name is one content, whoever wrote it. A file that is torn, damaged or somebody else's does not fit its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.ledger.errors import BadIndex
from floodmark.storage import document
from floodmark.storage.document import Damaged, Document

_KIND = "key index file"


@dataclass
class Sealed:
    """An opened file whose header is right; sections are checked when they are read."""

    name: str
    _document: Document = field(repr=False)

    @property
    def meta(self) -> dict[str, Any]:
        return self._document.facts

    def section(self, name: str) -> memoryview:
        try:
            return self._document.section(name)
        except Damaged as error:
            raise bad(self.name, error.problem) from error

    def array(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.frombuffer(self.section(name), dtype)


def write_sealed(folder: Path, stem: str, suffix: str, meta: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Write a file into the folder; its name, which begins with `stem` and ends in `suffix`."""
    data = document.encode(_KIND, 1, meta, sections)
    name = f"{stem}-{document.header_digest(data)}{suffix}"
    (folder / name).write_bytes(data)
    return name


def open_sealed(name: str, data: memoryview) -> Sealed:
    """The file of this name; `BadIndex` when its header is not the one that the name says."""
    try:
        found = document.decode(data, _KIND, name)
    except Damaged as error:
        raise bad(name, error.problem) from error
    if document.header_digest(data) != name.rpartition(".")[0].rpartition("-")[2]:
        raise bad(name, "its header does not fit its name")
    return Sealed(name, found)


def bad(name: str, problem: str) -> BadIndex:
    return BadIndex(
        f"the file {name!r} of the key index cannot be used: {problem}",
        hint="nothing is lost: the index is made again from the records",
        file=name,
    )
