"""Sources that a new column file takes its values from: arrays in memory, older files, finished files, checkpoints.

A file is assembled in pieces, in offset order. Each source reads only what the current piece needs and releases what
comes before it. So memory holds about one piece, for any width of values and any number of checkpoints.
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

from floodmark.columns.catalog import ColumnObjects
from floodmark.columns.checkpoint_batch import OffsetValues, read_run
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoints import DataCheckpoint, RangeCheckpoint
from floodmark.columns.column_file import SegmentFile, open_raw
from floodmark.columns.manifest import ColumnSegment
from floodmark.errors import BadCheckpoint, CheckpointCoverageError, ObjectNotFound, UnreadableColumn

PIECE_BYTES = 64 << 20
"""How many bytes of a file are assembled at a time."""

_log = logging.getLogger(__name__)


class ValueSource(Protocol):
    """Values of some offsets, which are read piece by piece in ascending order."""

    def reach(self, start: int, end: int) -> int:
        """The largest offset up to `end` for which reading from `start` takes about the memory of one piece."""
        ...

    def within(self, start: int, end: int) -> list[OffsetValues]:
        """The values with offsets in [start, end), in order."""
        ...


@dataclass(frozen=True)
class MemoryValues:
    """Values that are already in memory."""

    source: OffsetValues

    def reach(self, start: int, end: int) -> int:
        return max(start, end)

    def within(self, start: int, end: int) -> list[OffsetValues]:
        return _non_empty(self.source.within(start, end))


def _non_empty(source: OffsetValues) -> list[OffsetValues]:
    return [source] if len(source.offsets) else []


@dataclass
class FileValues:
    """The values of a file, read one row group at a time."""

    segment: ColumnSegment
    open: Callable[[], SegmentFile]
    _file: SegmentFile | None = None
    _group: OffsetValues | None = None

    def reach(self, start: int, end: int) -> int:
        if start >= self.segment.end:
            self._file = self._group = None
            return end
        if start < self.segment.start:
            return min(end, self.segment.start)
        return min(end, self._opened().group_at(start)[1])

    def within(self, start: int, end: int) -> list[OffsetValues]:
        low, high = max(start, self.segment.start), min(end, self.segment.end)
        if low >= high:
            return []
        first, last = self._opened().group_at(low)
        if high > last:
            return _non_empty(OffsetValues(np.arange(low, high), self._opened().read(low, high)))
        if self._group is None or self._group.offsets[0] != first:
            self._group = None  # free its memory before the next row group is read
            self._group = OffsetValues(np.arange(first, last), self._opened().read(first, last))
        return _non_empty(self._group.within(low, high))

    def _opened(self) -> SegmentFile:
        if self._file is None:
            self._file = self.open()
        return self._file


@dataclass
class FinishedFileValues:
    """Rows of a finished file that a data checkpoint names."""

    objects: ColumnObjects
    column: pa.Field
    data: DataCheckpoint
    wanted: BitMap
    base: int
    made: float
    _values: FileValues = field(init=False)

    def __post_init__(self) -> None:
        segment = ColumnSegment.from_json(self.data.segment)
        self._values = FileValues(segment, lambda: open_raw(self.objects, segment, self.column))

    def reach(self, start: int, end: int) -> int:
        try:
            return self._values.reach(start, end)
        except UnreadableColumn as error:
            raise self._lost(error) from error

    def within(self, start: int, end: int) -> list[OffsetValues]:
        try:
            found = self._values.within(start, end)
        except UnreadableColumn as error:
            raise self._lost(error) from error
        chosen = [source.only(self.wanted, self.base) for source in found]
        return [
            OffsetValues(s.offsets, s.values, self.data.error_column(s.offsets), self.made)
            for s in chosen
            if len(s.offsets)
        ]

    def _lost(self, error: UnreadableColumn) -> CheckpointCoverageError:
        discard(self.objects, self.data, error.message)
        return lost_rows_error(self.column, self.wanted, self.base)


def discard(objects: ColumnObjects, data: DataCheckpoint, problem: str) -> None:
    """Delete a finished file that cannot be used, so that no later run relies on its rows."""
    _log.warning("The finished file %r is deleted and its rows will be computed again: %s.", data.file, problem)
    objects.checkpoints.delete(data.key)
    objects.store.delete(ColumnSegment.from_json(data.segment).key(objects))


def lost_rows_error(column: pa.Field, rows: BitMap, base: int) -> CheckpointCoverageError:
    """The error for rows that should be in checkpoints and are not."""
    return CheckpointCoverageError(
        f"{len(rows)} rows of column {column.name!r} between records {rows.min() + base} and "
        f"{rows.max() + base} are in no checkpoint",
        hint="run the backfill again: it computes what is missing",
        column=column.name,
    )


@dataclass
class CheckpointReader:
    """Rows of one range checkpoint. It stays in memory, or mapped, while pieces need it."""

    store: CheckpointStore
    column: pa.Field
    found: RangeCheckpoint
    wanted: BitMap
    base: int
    made: float
    run: str
    _batch: OffsetValues | None = None

    @property
    def first(self) -> int:
        return self.wanted.min() + self.base

    @property
    def last(self) -> int:
        return self.wanted.max() + self.base

    def within(self, start: int, end: int) -> OffsetValues:
        """Its rows with offsets in [start, end)."""
        return self._read().within(start, end).only(self.wanted, self.base)

    def size(self, start: int, end: int) -> int:
        """How many bytes its values in [start, end) take, including rows that are not wanted."""
        return int(self._read().within(start, end).values.nbytes)

    def release(self) -> None:
        """Free the memory of what was read."""
        self._batch = None

    def _read(self) -> OffsetValues:
        if self._batch is None:
            self._batch = self._load_batch()
        return self._batch

    def _load_batch(self) -> OffsetValues:
        try:
            batch = self.store.get(self.found.key)
        except ObjectNotFound as error:
            raise lost_rows_error(self.column, self.wanted, self.base) from error
        except BadCheckpoint as error:
            self.store.delete(self.found.key)
            raise lost_rows_error(self.column, self.wanted, self.base) from error
        source = OffsetValues.of(batch, self.base)
        made = (
            inf if read_run(batch) == self.run else self.made
        )  # file times are coarse, so results of this run count as the newest
        return OffsetValues(source.offsets, source.values, source.errors, made)


class CheckpointValues:
    """Any number of range checkpoints, of which as few as possible are in memory."""

    def __init__(self, found: Sequence[CheckpointReader]) -> None:
        self._waiting = sorted(found, key=lambda c: c.first, reverse=True)
        self._near: list[CheckpointReader] = []  # those with rows in or near the current piece

    def reach(self, start: int, end: int) -> int:
        for passed in (c for c in self._near if c.last < start):
            passed.release()
        self._near = [c for c in self._near if c.last >= start]
        size = sum(c.size(start, end) for c in self._near)
        while self._waiting and self._waiting[-1].first < end:
            following = self._waiting[-1]
            if size >= PIECE_BYTES and following.first > start:
                return following.first
            self._near.append(self._waiting.pop())
            size += following.size(start, end)
        return end

    def within(self, start: int, end: int) -> list[OffsetValues]:
        return [source for c in self._near if len((source := c.within(start, end)).offsets)]


def read_stored_time(store: CheckpointStore, key: str) -> float:
    """When a checkpoint was stored, in epoch seconds; 0 when it is gone."""
    info = store.info(key)
    return 0.0 if info is None else info.modified
