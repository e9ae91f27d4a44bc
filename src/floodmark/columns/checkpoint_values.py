"""Values that are stored in range checkpoints only, read by offset.

Checkpoints may have gaps and may overlap: each row of a batch has its address. If several checkpoints have the same
row, a value takes precedence over an error, then a newer checkpoint over an older one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import row_errors
from floodmark.columns.checkpoint_batch import ERROR_TYPE, OffsetValues
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.checkpoints import RangeCheckpoint
from floodmark.columns.value_sources import CheckpointReader, lost_rows_error, read_stored_time
from floodmark.ledger.side_columns import Offsets
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

PIECE_ROWS = 1 << 16
"""How many values one Arrow array has at most, since it cannot have more than two gigabytes of text."""

_NO_RUN = "-"  # matches no run: which run stored a checkpoint does not matter here


@dataclass(frozen=True)
class CheckpointedFragment:
    """The requested rows of a fragment, and the checkpoints that have them, oldest first."""

    wanted: BitMap
    ranges: tuple[RangeCheckpoint, ...]


@dataclass(frozen=True)
class FunctionValues:
    """The values of a function for the requested records: a `ledger.side_columns.SideColumnSet` of one column.

    It can be pickled into tasks. This call computed `computed` rows and skipped `failed` rows; `reused` rows, failed or
    not, were in checkpoints before; `carried` rows took over the result of the record that they replaced. `called`
    counts rows passed to the function, including repeated calls. Reading raises `CheckpointCoverageError` when a
    checkpoint is missing or damaged; a new request computes its rows again.
    """

    column: pa.Field
    checkpoints: CheckpointStore
    fragment_rows: int
    fragments: Mapping[int, CheckpointedFragment]
    computed: int = 0
    failed: int = 0
    reused: int = 0
    called: int = 0
    carried: int = 0

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column.name, self.column.type)])

    def open(self, names: Sequence[str]) -> OpenFunctionValues:
        """Open the values for one thread at a time of this process. Reading in offset order is fastest."""
        return OpenFunctionValues(self, len(names))

    def take(self, offsets: I64) -> pa.ChunkedArray:
        """The values at these offsets, in any order. Null for rows that failed or were not requested.

        For more rows than fit in memory, call `take` of `open` several times.
        """
        if (np.diff(offsets) > 0).all():
            [found] = self.open([self.column.name]).take(offsets)
            return found
        once, places = np.unique(offsets, return_inverse=True)
        return self.take(once).take(pa.array(places))

    @cached_property
    def errors(self) -> pa.Table:
        """The errors of requested rows in offset order, as a table of `columns.row_errors`.

        Only checkpoints with errors are read.
        """
        reading = self.open([self.column.name])
        tables = [reading.errors(row_sets.to_array(failed) + base) for base, failed in self._failed()]
        return pa.concat_tables([row_errors.EMPTY, *tables])

    def _failed(self) -> Iterator[tuple[int, BitMap]]:
        """The rows of each fragment that have a stored error. They may have a stored value, too."""
        for number, kept in sorted(self.fragments.items()):
            if failed := BitMap.union(*[r.failed for r in kept.ranges], BitMap(), BitMap()) & kept.wanted:
                yield number * self.fragment_rows, failed


class OpenFunctionValues:
    """Values that are open for reading. Only checkpoints with later rows than the last ones read stay in memory."""

    def __init__(self, values: FunctionValues, columns: int = 1) -> None:
        self._values = values
        self._columns = columns
        self._near: dict[str, CheckpointReader] = {}

    def take(self, offsets: Offsets) -> list[pa.ChunkedArray]:
        """The values at these ascending offsets."""
        pieces = [self._piece(number, part).values for number, part in self._parts(offsets)]
        return [pa.chunked_array(pieces, self._values.column.type)] * self._columns

    def errors(self, offsets: I64) -> pa.Table:
        """The errors at these ascending offsets, without the rows that did not fail."""
        found = [self._piece(number, part).errors for number, part in self._parts(offsets)]
        return pa.concat_tables([row_errors.EMPTY, *found])

    def _parts(self, offsets: Offsets) -> Iterator[tuple[int, I64]]:
        """The offsets in parts of one fragment each and of limited size."""
        rows = self._values.fragment_rows
        array = np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets
        for number, part in split_by_fragment(array, rows):
            for first in range(0, len(part), PIECE_ROWS):
                yield number, part[first : first + PIECE_ROWS]

    def _piece(self, number: int, offsets: I64) -> MergedValues:
        kept = self._values.fragments.get(number)
        base = number * self._values.fragment_rows
        asked = BitMap() if kept is None else row_sets.from_array(offsets - base) & kept.wanted
        sources = [] if kept is None or not asked else self._sources(kept, base, asked)
        piece = MergedValues(offsets, self._values.column.type, sources)
        if lost := asked - row_sets.from_array(offsets[piece.owners >= 0] - base):
            raise lost_rows_error(self._values.column, lost, base)
        return piece

    def _sources(self, kept: CheckpointedFragment, base: int, asked: BitMap) -> list[OffsetValues]:
        found = []
        first, last = asked.min(), asked.max()
        for checkpoint in kept.ranges:
            if checkpoint.start <= last and checkpoint.end > first and (rows := checkpoint.rows & asked):
                source = self._opened(checkpoint, base).within(base + first, base + last + 1)
                found.append(source.only(rows, base))
                if checkpoint.rows.max() <= last:
                    del self._near[checkpoint.key]
        return found

    def _opened(self, found: RangeCheckpoint, base: int) -> CheckpointReader:
        if found.key not in self._near:
            store = self._values.checkpoints
            made = read_stored_time(store, found.key) if found.failed else 0.0
            self._near[found.key] = CheckpointReader(store, self._values.column, found, found.rows, base, made, _NO_RUN)
        return self._near[found.key]


class MergedValues:
    """The values at some offsets, each from the source that takes precedence: a value over an error, then the later."""

    def __init__(self, offsets: I64, kind: pa.DataType, sources: Sequence[OffsetValues]) -> None:
        self._offsets = offsets
        self._kind = kind
        self._sources = sources
        self._places = [np.searchsorted(offsets, source.offsets) for source in sources]
        self.owners = np.full(len(offsets), -1, np.int64)
        parts = list(enumerate(zip(sources, self._places, strict=True)))
        for number, (source, places) in parts:
            self.owners[places[source.failed]] = number
        for number, (source, places) in parts:
            self.owners[places[~source.failed]] = number

    @property
    def values(self) -> pa.Array:
        """A value for each offset, null where no source has one."""
        return self._placed([own.values for own in self._owned], self._kind)

    @property
    def details(self) -> pa.Array:
        """The error at each offset, in the form of checkpoints; null where no error is stored."""
        parts = [pa.nulls(len(o.offsets), ERROR_TYPE) if o.errors is None else o.errors for o in self._owned]
        return self._placed(parts, ERROR_TYPE)

    @property
    def errors(self) -> pa.Table:
        """The errors of the rows whose owner has no value."""
        failed = [own.where(own.failed) for own in self._owned]
        tables = [
            row_errors.error_table(f.offsets, f.errors, row_errors.epoch_datetime(f.made))
            for f in failed
            if len(f.offsets)
        ]
        return row_errors.merge_errors(tables)

    @cached_property
    def _owned(self) -> list[OffsetValues]:
        """The rows that each source owns."""
        pairs = enumerate(zip(self._sources, self._places, strict=True))
        return [source.where(self.owners[places] == number) for number, (source, places) in pairs]

    def _placed(self, parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        """The parts of all sources in one array, each item at its offset."""
        found = [np.searchsorted(self._offsets, own.offsets) for own in self._owned]
        at = np.concatenate([np.empty(0, np.int64), *found])
        if not len(at):
            return pa.nulls(len(self._offsets), kind)
        pool = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        if np.array_equal(at, np.arange(len(self._offsets))):
            return pool
        places = np.full(len(self._offsets), -1, np.int64)
        places[at] = np.arange(len(at))
        return pool.take(pa.array(places, mask=places < 0))


def split_by_fragment(offsets: I64, fragment_rows: int) -> Iterator[tuple[int, I64]]:
    """Ascending offsets, split by fragment."""
    if len(offsets):
        for part in np.split(offsets, np.flatnonzero(np.diff(offsets // fragment_rows)) + 1):
            yield int(part[0]) // fragment_rows, part
