"""Where the values of a file in the making come from: each place is read only when and as far as its rows are due.

Pieces are made in the order of offsets, so whatever lies behind the present one is let go of: memory holds a piece,
whatever the width of the values and the number of checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute.checkpoints.batches import Source, run_of
from floodmark.compute.checkpoints.found import DataCheckpoint, RangeCheckpoint
from floodmark.compute.checkpoints.store import CheckpointStore
from floodmark.compute.errors import BadCheckpoint, CheckpointCoverageError, UnreadableColumn
from floodmark.compute.stored.column_file import SegmentFile, open_raw
from floodmark.compute.stored.manifest import Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.storage.errors import ObjectNotFound

PIECE_BYTES = 64 << 20
"""How much of a file is put together at a time."""

_log = logging.getLogger(__name__)


class Values(Protocol):
    """Values of some offsets that can be read piece by piece, forwards."""

    def reach(self, start: int, end: int) -> int:
        """Up to where, after `start` and at most to `end`, reading at once takes about a piece's memory."""
        ...

    def within(self, start: int, end: int) -> list[Source]:
        """Those with offsets in [start, end), in order."""
        ...


@dataclass(frozen=True)
class Given:
    """Values that lie in memory already."""

    source: Source

    def reach(self, start: int, end: int) -> int:
        return max(start, end)

    def within(self, start: int, end: int) -> list[Source]:
        return _some(self.source.within(start, end))


def _some(source: Source) -> list[Source]:
    return [source] if len(source.offsets) else []


@dataclass
class FileValues:
    """The values of a file, a row group at a time."""

    segment: Segment
    open: Callable[[], SegmentFile]
    _file: SegmentFile | None = None
    _group: Source | None = None

    def reach(self, start: int, end: int) -> int:
        if start >= self.segment.end:
            self._file = self._group = None
            return end
        if start < self.segment.start:
            return min(end, self.segment.start)
        return min(end, self._opened().group_at(start)[1])

    def within(self, start: int, end: int) -> list[Source]:
        low, high = max(start, self.segment.start), min(end, self.segment.end)
        if low >= high:
            return []
        first, last = self._opened().group_at(low)
        if high > last:
            return _some(Source(np.arange(low, high), self._opened().read(low, high)))
        if self._group is None or self._group.offsets[0] != first:
            self._group = None  # before the next one is read
            self._group = Source(np.arange(first, last), self._opened().read(first, last))
        return _some(self._group.within(low, high))

    def _opened(self) -> SegmentFile:
        if self._file is None:
            self._file = self.open()
        return self._file


@dataclass
class FinishedFile:
    """Rows of a file that is noted in a data checkpoint."""

    objects: ColumnObjects
    column: pa.Field
    data: DataCheckpoint
    wanted: BitMap
    base: int
    made: float
    _values: FileValues = field(init=False)

    def __post_init__(self) -> None:
        segment = Segment.from_json(self.data.segment)
        self._values = FileValues(segment, lambda: open_raw(self.objects, segment, self.column))

    def reach(self, start: int, end: int) -> int:
        try:
            return self._values.reach(start, end)
        except UnreadableColumn as error:
            raise self._lost(error) from error

    def within(self, start: int, end: int) -> list[Source]:
        try:
            found = self._values.within(start, end)
        except UnreadableColumn as error:
            raise self._lost(error) from error
        chosen = [source.only(self.wanted, self.base) for source in found]
        return [
            Source(s.offsets, s.values, self.data.error_column(s.offsets), self.made) for s in chosen if len(s.offsets)
        ]

    def _lost(self, error: UnreadableColumn) -> CheckpointCoverageError:
        discard(self.objects, self.data, error.message)
        return lost_rows(self.column, self.wanted, self.base)


def discard(objects: ColumnObjects, data: DataCheckpoint, problem: str) -> None:
    """Delete a finished file that cannot be used, so that nobody counts on its rows."""
    _log.warning("The finished file %r is deleted and its rows will be computed again: %s.", data.file, problem)
    objects.checkpoints.delete(data.key)
    objects.store.delete(Segment.from_json(data.segment).key(objects))


def lost_rows(column: pa.Field, rows: BitMap, base: int) -> CheckpointCoverageError:
    """What to raise when rows that should be in checkpoints are not."""
    return CheckpointCoverageError(
        f"{len(rows)} rows of column {column.name!r} between records {rows.min() + base} and "
        f"{rows.max() + base} are in no checkpoint",
        hint="run the backfill again: it computes what is missing",
        column=column.name,
    )


@dataclass
class Checkpoint:
    """Rows of one range checkpoint, which is in memory (or mapped) while pieces need it."""

    store: CheckpointStore
    column: pa.Field
    found: RangeCheckpoint
    wanted: BitMap
    base: int
    made: float
    run: str
    _batch: Source | None = None

    @property
    def first(self) -> int:
        return self.wanted.min() + self.base

    @property
    def last(self) -> int:
        return self.wanted.max() + self.base

    def within(self, start: int, end: int) -> Source:
        """Those of its rows with offsets in [start, end)."""
        return self._read().within(start, end).only(self.wanted, self.base)

    def size(self, start: int, end: int) -> int:
        """How many bytes its values in [start, end) take, wanted or not."""
        return int(self._read().within(start, end).values.nbytes)

    def release(self) -> None:
        """Let go of what was read."""
        self._batch = None

    def _read(self) -> Source:
        if self._batch is None:
            self._batch = self._trusted()
        return self._batch

    def _trusted(self) -> Source:
        try:
            batch = self.store.get(self.found.key)
        except ObjectNotFound as error:
            raise lost_rows(self.column, self.wanted, self.base) from error
        except BadCheckpoint as error:
            self.store.delete(self.found.key)
            raise lost_rows(self.column, self.wanted, self.base) from error
        source = Source.of(batch, self.base)
        made = inf if run_of(batch) == self.run else self.made  # stores have coarse clocks
        return Source(source.offsets, source.values, source.errors, made)


class Checkpoints:
    """Range checkpoints, however many, of which as few as possible are in memory."""

    def __init__(self, found: Sequence[Checkpoint]) -> None:
        self._waiting = sorted(found, key=lambda c: c.first, reverse=True)
        self._near: list[Checkpoint] = []  # those that have rows not far from the present piece

    def reach(self, start: int, end: int) -> int:
        for behind in (c for c in self._near if c.last < start):
            behind.release()
        self._near = [c for c in self._near if c.last >= start]
        size = sum(c.size(start, end) for c in self._near)
        while self._waiting and self._waiting[-1].first < end:
            following = self._waiting[-1]
            if size >= PIECE_BYTES and following.first > start:
                return following.first
            self._near.append(self._waiting.pop())
            size += following.size(start, end)
        return end

    def within(self, start: int, end: int) -> list[Source]:
        return [source for c in self._near if len((source := c.within(start, end)).offsets)]


def made_at(store: CheckpointStore, key: str) -> float:
    """When a checkpoint was stored, in epoch seconds; 0 when it is gone."""
    info = store.info(key)
    return 0.0 if info is None else info.modified
