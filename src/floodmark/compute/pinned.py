"""A dataset and its computed columns as of one moment: pinned before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.plan import Window
from floodmark.compute.stored import manifest
from floodmark.compute.stored.catalog import Catalog, Column, identity
from floodmark.compute.stored.manifest import Manifest
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.read import computed_columns
from floodmark.derive.positions import Position, check_on_chain
from floodmark.ledger.beside import Beside
from floodmark.ledger.layout import Layout
from floodmark.ledger.scan import Scan, Where
from floodmark.ledger.selection import Selection
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64


@dataclass(frozen=True)
class Pinned:
    """What a backfill works on. `selection` has all current rows, `dead` the offsets that are none."""

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

    def check_position(self, column: Column) -> None:
        """`InputDiverged` if the dataset does not hold the records any more that values were computed of."""
        found = self.manifest(column)
        if found.read is not None and found.identity == self.identity(column):
            remedy = f"reset_column({column.name!r}) makes the next backfill compute every row once more"
            check_on_chain(f"column {column.name!r}", [found.read], [self], remedy)

    @property
    def read(self) -> Position | None:
        """The newest record, None when there is none."""
        block = self.snapshot.block_of(self.end - 1)
        return None if block is None else Position(self.dataset_id, self.end - 1, block)

    def identity(self, column: Column) -> str:
        return identity(self.catalog, self.dataset_id, column)

    def manifest(self, column: Column) -> Manifest:
        """What is committed of a column."""
        if column.field_id not in self._manifests:
            self._manifests[column.field_id] = manifest.load(self.objects, column)
        return self._manifests[column.field_id]

    @cached_property
    def _manifests(self) -> dict[int, Manifest]:
        return {}

    def windows(self, column: Column, where: Where) -> Iterator[Window]:
        """The fragments that hold records; wanted are current rows whose inputs are computed and that `where` keeps."""
        rows = self.catalog.fragment_rows
        chosen = None if where is None else self._chosen(where)
        inputs = [c for name in column.inputs if (c := self.catalog.find(name)) is not None]
        for number in range(self.start // rows, -(-self.end // rows)):
            base = number * rows
            start, end = max(base, self.start), min(base + rows, self.end)
            low, high = np.searchsorted(self.dead, [start, end])
            live = addresses.span(start - base, end - base)
            if low < high:
                live -= addresses.from_array(self.dead[low:high] - base)
            asked = live if chosen is None else live & chosen.get(number, BitMap())
            wanted = asked
            for needed in inputs:
                wanted = wanted & self.computed(needed, number)
            yield Window(number, start, end, base, end == base + rows, live, asked, wanted)

    def computed(self, column: Column, number: int) -> BitMap:
        """The rows of a fragment that a column's present function was applied to."""
        found = self.manifest(column)
        return found.fragment(number).done if found.identity == self.identity(column) else BitMap()

    def scan(self, columns: tuple[str, ...]) -> Scan:
        return Scan(self.objects.dataset, self.layout, self.selection, columns, self.beside)

    @cached_property
    def beside(self) -> Beside | None:
        return computed_columns(self.objects.dataset, self.catalog)

    def _chosen(self, where: Where) -> dict[int, BitMap]:
        """The addresses of the current rows that a filter keeps, by fragment."""
        offset, rows = self.layout.vocab.offset, self.catalog.fragment_rows
        found: dict[int, BitMap] = {}
        for batch in self.scan((offset,)).to_reader(where):
            offsets = np.sort(batch.column(0).to_numpy())
            cuts = np.flatnonzero(np.diff(offsets // rows)) + 1
            for part in np.split(offsets, cuts) if len(offsets) else ():
                number = int(part[0]) // rows
                found.setdefault(number, BitMap()).update(addresses.from_array(part - number * rows))
        return found

    def records(self, start: int, end: int) -> Selection:
        """The current rows with offsets in [start, end): what a task reads."""
        return narrowed(self.selection, start, end)


def narrowed(selection: Selection, start: int, end: int) -> Selection:
    """What a selection has of the offsets [start, end)."""
    return selection.of(tuple(f for f in selection.files if f.start < end and f.end > start), start, end)
