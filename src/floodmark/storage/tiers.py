"""Tiers of segments: which are merged, and how long replaced files stay. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HISTORY = 16
"""A file that was replaced stays for this many commits: readers with an older manifest may need it."""

Retired = tuple[tuple[int, str], ...]
"""Files that were replaced and are still there: the generation that replaced each, and its name."""


@dataclass(frozen=True)
class Tiers:
    """When segments are merged: as soon as `fan_in` of them are of one size."""

    fan_in: int = 8
    smallest: int = 4096  # segments of fewer entries are all of one size
    file_entries: int = 16 << 20  # about this many are merged at a time, and lie in one file

    def tier(self, entries: int) -> int:
        """The size of a segment, in steps of `fan_in`."""
        number = 0
        while entries >= self.smallest:
            entries //= self.fan_in
            number += 1
        return number

    def due(self, sizes: Sequence[int]) -> int:
        """How many of the segments (newest first) become one; 1 when none do.

        A merge that makes another one due is done together with it, so that nothing is written twice.
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


def retire(before: Retired, replaced: Iterable[str], names: set[str], generation: int) -> tuple[Retired, list[str]]:
    """The retired files once a generation with these names has replaced others, and those that can be deleted."""
    retired = [*before, *((generation, name) for name in sorted(replaced))]
    retired = [(at, name) for at, name in retired if name not in names]
    oldest = generation - HISTORY
    return tuple((at, n) for at, n in retired if at > oldest), [n for at, n in retired if at <= oldest]
