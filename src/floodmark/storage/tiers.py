"""Tiers of segments: when segments are merged, and how long replaced files are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KEEP_RETIRED_COMMITS = 16
"""A replaced file is kept for this many commits, because readers with an older manifest may need it."""

RetiredFiles = tuple[tuple[int, str], ...]
"""Replaced files that still exist: for each, the generation that replaced it, and its name."""


@dataclass(frozen=True)
class Tiers:
    """When segments are merged: as soon as `fan_in` of them have the same size."""

    fan_in: int = 8
    smallest: int = 4096  # all segments with fewer entries have the same size
    file_entries: int = 16 << 20  # a merge writes files of about this many entries

    def tier(self, entries: int) -> int:
        """The size class of a segment, in steps of `fan_in`."""
        number = 0
        while entries >= self.smallest:
            entries //= self.fan_in
            number += 1
        return number

    def due(self, sizes: Sequence[int]) -> int:
        """How many of the segments (newest first) must be merged into one; 1 means no merge.

        If the merged segment would be due for another merge, both are done at once, so that nothing is written twice.
        """
        count, total = 1, sizes[0]
        while True:
            tier = self.tier(total)
            same = 0
            while count + same < len(sizes) and self.tier(sizes[count + same]) <= tier:
                same += 1
            if same + 1 < self.fan_in:
                return count
            total += sum(sizes[count : count + same])
            count += same


def retire(
    before: RetiredFiles, replaced: Iterable[str], names: set[str], generation: int
) -> tuple[RetiredFiles, list[str]]:
    """Add replaced files to the retired ones. Returns the retired files to keep, and the names to delete.

    `names` are the files of the new generation. They are never retired.
    """
    retired = [*before, *((generation, name) for name in sorted(replaced))]
    retired = [(at, name) for at, name in retired if name not in names]
    oldest = generation - KEEP_RETIRED_COMMITS
    return tuple((at, n) for at, n in retired if at > oldest), [n for at, n in retired if at <= oldest]
