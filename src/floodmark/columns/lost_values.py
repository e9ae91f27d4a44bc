"""Computed values of records that the dataset does not have any more, because it was replaced by another copy of it.

A column has the positions up to which the dataset was read for its values. If the newest one is not on the chain, the
values after the newest one that is belong to other records. Readers see null there. The next backfill drops these
values and computes them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from floodmark.columns.catalog import ColumnDefinition
from floodmark.columns.manifest import ColumnManifest, clip_sets
from floodmark.derive.lost_records import LostRecords, find_lost_records, trail_positions
from floodmark.derive.positions import PositionInput


def find_lost_values(column: ColumnDefinition, given: PositionInput) -> LostRecords | None:
    """The records that values of a column were computed from and that the dataset lost; None if it has all of them."""
    if not column.reads:
        return None
    earlier = trail_positions({given.dataset_id: column.reads})
    return find_lost_records(earlier[-1:], earlier, [given]).get(given.dataset_id)


def find_valid_ends(columns: Iterable[ColumnDefinition], given: PositionInput) -> dict[str, int]:
    """By column name, the end of the records that may have values. Columns whose values are all valid are absent."""
    lost = {column.name: find_lost_values(column, given) for column in columns}
    return {name: one.kept.offset + 1 for name, one in lost.items() if one is not None}


def keep_valid(manifest: ColumnManifest, end: int, fragment_rows: int) -> ColumnManifest:
    """The manifest as if no record from `end` on had a value. Its files may still have some."""
    kept = [f for f in manifest.fragments if f.number * fragment_rows < end]
    ends = [min(fragment_rows, end - f.number * fragment_rows) for f in kept]
    return replace(manifest, fragments=tuple(clip_sets(f, at) for f, at in zip(kept, ends, strict=True)))
