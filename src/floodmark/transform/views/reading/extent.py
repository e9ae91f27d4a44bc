"""How far a source can be read: up to the newest block all of whose rows have the computed columns that are used.

A refresh never sees half of a backfill: records that wait for a computed column, and all that came after them, are not
there yet. All of this is decided from the column's manifest and the key index; no data is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import Catalog, Column, identity
from floodmark.compute.stored.manifest import Manifest
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.keys.records import NOT_THERE
from floodmark.ledger.selection import end_of
from floodmark.storage.arrays import I64, Mask
from floodmark.transform.changed.inputs import PinnedInput


@dataclass(frozen=True)
class Computed:
    """What is there of the computed columns that a view uses."""

    fragment_rows: int
    manifests: tuple[Manifest, ...]

    @staticmethod
    def of(objects: ColumnObjects, catalog: Catalog, dataset_id: str, columns: Sequence[Column]) -> Computed:
        found = []
        for column in columns:
            present = identity(catalog, dataset_id, column)
            manifest = manifests.load(objects, column)
            # What another function computed is shown to readers until it is replaced, but nothing is derived from it.
            found.append(manifest if manifest.identity == present else Manifest(column.field_id, present))
        return Computed(catalog.fragment_rows, tuple(found))

    def missing(self, start: int, end: int) -> Iterator[tuple[int, BitMap]]:
        """The records of [start, end) that lack a value, fragment by fragment: an offset, and addresses from there."""
        for number in range(start // self.fragment_rows, -(-end // self.fragment_rows)):
            base = number * self.fragment_rows
            low, high = max(base, start), min(base + self.fragment_rows, end)
            rows = addresses.span(low - base, high - base)
            lacking = BitMap.union(BitMap(), BitMap(), *(rows - m.fragment(number).done for m in self.manifests))
            if lacking:
                yield base, lacking


def extent(given: PinnedInput, computed: Computed) -> int:
    """The offset after the last record that can be read of a source that is pinned at its head."""
    start, end = given.purged_before, given.end
    if not any(_living(given.dead, base, rows) for base, rows in computed.missing(start, end)):
        return end
    ends = given.snapshot.all_slices.column("end").to_numpy()
    states = np.unique(np.append(ends, 0))
    states = states[states >= start]
    missing = (addresses.to_array(rows) + base for base, rows in computed.missing(start, end))
    for at in np.flatnonzero(complete(states, ((some, _ended_by(given, some)) for some in missing)))[::-1].tolist():
        state = int(states[at])
        # Part of a transaction is no state that anybody ever saw.
        if state == 0 or end_of(given.snapshot, given.name, state - 1) == state:
            return state
    return start


def complete(states: I64, waiting: Iterable[tuple[I64, I64]]) -> Mask:
    """In which of the states, which end at these offsets, no waiting record is current.

    Of waiting records there are the offsets, and those of the records that ended them. Each is current in the states
    after itself, up to the one that the record which ended it is part of.
    """
    steps = np.zeros(len(states) + 1, np.int64)
    for offsets, enders in waiting:
        first = np.searchsorted(states, offsets, side="right")
        after = np.where(enders == NOT_THERE, len(states), np.searchsorted(states, enders, side="right"))
        there = first < after
        steps += np.bincount(first[there], minlength=len(steps))
        steps -= np.bincount(after[there], minlength=len(steps))
    are_complete: Mask = np.cumsum(steps[:-1]) == 0
    return are_complete


def _living(dead: I64, base: int, rows: BitMap) -> bool:
    """Whether some of these addresses, from an offset on, are of records that are not dead."""
    low, high = np.searchsorted(dead, [base + rows.min(), base + rows.max() + 1])
    return high - low < len(rows) or bool(rows - addresses.from_array(dead[low:high] - base))


def _ended_by(given: PinnedInput, offsets: I64) -> I64:
    if given.newest_index is None:
        return np.full(len(offsets), NOT_THERE, np.int64)
    with given.steady():
        return given.newest_index.ended_by(offsets)
