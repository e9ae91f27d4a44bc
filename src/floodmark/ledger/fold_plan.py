"""Which files a fold rewrites: those with dead records, and small ones that lie side by side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.ledger.selection import DataFile


@dataclass(frozen=True)
class Rule:
    """How large folded files become, and from which part of dead records on a file is rewritten."""

    target_bytes: int = 128 << 20
    target_rows: int = 1 << 22
    dead_part: float = 0.0  # zero: any dead record

    def is_small(self, rows: int, size: int) -> bool:
        """Whether a file of living records would be quicker to read together with its neighbours."""
        return size < self.target_bytes // 2 and rows < self.target_rows // 4


@dataclass(frozen=True)
class Window:
    """Neighbouring files that become one: those at positions [first, last)."""

    first: int
    last: int


def plan(files: Sequence[DataFile], dead_rows: Sequence[int], rule: Rule) -> list[Window]:
    """The windows to rewrite, in order; `dead_rows` says how many dead records each file holds.

    A large file without dead records stays where it is, and so does a small one between two of those.
    """
    windows: list[Window] = []
    first, rows, size, needed = 0, 0, 0, False

    def close(last: int) -> None:
        # One file by itself is rewritten only to be rid of its dead.
        if needed or last - first > 1:
            windows.append(Window(first, last))

    for i, (file, dead) in enumerate(zip(files, dead_rows, strict=True)):
        living = file.rows - dead
        living_size = file.size * living // max(file.rows, 1)
        dirty = dead > 0 and dead >= rule.dead_part * file.rows
        joins = dirty or rule.is_small(living, living_size)
        fits = rows + living <= rule.target_rows and size + living_size <= rule.target_bytes
        if not (joins and fits):
            close(i)
            first, rows, size, needed = (i if joins else i + 1), 0, 0, False
        if joins:
            rows, size, needed = rows + living, size + living_size, needed or dirty
    close(len(files))
    return windows
