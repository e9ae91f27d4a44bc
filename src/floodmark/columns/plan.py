"""The options of a backfill, and its plan: wanted rows minus covered rows, by fragment. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from floodmark.columns.checkpoints import DataCheckpoint, RangeCheckpoint
from floodmark.columns.manifest import ColumnSegment, Fragment
from floodmark.errors import BadOption
from floodmark.functions.udf import Udf
from floodmark.ledger.scan import Where
from floodmark.ledger.selection import NO_OFFSETS
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

SINGLE_TASK_ROWS = 1 << 17
"""Up to this many missing rows are one task. Its first seconds show whether more tasks are worth it."""

MAX_SMALL_SEGMENTS = 7
"""A fragment that still grows may have this many files. With more, smaller ones are merged into the new file."""

TASKS_PER_CORE = 2
"""The minimum number of tasks per core while the speed of the function is unknown."""


@dataclass(frozen=True)
class FragmentWindow:
    """The readable records of one fragment, with offsets [start, end), and the addresses that are wanted."""

    number: int
    start: int
    end: int
    base: int  # the offset of address 0
    full: bool  # later records cannot be in it
    live: BitMap
    asked: BitMap  # the live addresses that the filter keeps
    wanted: BitMap  # those of them whose inputs are computed


@dataclass(frozen=True)
class MissingRows:
    """Rows of one fragment that must be computed, and the reason, as a clause."""

    rows: BitMap
    why: str


@dataclass(frozen=True)
class CarriedRows:
    """Rows of one fragment that take over a value, ascending, and for each the offset of the record that has it."""

    addresses: I64 = field(default_factory=lambda: NO_OFFSETS)
    sources: I64 = field(default_factory=lambda: NO_OFFSETS)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def rows(self) -> BitMap:
        return row_sets.from_array(self.addresses)


@dataclass(frozen=True)
class StoredResults:
    """The stored results of a fragment: those of readable committed files, of finished files and of checkpoints."""

    committed: Fragment
    data: tuple[DataCheckpoint, ...] = ()
    ranges: tuple[RangeCheckpoint, ...] = ()

    @property
    def number(self) -> int:
        return self.committed.number

    @property
    def uncommitted(self) -> BitMap:
        """The rows that finished files and checkpoints have."""
        return BitMap.union(BitMap(), BitMap(), *[d.done for d in self.data], *[r.rows for r in self.ranges])


@dataclass(frozen=True)
class TargetFile:
    """A file to write with the values of offsets [start, end). It replaces the segments in this range."""

    start: int
    end: int
    replaced: tuple[ColumnSegment, ...]


@dataclass(frozen=True)
class FragmentPlan:
    """The plan of one fragment: `done` rows are committed, `reused` rows are in checkpoints, `carried` rows take over
    the value of the record that they replaced, others are missing.
    """

    window: FragmentWindow
    before: Fragment  # without the files that can no longer be read
    lost: Fragment  # those files and their rows
    done: BitMap
    reused: BitMap
    missing: tuple[MissingRows, ...]
    ranges: tuple[RangeCheckpoint, ...]
    data: tuple[DataCheckpoint, ...]
    targets: tuple[TargetFile, ...]
    again: BitMap = field(default_factory=BitMap)  # rows that failed before: their stored results do not count
    carried: CarriedRows = field(default_factory=CarriedRows)
    sources: tuple[StoredResults, ...] = ()  # that have the values to take over
    listed: StoredResults | None = None  # what the finder found; None if it was not asked

    @property
    def number(self) -> int:
        return self.window.number

    @property
    def to_compute(self) -> BitMap:
        return BitMap.union(*[m.rows for m in self.missing]) if self.missing else BitMap()

    @property
    def carried_rows(self) -> BitMap:
        """The rows that take over a value in this run, or did so in one that ended before its commit."""
        before = BitMap.union(BitMap(), BitMap(), *[found.rows for found in self.ranges if found.carried])
        return self.carried.rows | (before & self.reused)

    def carrying(self, carried: CarriedRows, sources: Sequence[StoredResults]) -> FragmentPlan:
        """The plan in which these missing rows take over values."""
        missing = self._without(carried.rows)
        return replace(self, carried=carried, sources=tuple(sources), missing=missing)

    def carried_only(self, rows: BitMap) -> FragmentPlan:
        """The plan after only these rows took over values. The function is called for the others."""
        if lost := self.carried.rows - rows:
            left = np.isin(self.carried.addresses, row_sets.to_array(rows))
            carried = CarriedRows(self.carried.addresses[left], self.carried.sources[left])
            why = "the value of the record that they replaced cannot be read"
            return replace(self, carried=carried, missing=(*self.missing, MissingRows(lost, why)))
        return self

    def _without(self, rows: BitMap) -> tuple[MissingRows, ...]:
        return tuple(replace(m, rows=left) for m in self.missing if (left := m.rows - rows))

    @property
    def to_store(self) -> BitMap:
        """The wanted rows that are not committed yet, whether computed or not."""
        return self.window.wanted - self.done

    @property
    def is_done(self) -> bool:
        return self.done >= self.window.wanted and not self.lost.segments  # a commit must remove the lost files


def plan_fragment(
    window: FragmentWindow,
    before: Fragment,
    lost: Fragment,
    done: BitMap,
    reasons: Sequence[MissingRows],
    ranges: Sequence[RangeCheckpoint],
    data: Sequence[DataCheckpoint],
) -> FragmentPlan:
    """Plan a fragment whose `done` rows are committed. Each missing row gets the first of the `reasons` that has it."""
    open_rows = window.wanted - done
    covered = BitMap.union(*[c.rows for c in ranges], *[d.done for d in data], BitMap(), BitMap())
    reused = open_rows & covered
    left = open_rows - reused
    missing = []
    for reason in reasons:
        if rows := left & reason.rows:
            missing.append(MissingRows(rows, reason.why))
            left -= rows
    if left:
        missing.append(MissingRows(left, "not computed yet"))
    used = [c for c in ranges if c.rows & reused]
    files = [d for d in data if d.done & reused]
    targets = plan_files(window, before.segments, open_rows)
    return FragmentPlan(
        window, before, lost, done & window.wanted, reused, tuple(missing), tuple(used), tuple(files), targets
    )


def plan_files(window: FragmentWindow, segments: Sequence[ColumnSegment], rows: BitMap) -> tuple[TargetFile, ...]:
    """Which files to write for these addresses.

    A full fragment becomes one file. In a fragment that still grows, a segment is written again only if one of the rows
    is in it. Rows after the last segment become a new segment. If there are many segments already, the new one also
    replaces preceding segments that are not larger than it.
    """
    if not rows:
        return ()
    if window.full:
        return (TargetFile(window.start, window.end, tuple(segments)),)
    offsets = row_sets.to_array(rows) + window.base
    holes = [TargetFile(start, end, ()) for start, end in _holes(segments, window.start, window.end)]
    places = sorted([*holes, *[TargetFile(s.start, s.end, (s,)) for s in segments]], key=lambda t: t.start)
    targets = [t for t in places if np.searchsorted(offsets, t.start) < np.searchsorted(offsets, t.end)]
    if targets[-1].end == window.end and not targets[-1].replaced:
        tail = _with_smaller(targets[-1], segments)
        targets = [*[t for t in targets if t.end <= tail.start], tail]
    return tuple(targets)


def _holes(segments: Sequence[ColumnSegment], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that no segment covers: usually only the end."""
    edges = [(start, start), *[(s.start, s.end) for s in segments], (end, end)]
    return [(a, b) for (_, a), (b, _) in pairwise(edges) if a < b]


