"""Reading computed columns: the values at given offsets, null where nothing was computed or what was is hidden."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.compute.addresses import span, to_array
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.column_file import SegmentFile, open_segment
from floodmark.compute.stored.manifest import Manifest, Segment, load
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.beside import Offsets
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64


@dataclass(frozen=True)
class ColumnValues:
    """The values of a dataset's computed columns as one catalog has them: a `ledger.beside.Beside`.

    A manifest is looked at when its column is opened, so that columns which nobody asks for cost nothing.
    """

    objects: ColumnObjects
    fragment_rows: int
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def open(self, names: Sequence[str]) -> OpenColumns:
        """Some of the columns, to be read by one thread at a time."""
        known = {column.name: column for column in self.columns}
        wanted = [known[name] for name in names]
        return OpenColumns([_OpenColumn(self.objects, c, load(self.objects, c), self.fragment_rows) for c in wanted])


def computed_columns(objects: DatasetObjects, catalog: Catalog) -> ColumnValues | None:
    """The computed columns that a catalog names, None when there are none."""
    if not catalog.columns:
        return None
    return ColumnValues(ColumnObjects(objects), catalog.fragment_rows, catalog.columns)


def columns_beside(snapshot: Snapshot) -> ColumnValues | None:
    """The computed columns beside the records of a dataset, as of now: they belong to offsets, not to heads."""
    return computed_columns(snapshot.objects, catalogs.load(ColumnObjects(snapshot.objects)))


class OpenColumns:
    """Columns in the middle of being read."""

    def __init__(self, columns: Sequence[_OpenColumn]) -> None:
        self._columns = columns

    def take(self, offsets: Offsets) -> list[pa.ChunkedArray]:
        """The values at these offsets, column by column."""
        return [column.take(offsets) for column in self._columns]


@dataclass(frozen=True)
class _Window:
    """Values of a row group of a segment, most often all of them: Arrow cuts what is too wide for one array."""

    start: int
    end: int
    values: pa.Array


class _OpenColumn:
    """One column, read from its first row group to its last: each is decoded once, and only the last one is kept."""

    def __init__(self, objects: ColumnObjects, column: Column, manifest: Manifest, fragment_rows: int) -> None:
        self._objects = objects
        self._field = column.field
        self._fragment_rows = fragment_rows
        self._segments = [segment for fragment in manifest.fragments for segment in fragment.segments]
        self._starts = [segment.start for segment in self._segments]
        self._hidden = {fragment.number: fragment.hidden for fragment in manifest.fragments if fragment.hidden}
        self._file: SegmentFile | None = None
        self._windows: list[_Window] = []  # those of one row group: as much as lies in memory at a time

    def take(self, offsets: Offsets) -> pa.ChunkedArray:
        pieces: list[pa.Array] = []
        at = 0
        while at < len(offsets):
            piece = self._piece(offsets[at:])
            pieces.append(piece)
            at += len(piece)
        return pa.chunked_array(pieces, self._field.type)

    def _piece(self, offsets: Offsets) -> pa.Array:
        """The values of the first of these offsets, as many as one row group has, or none has."""
        first = int(offsets[0])
        place = bisect_right(self._starts, first) - 1
        if place < 0 or self._segments[place].end <= first:
            after = self._starts[place + 1 : place + 2]
            return pa.nulls(_before(offsets, after[0]) if after else len(offsets), self._field.type)
        window = self._window_at(self._segments[place], first)
        wanted = offsets[: _before(offsets, window.end)]
        hidden = self._hidden_among(wanted)
        if hidden is None and wanted[-1] - wanted[0] + 1 == len(wanted):
            return window.values.slice(first - window.start, len(wanted))
        return window.values.take(pa.array(_array(wanted) - window.start, mask=hidden))  # no place, no value

    def _window_at(self, segment: Segment, offset: int) -> _Window:
        if not self._windows or not self._windows[0].start <= offset < self._windows[-1].end:
            self._windows = []  # before the next ones are read
            if self._file is None or self._file.segment != segment:
                self._file = open_segment(self._objects, segment, self._field)
            start, end = self._file.group_at(offset)
            self._windows = _windows(start, self._file.read(start, end))
        return next(window for window in self._windows if offset < window.end)

    def _hidden_among(self, offsets: Offsets) -> npt.NDArray[np.bool_] | None:
        """Which of these offsets, all of one fragment, have a value that must not be shown; None when none has."""
        number = int(offsets[0]) // self._fragment_rows
        hidden = self._hidden.get(number)
        if hidden is None:
            return None
        addresses = _array(offsets) - number * self._fragment_rows
        near = hidden & span(int(addresses[0]), int(addresses[-1]) + 1)
        return np.isin(addresses, to_array(near), assume_unique=True) if near else None


def _windows(start: int, values: pa.ChunkedArray) -> list[_Window]:
    """One for each chunk that has rows; they are not joined, since that can be more than one array may hold."""
    found = []
    for chunk in values.chunks:
        if len(chunk):
            found.append(_Window(start, start + len(chunk), chunk))
            start += len(chunk)
    return found


def _before(offsets: Offsets, bound: int) -> int:
    """How many of these offsets come before one."""
    return (
        min(bound, offsets.stop) - offsets.start if isinstance(offsets, range) else int(np.searchsorted(offsets, bound))
    )


def _array(offsets: Offsets) -> I64:
    return np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets
