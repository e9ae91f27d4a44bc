"""Values that lie in range checkpoints and nowhere else, taken by offset.

A checkpoint may have holes and may overlap others: each row of a batch says where it belongs. Of several that have the
same row, one with a value counts more than one where it failed, and then the newer one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import ERROR_TYPE, Source
from floodmark.compute.checkpoints.found import RangeCheckpoint
from floodmark.compute.checkpoints.store import CheckpointStore
from floodmark.compute.sources import Checkpoint, lost_rows, made_at
from floodmark.compute.stored import row_errors
from floodmark.ledger.beside import Offsets
from floodmark.storage.arrays import I64

PIECE_ROWS = 1 << 16
"""So many values become one Arrow array, which may not have more than two gigabytes of text."""

_NO_RUN = "-"  # it does not matter which of them stored a checkpoint


@dataclass(frozen=True)
class KeptFragment:
    """The rows of a fragment that were asked for, and the checkpoints that have them, the oldest first."""

    wanted: BitMap
    ranges: tuple[RangeCheckpoint, ...]


@dataclass(frozen=True)
class Values:
    """The values of a function for the records that were asked for: a `ledger.beside.Beside` of one column.

    It travels to tasks. `computed` rows were computed now and `failed` ones skipped now, `reused` were in checkpoints
    before, failed or not. `called` counts rows handed to the function, repeats included. Whatever takes values raises
    `CheckpointCoverageError` when a checkpoint is gone or damaged by then: asked for again, its rows are computed.
    """

    column: pa.Field
    checkpoints: CheckpointStore
    fragment_rows: int
    fragments: Mapping[int, KeptFragment]
    computed: int = 0
    failed: int = 0
    reused: int = 0
    called: int = 0

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.column.name, self.column.type)])

    def open(self, names: Sequence[str]) -> OpenValues:
        """The values, to be read in this process by one thread at a time, best from the first offset to the last."""
        return OpenValues(self, len(names))

    def take(self, offsets: I64) -> pa.ChunkedArray:
        """The values at these offsets, in any order; null where a row failed or nobody asked for it.

        For more rows than memory should hold, take some after others from what `open` gives.
        """
        if (np.diff(offsets) > 0).all():
            [found] = self.open([self.column.name]).take(offsets)
            return found
        once, places = np.unique(offsets, return_inverse=True)
        return self.take(once).take(pa.array(places))

    @cached_property
    def errors(self) -> pa.Table:
        """The rows that were asked for and failed, as `stored.row_errors` has them, in offset order.

        Only checkpoints with errors are read.
        """
        reading = self.open([self.column.name])
        tables = [reading.errors(addresses.to_array(failed) + base) for base, failed in self._failed()]
        return pa.concat_tables([row_errors.EMPTY, *tables])

    def _failed(self) -> Iterator[tuple[int, BitMap]]:
        """The rows of each fragment for which an error is stored; a value may be stored, too."""
        for number, kept in sorted(self.fragments.items()):
            if failed := BitMap.union(*[r.failed for r in kept.ranges], BitMap(), BitMap()) & kept.wanted:
                yield number * self.fragment_rows, failed


class OpenValues:
    """Values in the middle of being read: only checkpoints that reach beyond what was taken last stay in memory."""

    def __init__(self, values: Values, columns: int = 1) -> None:
        self._values = values
        self._columns = columns
        self._near: dict[str, Checkpoint] = {}

    def take(self, offsets: Offsets) -> list[pa.ChunkedArray]:
        """The values at these offsets, which ascend."""
        pieces = [self._piece(number, part).values for number, part in self._parts(offsets)]
        return [pa.chunked_array(pieces, self._values.column.type)] * self._columns

    def errors(self, offsets: I64) -> pa.Table:
        """The errors of these offsets, which ascend; rows that did not fail are left out."""
        found = [self._piece(number, part).errors for number, part in self._parts(offsets)]
        return pa.concat_tables([row_errors.EMPTY, *found])

    def _parts(self, offsets: Offsets) -> Iterator[tuple[int, I64]]:
        """Offsets of one fragment each, and not too many at once."""
        rows = self._values.fragment_rows
        array = np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else offsets
        for number, part in by_fragment(array, rows):
            for first in range(0, len(part), PIECE_ROWS):
                yield number, part[first : first + PIECE_ROWS]

    def _piece(self, number: int, offsets: I64) -> Piece:
        kept = self._values.fragments.get(number)
        base = number * self._values.fragment_rows
        asked = BitMap() if kept is None else addresses.from_array(offsets - base) & kept.wanted
        sources = [] if kept is None or not asked else self._sources(kept, base, asked)
        piece = Piece(offsets, self._values.column.type, sources)
        if lost := asked - addresses.from_array(offsets[piece.owners >= 0] - base):
            raise lost_rows(self._values.column, lost, base)
        return piece

    def _sources(self, kept: KeptFragment, base: int, asked: BitMap) -> list[Source]:
        found = []
        first, last = asked.min(), asked.max()
        for checkpoint in kept.ranges:
            if checkpoint.start <= last and checkpoint.end > first and (rows := checkpoint.rows & asked):
                source = self._opened(checkpoint, base).within(base + first, base + last + 1)
                found.append(source.only(rows, base))
                if checkpoint.rows.max() <= last:
                    del self._near[checkpoint.key]
        return found

    def _opened(self, found: RangeCheckpoint, base: int) -> Checkpoint:
        if found.key not in self._near:
            store = self._values.checkpoints
            made = made_at(store, found.key) if found.failed else 0.0
            self._near[found.key] = Checkpoint(store, self._values.column, found, found.rows, base, made, _NO_RUN)
        return self._near[found.key]


class Piece:
    """The values at some offsets, of whichever source counts, the later one where nothing else tells."""

    def __init__(self, offsets: I64, kind: pa.DataType, sources: Sequence[Source]) -> None:
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
        """What went wrong with each offset, as checkpoints have it, null where nothing did."""
        parts = [pa.nulls(len(o.offsets), ERROR_TYPE) if o.errors is None else o.errors for o in self._owned]
        return self._placed(parts, ERROR_TYPE)

    @property
    def errors(self) -> pa.Table:
        """The errors of those rows of which the source that counts has no value."""
        failed = [own.where(own.failed) for own in self._owned]
        tables = [row_errors.table(f.offsets, f.errors, row_errors.moment(f.made)) for f in failed if len(f.offsets)]
        return row_errors.merged(tables)

    @cached_property
    def _owned(self) -> list[Source]:
        """Of each source the rows for which it counts."""
        pairs = enumerate(zip(self._sources, self._places, strict=True))
        return [source.where(self.owners[places] == number) for number, (source, places) in pairs]

    def _placed(self, parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        """What the sources have, each of it at its offset."""
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


def by_fragment(offsets: I64, fragment_rows: int) -> Iterator[tuple[int, I64]]:
    """Ascending offsets, fragment by fragment."""
    if len(offsets):
        for part in np.split(offsets, np.flatnonzero(np.diff(offsets // fragment_rows)) + 1):
            yield int(part[0]) // fragment_rows, part
