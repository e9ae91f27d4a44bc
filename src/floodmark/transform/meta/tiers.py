"""Merging segments of transform meta: eight of a size become one, newest entries win, within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from floodmark.ledger.keys.records import I64
from floodmark.ledger.objects import DatasetObjects
from floodmark.transform.meta.claims import collapsed
from floodmark.transform.meta.entries import U32, Entries, newest
from floodmark.transform.meta.entry_file import EntryFile, write_entries
from floodmark.transform.meta.files import ask
from floodmark.transform.meta.manifest import Manifest, Segment


@dataclass(frozen=True)
class Tiers:
    """How segments grow: when so many are of a size they become one."""

    fan_in: int = 8
    smallest: int = 4096  # segments of fewer entries are all of one size
    file_entries: int = 16 << 20  # about so many are merged at a time, and lie in one file

    def tier(self, entries: int) -> int:
        """The size of a segment, in steps of `fan_in`."""
        number = 0
        while entries >= self.smallest:
            entries //= self.fan_in
            number += 1
        return number

    def together(self, sizes: Sequence[int]) -> int:
        """How many of the newest segments (the one about to be written is the first) become one; 1 when none do.

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


TIERS = Tiers()


def size_of(segment: Segment) -> int:
    """How many entries a segment has."""
    return sum(file.entries for file in segment)


def with_entries(
    objects: DatasetObjects, folder: Path, manifest: Manifest, entries: Entries, salt: str, tiers: Tiers
) -> tuple[Manifest, list[EntryFile]]:
    """The manifest with more entries on top, after those merges that are due, and the files written to the folder.

    The manifest is that of the commit being prepared: it knows the run of the entries and the positions that hold
    once they are committed.
    """
    if len(entries) == 0:
        return manifest, []
    count = tiers.together([len(entries), *map(size_of, manifest.segments)]) - 1
    if count == 0:
        starts = range(0, len(entries), tiers.file_entries)
        files = [write_entries(folder, entries.take(slice(s, s + tiers.file_entries)), salt) for s in starts]
    else:
        merged = manifest.segments[:count]
        numbers = {int(entries.run[0])} | {n for segment in merged for file in segment for n in file.runs}
        one = collapsed({n: manifest.runs[n] for n in numbers}, manifest.positions, manifest.next_run)
        files = [
            write_entries(folder, replace(some, run=_renumbered(some.run, one.number_of)), salt)
            for some in newest_entries(objects, [entries], merged, tiers)
        ]
        runs = {**manifest.runs, **one.runs}
        manifest = replace(manifest, runs=runs, next_run=max(runs) + 1)
    manifest = replace(manifest, segments=(tuple(files), *manifest.segments[count:]))
    # A run that no entry refers to any more claims nothing.
    return replace(manifest, runs={n: run for n, run in manifest.runs.items() if n in manifest.referred}), files


def newest_entries(
    objects: DatasetObjects, above: Sequence[Entries], segments: Sequence[Segment], tiers: Tiers
) -> Iterator[Entries]:
    """The newest entry of each key, sorted, some at a time; `above` are entries newer than the segments."""
    total = sum(map(len, above)) + sum(map(size_of, segments))
    # Hashes are spread evenly, so equal ranges of them are about equal numbers of entries.
    parts = max(1, -(-total // tiers.file_entries))
    bounds = np.array([(part << 64) // parts for part in range(1, parts)], np.uint64)
    files = [file for segment in segments for file in segment]
    above_cuts = [
        _cuts(np.searchsorted(entries.hashes.high, bounds).astype(np.int64), len(entries)) for entries in above
    ]
    file_cuts = [_cuts(ask(objects, file, lambda opened: opened.cut(bounds)), file.entries) for file in files]
    for part in range(parts):
        slices = [entries.take(slice(*cuts[part])) for entries, cuts in zip(above, above_cuts, strict=True)]
        for file, cuts in zip(files, file_cuts, strict=True):
            start, end = cuts[part]
            slices.append(ask(objects, file, lambda opened, s=start, e=end: opened.slice(s, e)))  # type: ignore[misc]
        if some := [entries for entries in slices if len(entries)]:
            yield newest(some)


def _cuts(inner: I64, end: int) -> list[tuple[int, int]]:
    edges = [0, *inner.tolist(), end]
    return list(pairwise(edges))


def _renumbered(run: U32, number_of: Mapping[int, int]) -> U32:
    old = np.array(sorted(number_of), np.uint32)
    new = np.array([number_of[int(number)] for number in old], np.uint32)
    renumbered: U32 = new[np.searchsorted(old, run)]
    return renumbered
