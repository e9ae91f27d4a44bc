"""The snapshot of a dataset and its computed columns, the reader of column values, and how far a view can read.

A backfill takes its snapshot before it reads anything.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns.catalog import Catalog, ColumnDefinition, ColumnObjects, identity
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.column_file import SegmentFile, open_segment
from floodmark.columns.lost_values import find_lost_values, find_valid_ends, keep_valid
from floodmark.columns.manifest import ColumnManifest, ColumnSegment, load
from floodmark.columns.plan import FragmentWindow
from floodmark.derive.inputs import InputSnapshot
from floodmark.derive.positions import PositionInput
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.position import Position
from floodmark.ledger.scan import Scan, Where
from floodmark.ledger.schema import Layout
from floodmark.ledger.selection import Selection, end_as_of
from floodmark.ledger.side_columns import Offsets, SideColumnSet
from floodmark.ledger.snapshot import Snapshot
from floodmark.rows.key_entries import NO_ROW, Kills
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64, Mask
from floodmark.storage.row_sets import span, to_array


@dataclass(frozen=True)
class ColumnSnapshot:
    """What a backfill reads. `selection` has the current rows; `dead` are the offsets of all other records."""

    name: str
    dataset_id: str
    objects: ColumnObjects
    layout: Layout
    selection: Selection
    dead: I64
    start: int  # the first offset that is not purged
    end: int
    catalog: Catalog
    snapshot: Snapshot = field(repr=False, compare=False)
    endings: Callable[[int, int], Kills] = field(repr=False, compare=False)
    """The records that other records, with offsets in an interval, ended, in the order of the latter."""

    @property
    def read(self) -> Position | None:
        """The position of the newest record, None when there are no records."""
        block = self.snapshot.block_of(self.end - 1)
        return None if block is None else Position(self.dataset_id, self.end - 1, block)

    def identity(self, column: ColumnDefinition) -> str:
        return identity(self.catalog, self.dataset_id, column)

    def manifest(self, column: ColumnDefinition) -> ColumnManifest:
        """The committed manifest of a column, without the values of records that the dataset lost."""
        if column.field_id not in self._manifests:
            self._manifests[column.field_id] = load_valid_manifest(self.objects, self.catalog, column, self)
        return self._manifests[column.field_id]

    def checkpoints_in(self, objects: ColumnObjects) -> CheckpointStore:
        """Checkpoints of values of these records. Those of records that the dataset lost are not valid."""
        return objects.checkpoints.bound_to(self.read, lambda position: position.is_on(self.snapshot))

    @cached_property
    def _manifests(self) -> dict[int, ColumnManifest]:
        return {}

    def windows(self, column: ColumnDefinition, where: Where) -> Iterator[FragmentWindow]:
        """The fragments that have records. Wanted are current rows that `where` keeps and whose inputs are computed."""
        rows = self.catalog.fragment_rows
        chosen = None if where is None else self._filtered_addresses(where)
        inputs = [c for name in column.inputs if (c := self.catalog.find(name)) is not None]
        for number in range(self.start // rows, -(-self.end // rows)):
            base = number * rows
            start, end = max(base, self.start), min(base + rows, self.end)
            low, high = np.searchsorted(self.dead, [start, end])
            live = row_sets.span(start - base, end - base)
            if low < high:
                live -= row_sets.from_array(self.dead[low:high] - base)
            asked = live if chosen is None else live & chosen.get(number, BitMap())
            wanted = asked
            for needed in inputs:
                wanted = wanted & self.computed(needed, number)
            yield FragmentWindow(number, start, end, base, end == base + rows, live, asked, wanted)

    def computed(self, column: ColumnDefinition, number: int) -> BitMap:
        """The rows of a fragment that a column's present function was applied to."""
        found = self.manifest(column)
        return found.fragment(number).done if found.identity == self.identity(column) else BitMap()

    def scan(self, columns: tuple[str, ...]) -> Scan:
        return Scan(self.objects.dataset, self.layout, self.selection, columns, self.beside)

    @cached_property
    def beside(self) -> SideColumnSet | None:
        return make_column_values(self.objects.dataset, self.catalog, self)

    def _filtered_addresses(self, where: Where) -> dict[int, BitMap]:
        """The addresses of the current rows that a filter keeps, by fragment."""
        offset, rows = self.layout.vocab.offset, self.catalog.fragment_rows
        found: dict[int, BitMap] = {}
        for batch in self.scan((offset,)).to_reader(where):
            offsets = np.sort(batch.column(0).to_numpy())
            cuts = np.flatnonzero(np.diff(offsets // rows)) + 1
            for part in np.split(offsets, cuts) if len(offsets) else ():
                number = int(part[0]) // rows
                found.setdefault(number, BitMap()).update(row_sets.from_array(part - number * rows))
        return found

    def records(self, start: int, end: int) -> Selection:
        """The current rows with offsets in [start, end), for a task."""
        return narrow_selection(self.selection, start, end)


def narrow_selection(selection: Selection, start: int, end: int) -> Selection:
    """The part of a selection with offsets in [start, end)."""
    return selection.of(tuple(f for f in selection.files if f.start < end and f.end > start), start, end)


# Read values


@dataclass(frozen=True)
class ColumnValues:
    """The values of the computed columns of one catalog: a `ledger.side_columns.SideColumnSet`.

    A manifest is read when its column is opened, so columns that a query does not use cost nothing.
    """

    objects: ColumnObjects
    fragment_rows: int
    columns: tuple[ColumnDefinition, ...]
    ends: Mapping[str, int] = field(default_factory=dict)  # by column, the end of valid values if the dataset lost some

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def open(self, names: Sequence[str]) -> OpenColumns:
        """Some of the columns, to be read by one thread at a time."""
        known = {column.name: column for column in self.columns}
        wanted = [(known[name], self.ends.get(name)) for name in names]
        return OpenColumns(
            [_OpenColumn(self.objects, c, load(self.objects, c), self.fragment_rows, end) for c, end in wanted]
        )


def make_column_values(
    objects: DatasetObjects, catalog: Catalog, given: PositionInput | None = None
) -> ColumnValues | None:
    """The values of the computed columns of a catalog, None when it has no columns.

    With the dataset, values of records that it lost are null.
    """
    if not catalog.columns:
        return None
    ends = {} if given is None else find_valid_ends(catalog.columns, given)
    return ColumnValues(ColumnObjects(objects), catalog.fragment_rows, catalog.columns, ends)


def load_column_values(snapshot: Snapshot) -> ColumnValues | None:
    """The values of a dataset's computed columns as of now. Values belong to records, not to heads."""
    given = InputSnapshot("", str(snapshot.state.dataset_id), snapshot)
    return make_column_values(snapshot.objects, catalogs.load(ColumnObjects(snapshot.objects)), given)


def load_valid_manifest(
    objects: ColumnObjects, catalog: Catalog, column: ColumnDefinition, given: PositionInput
) -> ColumnManifest:
    """The committed manifest of a column, without the values of records that the dataset lost."""
    found = load(objects, column)
    lost = find_lost_values(column, given)
    return found if lost is None else keep_valid(found, lost.kept.offset + 1, catalog.fragment_rows)


class OpenColumns:
    """Columns that are open for reading."""

    def __init__(self, columns: Sequence[_OpenColumn]) -> None:
        self._columns = columns

    def take(self, offsets: Offsets) -> list[pa.ChunkedArray]:
        """The values at these offsets, column by column."""
        return [column.take(offsets) for column in self._columns]


@dataclass(frozen=True)
class _DecodedValues:
    """Values of a row group, usually all of them. Arrow splits a row group that is too wide for one array."""

    start: int
    end: int
    values: pa.Array


class _OpenColumn:
    """One column, read in offset order. Each row group is decoded once, and only the newest one stays in memory."""

    def __init__(
        self,
        objects: ColumnObjects,
        column: ColumnDefinition,
        manifest: ColumnManifest,
        fragment_rows: int,
        end: int | None = None,
    ) -> None:
        self._objects = objects
        self._end = end  # records from here on have no values
        self._field = column.field
        self._fragment_rows = fragment_rows
        self._segments = [segment for fragment in manifest.fragments for segment in fragment.segments]
        self._starts = [segment.start for segment in self._segments]
        self._hidden = {fragment.number: fragment.hidden for fragment in manifest.fragments if fragment.hidden}
        self._file: SegmentFile | None = None
        self._windows: list[_DecodedValues] = []  # of one row group: all that is in memory at a time

    def take(self, offsets: Offsets) -> pa.ChunkedArray:
        pieces: list[pa.Array] = []
        at = 0
        while at < len(offsets):
            piece = self._piece(offsets[at:])
            pieces.append(piece)
            at += len(piece)
        return pa.chunked_array(pieces, self._field.type)

    def _piece(self, offsets: Offsets) -> pa.Array:
        """The values of the first of these offsets, up to the end of a row group or of a gap without values."""
        first = int(offsets[0])
        if self._end is not None:
            if first >= self._end:
                return pa.nulls(len(offsets), self._field.type)
            offsets = offsets[: _count_below(offsets, self._end)]
        index = bisect_right(self._starts, first) - 1
        if index < 0 or self._segments[index].end <= first:
            after = self._starts[index + 1 : index + 2]
            return pa.nulls(_count_below(offsets, after[0]) if after else len(offsets), self._field.type)
        window = self._window_at(self._segments[index], first)
        wanted = offsets[: _count_below(offsets, window.end)]
        hidden = self._hidden_mask(wanted)
        if hidden is None and wanted[-1] - wanted[0] + 1 == len(wanted):
            return window.values.slice(first - window.start, len(wanted))
        return window.values.take(pa.array(_array(wanted) - window.start, mask=hidden))  # a null index gives null

    def _window_at(self, segment: ColumnSegment, offset: int) -> _DecodedValues:
        if not self._windows or not self._windows[0].start <= offset < self._windows[-1].end:
            self._windows = []  # free their memory before the next ones are read
            if self._file is None or self._file.segment != segment:
                self._file = open_segment(self._objects, segment, self._field)
            start, end = self._file.group_at(offset)
            self._windows = _windows(start, self._file.read(start, end))
        return next(window for window in self._windows if offset < window.end)

    def _hidden_mask(self, offsets: Offsets) -> npt.NDArray[np.bool_] | None:
        """Which of these offsets, all of one fragment, have a hidden value; None when no offset has one."""
        number = int(offsets[0]) // self._fragment_rows
        hidden = self._hidden.get(number)
        if hidden is None:
            return None
        addresses = _array(offsets) - number * self._fragment_rows
        near = hidden & span(int(addresses[0]), int(addresses[-1]) + 1)
        return np.isin(addresses, to_array(near), assume_unique=True) if near else None


def _windows(start: int, values: pa.ChunkedArray) -> list[_DecodedValues]:
    """One window per chunk that has rows. Chunks are not joined: together they may be too large for one array."""
    found = []
    for chunk in values.chunks:
        if len(chunk):
            found.append(_DecodedValues(start, start + len(chunk), chunk))
            start += len(chunk)
    return found


def _count_below(offsets: Offsets, bound: int) -> int:
    """How many of these offsets are smaller than a bound."""
    return (
        min(bound, offsets.stop) - offsets.start if isinstance(offsets, range) else int(np.searchsorted(offsets, bound))
    )


def _array(offsets: Offsets) -> I64:
    return np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets


# How far a view can read


@dataclass(frozen=True)
class ColumnCoverage:
    """Which records have values in the computed columns that a view uses."""

    fragment_rows: int
    manifests: tuple[ColumnManifest, ...]

    @staticmethod
    def of(given: InputSnapshot, catalog: Catalog, columns: Sequence[ColumnDefinition]) -> ColumnCoverage:
        found = []
        for column in columns:
            present = identity(catalog, given.dataset_id, column)
            manifest = load_valid_manifest(ColumnObjects(given.snapshot.objects), catalog, column, given)
            # Readers see values of an older function until they are replaced, but views must not use them.
            found.append(manifest if manifest.identity == present else ColumnManifest(column.field_id, present))
        return ColumnCoverage(catalog.fragment_rows, tuple(found))

    def missing(self, start: int, end: int) -> Iterator[tuple[int, BitMap]]:
        """The records of [start, end) without a value: per fragment its first offset, and addresses relative to it."""
        for number in range(start // self.fragment_rows, -(-end // self.fragment_rows)):
            base = number * self.fragment_rows
            low, high = max(base, start), min(base + self.fragment_rows, end)
            rows = row_sets.span(low - base, high - base)
            lacking = BitMap.union(BitMap(), BitMap(), *(rows - m.fragment(number).done for m in self.manifests))
            if lacking:
                yield base, lacking


def find_readable_end(given: InputSnapshot, computed: ColumnCoverage) -> int:
    """How far a view can read an input: the last transaction end up to which every current record has its values."""
    start, end = given.purged_before, given.end
    if not any(_has_live_rows(given.dead, base, rows) for base, rows in computed.missing(start, end)):
        return end
    ends = given.snapshot.all_slices.column("end").to_numpy()
    states = np.unique(np.append(ends, 0))
    # Before the end of carried rows, the state of that time is purged.
    states = states[states >= max(start, given.snapshot.carried_end)]
    missing = (row_sets.to_array(rows) + base for base, rows in computed.missing(start, end))
    for at in np.flatnonzero(find_complete_states(states, ((some, _ended_by(given, some)) for some in missing)))[
        ::-1
    ].tolist():
        state = int(states[at])
        # Only the end of a transaction is a valid state: readers never see a part of one.
        if state == 0 or end_as_of(given.snapshot, given.name, state - 1) == state:
            return state
    return start if given.snapshot.carried_end <= start else 0


def find_complete_states(states: I64, waiting: Iterable[tuple[I64, I64]]) -> Mask:
    """Which of the states that end at these offsets are complete: no waiting record is current in them.

    `waiting` has pairs of arrays: offsets of waiting records, and for each the offset of the record that ended it. A
    record is current in the states after it, up to but not including the state that contains the record that ended it.
    """
    steps = np.zeros(len(states) + 1, np.int64)
    for offsets, enders in waiting:
        first = np.searchsorted(states, offsets, side="right")
        after = np.where(enders == NO_ROW, len(states), np.searchsorted(states, enders, side="right"))
        there = first < after
        steps += np.bincount(first[there], minlength=len(steps))
        steps -= np.bincount(after[there], minlength=len(steps))
    are_complete: Mask = np.cumsum(steps[:-1]) == 0
    return are_complete


def _has_live_rows(dead: I64, base: int, rows: BitMap) -> bool:
    """Whether any of these addresses, relative to an offset, belongs to a live record."""
    low, high = np.searchsorted(dead, [base + rows.min(), base + rows.max() + 1])
    return high - low < len(rows) or bool(rows - row_sets.from_array(dead[low:high] - base))


def _ended_by(given: InputSnapshot, offsets: I64) -> I64:
    if given.newest_index is None:
        return np.full(len(offsets), NO_ROW, np.int64)
    with given.raise_if_input_moved():
        return given.newest_index.ended_by(offsets)