def _with_smaller(tail: TargetFile, segments: Sequence[ColumnSegment]) -> TargetFile:
    if len(segments) < MAX_SMALL_SEGMENTS:
        return tail
    start, replaced = tail.start, []
    for segment in reversed(segments):
        if segment.end != start or segment.end - segment.start > tail.end - start:
            break
        start = segment.start
        replaced.append(segment)
    return TargetFile(start, tail.end, tuple(reversed(replaced)))


@dataclass(frozen=True)
class Share:
    """A task's share of a fragment: the addresses of `rows` in [start, end)."""

    fragment: int
    start: int
    end: int
    rows: BitMap
    whole: bool  # it has all missing rows of its fragment


def split_shares(missing: Sequence[tuple[int, BitMap]], rows_each: int) -> list[Share]:
    """The missing rows of some fragments, cut into shares of at most `rows_each` rows, in order."""
    found = []
    for fragment, rows in missing:
        cuts = row_sets.cut(rows, rows_each)
        for start, end in cuts:
            part = rows & row_sets.span(start, end) if len(cuts) > 1 else rows
            found.append(Share(fragment, start, end, part, len(cuts) == 1))
    return found


def estimate_task_rows(total: int, fragments: int, cores: int, most: int) -> int:
    """How many rows a task gets while the speed of the function is unknown. `most` is the limit."""
    if total <= SINGLE_TASK_ROWS or fragments >= TASKS_PER_CORE * cores:
        return most
    return min(most, -(-total // (TASKS_PER_CORE * cores)))


# Options

_SIZES = ("checkpoint_size", "min_checkpoint_size", "max_checkpoint_size", "task_size", "commit_granularity")


@dataclass(frozen=True)
class BackfillOptions:
    """The options of a backfill. None means that the function's option or a measured value is used."""

    where: Where = None
    checkpoint_size: int | None = None
    min_checkpoint_size: int | None = None
    max_checkpoint_size: int | None = None
    task_size: int | None = None
    commit_granularity: int = 64
    retry_errors: bool = False
    target_seconds: float = 10.0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # the id of this backfill

    def __post_init__(self) -> None:
        for name in _SIZES:
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
                raise BadOption(f"{name} is {given!r}", hint="choose a whole number, at least 1", size=given)

    def checkpoint_sizes(self, udf: Udf, rows: int) -> tuple[int, int]:
        """The smallest and the largest checkpoint, in rows. These options take precedence over the function's."""
        given = (self.checkpoint_size, self.min_checkpoint_size, self.max_checkpoint_size)
        return checkpoint_bounds(*given, udf.min_checkpoint_size, udf.max_checkpoint_size, rows)


def checkpoint_bounds(
    checkpoint_size: int | None,
    min_: int | None,
    max_: int | None,
    udf_min: int | None,
    udf_max: int | None,
    rows: int,
) -> tuple[int, int]:
    """The smallest and the largest checkpoint of a backfill of `rows` rows.

    `checkpoint_size`, `min_` and `max_` come from the call. They take precedence over the function's own sizes, also
    where the two contradict each other. The largest size is at most `checkpoint_size`, or else the number of rows.
    """
    given = {"checkpoint_size": checkpoint_size, "min_checkpoint_size": min_, "max_checkpoint_size": max_}
    for name, value in (*given.items(), ("min_checkpoint_size", udf_min), ("max_checkpoint_size", udf_max)):
        if value is not None:
            _check(name, value)
    _check_order(udf_min, udf_max)
    caps = [size for size in (checkpoint_size, max_) if size is not None]
    _check_order(min_, min(caps, default=None))
    if udf_max is not None and max_ is None:
        caps.append(udf_max if min_ is None else max(udf_max, min_))
    if checkpoint_size is None:
        caps.append(max(rows, 1))
    largest = min(caps)
    smallest = min_ if min_ is not None else udf_min or 1
    return min(smallest, largest), largest


def _check(name: str, size: int) -> None:
    if size < 1:
        raise BadOption(
            f"{name} is {size}, but a checkpoint has at least one row.",
            hint="Choose a number that is at least 1.",
            minimum=size,
            maximum=None,
        )


def _check_order(minimum: int | None, maximum: int | None) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        raise BadOption(
            f"The smallest checkpoint would have {minimum} rows and the largest {maximum}.",
            hint="Lower min_checkpoint_size, or raise max_checkpoint_size or checkpoint_size.",
            minimum=minimum,
            maximum=maximum,
        )
