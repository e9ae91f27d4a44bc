"""A folder in memory, for files that no disk has space for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias


class MemoryFolder:
    """Files in memory, by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def __truediv__(self, name: str) -> MemoryFile:
        return MemoryFile(self, name)


@dataclass(frozen=True)
class MemoryFile:
    """A file in memory, with the methods of a path that writers of index files need."""

    folder: MemoryFolder
    name: str

    @contextmanager
    def open(self, _: Literal["wb"]) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        self.write_bytes(content.getvalue())

    def write_bytes(self, data: bytes) -> None:
        self.folder.files[self.name] = data

    def read_bytes(self) -> bytes:
        return self.folder.files[self.name]

    def exists(self) -> bool:
        return self.name in self.folder.files


Folder: TypeAlias = Path | MemoryFolder


def rename_in(folder: Folder, old: str, new: str) -> None:
    """Give a file in a folder another name."""
    if isinstance(folder, MemoryFolder):
        folder.files[new] = folder.files.pop(old)
    else:
        (folder / old).rename(folder / new)
