"""What a backfill has to do: wanted minus covered, fragment by fragment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.found import DataCheckpoint, RangeCheckpoint
from floodmark.compute.stored.manifest import Fragment, Segment

DIRECT_ROWS = 1 << 17
"""So few missing rows are one task: the first seconds of it tell whether more tasks would pay."""

FEW_SEGMENTS = 7
"""So many files of a growing fragment are left as they are."""

TASKS_PER_CORE = 2
"""How many tasks each core gets at least, before anything is known about the function's speed."""


@dataclass(frozen=True)
class Window:
    """The records of one fragment that can be read: offsets [start, end), and which addresses are wanted."""

    number: int
    start: int
    end: int
    base: int  # the offset of address 0
    full: bool  # no later record can fall into it
    live: BitMap
    asked: BitMap  # the live ones that a filter keeps
    wanted: BitMap  # those of them whose inputs are there


@dataclass(frozen=True)
class Missing:
    """Rows of one fragment that have to be computed, and why, as a sentence part."""

    rows: BitMap
    why: str


@dataclass(frozen=True)
class Target:
    """A file to write: the values of offsets [start, end), in the place of the segments that lie there."""

    start: int
    end: int
    replaced: tuple[Segment, ...]


@dataclass(frozen=True)
class FragmentPlan:
    """What becomes of one fragment: `done` rows are committed, `reused` ones lie in checkpoints, others are missing."""

    window: Window
    before: Fragment  # without the files that cannot be read any more
    lost: Fragment  # the rows that were in those
    done: BitMap
    reused: BitMap
    missing: tuple[Missing, ...]
    ranges: tuple[RangeCheckpoint, ...]
    data: tuple[DataCheckpoint, ...]
    targets: tuple[Target, ...]
    again: BitMap = field(default_factory=BitMap)  # rows that failed before: what is stored of them does not count

    @property
    def number(self) -> int:
        return self.window.number

    @property
    def to_compute(self) -> BitMap:
        return BitMap.union(*[m.rows for m in self.missing]) if self.missing else BitMap()

    @property
    def to_store(self) -> BitMap:
        """The rows that are not committed yet, computed or not."""
        return self.window.wanted - self.done

    @property
    def is_done(self) -> bool:
        return self.done >= self.window.wanted and not self.lost.segments  # a lost file is not named for ever


def plan_fragment(
    window: Window,
    before: Fragment,
    lost: Fragment,
    done: BitMap,
    reasons: Sequence[Missing],
    ranges: Sequence[RangeCheckpoint],
    data: Sequence[DataCheckpoint],
) -> FragmentPlan:
    """What is left to do when `done` is committed; `reasons` say why rows are not, the first that applies to each."""
    open_rows = window.wanted - done
    covered = BitMap.union(*[c.rows for c in ranges], *[d.done for d in data], BitMap(), BitMap())
    reused = open_rows & covered
    left = open_rows - reused
    missing = []
    for reason in reasons:
        if rows := left & reason.rows:
            missing.append(Missing(rows, reason.why))
            left -= rows
    if left:
        missing.append(Missing(left, "not computed yet"))
    used = [c for c in ranges if c.rows & reused]
    files = [d for d in data if d.done & reused]
    targets = layout(window, before.segments, open_rows)
    return FragmentPlan(
        window, before, lost, done & window.wanted, reused, tuple(missing), tuple(used), tuple(files), targets
    )


def layout(window: Window, segments: Sequence[Segment], rows: BitMap) -> tuple[Target, ...]:
    """Which files to write so that these addresses find a place.

    A full fragment becomes one file. In one that still grows, a segment is written again only if a row falls into it;
    what lies behind the last one becomes a new segment, and where there are a few already, together with those before
    it that are no larger.
    """
    if not rows:
        return ()
    if window.full:
        return (Target(window.start, window.end, tuple(segments)),)
    offsets = addresses.to_array(rows) + window.base
    holes = [Target(start, end, ()) for start, end in _holes(segments, window.start, window.end)]
    places = sorted([*holes, *[Target(s.start, s.end, (s,)) for s in segments]], key=lambda t: t.start)
    targets = [t for t in places if np.searchsorted(offsets, t.start) < np.searchsorted(offsets, t.end)]
    if targets[-1].end == window.end and not targets[-1].replaced:
        tail = _with_smaller(targets[-1], segments)
        targets = [*[t for t in targets if t.end <= tail.start], tail]
    return tuple(targets)


def _holes(segments: Sequence[Segment], start: int, end: int) -> list[tuple[int, int]]:
    """What of [start, end) no segment covers: most often only what came after the last one."""
    edges = [(start, start), *[(s.start, s.end) for s in segments], (end, end)]
    return [(a, b) for (_, a), (b, _) in pairwise(edges) if a < b]


def _with_smaller(tail: Target, segments: Sequence[Segment]) -> Target:
    if len(segments) < FEW_SEGMENTS:
        return tail
    start, replaced = tail.start, []
    for segment in reversed(segments):
        if segment.end != start or segment.end - segment.start > tail.end - start:
            break
        start = segment.start
        replaced.append(segment)
    return Target(start, tail.end, tuple(reversed(replaced)))


@dataclass(frozen=True)
class Share:
    """A task's share of a fragment: the addresses of `rows` in [start, end)."""

    fragment: int
    start: int
    end: int
    rows: BitMap
    whole: bool  # it is everything that its fragment lacks


def shares(missing: Sequence[tuple[int, BitMap]], rows_each: int) -> list[Share]:
    """The missing rows of some fragments, cut into shares of at most so many rows, in order."""
    found = []
    for fragment, rows in missing:
        cuts = addresses.cut(rows, rows_each)
        for start, end in cuts:
            part = rows & addresses.span(start, end) if len(cuts) > 1 else rows
            found.append(Share(fragment, start, end, part, len(cuts) == 1))
    return found


def rows_each(total: int, fragments: int, cores: int, most: int) -> int:
    """How many rows a task gets while nothing is known about the function's speed; `most` is what memory allows."""
    if total <= DIRECT_ROWS or fragments >= TASKS_PER_CORE * cores:
        return most
    return min(most, -(-total // (TASKS_PER_CORE * cores)))
