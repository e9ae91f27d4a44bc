"""Purge of computed columns: removes all values that were computed from purged records.

First, a new catalog no longer names these values and refuses new ones. It has the values of rows that the purge carried
at their new offsets, so no function is called for them. Then the files and checkpoints are deleted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as manifests
from floodmark.columns import row_errors
from floodmark.columns.catalog import FIRST_FIELD_ID, Catalog, ColumnDefinition, ColumnObjects
from floodmark.columns.clip import NO_END, clip_fragment
from floodmark.columns.column_file import START_KEY, write_segment
from floodmark.columns.commit import ChangedAddresses, hide_dependent_values
from floodmark.columns.lost_values import find_lost_values, keep_valid
from floodmark.columns.manifest import ColumnManifest, Fragment
from floodmark.columns.snapshot import ColumnValues
from floodmark.derive.checkpoint_key import CheckpointPrefix, hash_text, parse_key
from floodmark.derive.inputs import follow_carried
from floodmark.derive.lost_records import cut_trail, extend_trail, report_lost_records
from floodmark.errors import (
    CommitConflict,
    CommitUnknown,
    StorageError,
    UnreadableColumn,
)
from floodmark.ledger.position import Position, position_at
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.rows import key_index_loader
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64, Mask

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CarriedTo:
    """Looks up where purges carried records of a dataset; the same offset for a record that was not carried."""

    name: str
    snapshot: Snapshot

    @property
    def dataset_id(self) -> str:
        return str(self.snapshot.state.dataset_id)

    @property
    def read(self) -> Position:
        """The newest record. Values move to records up to it."""
        return position_at(self.snapshot, self.name, None)

    def __call__(self, offsets: I64) -> I64:
        return key_index_loader.with_repair(
            self.snapshot, {}, lambda index: follow_carried(index, self.snapshot, offsets)
        )


def find_carried(snapshot: Snapshot, name: str = "") -> CarriedTo | None:
    """Looks up where purges carried records of a dataset; None if they carried none."""
    if not snapshot.ever_carried or not strategy_of(snapshot.state).is_keyed:
        return None
    return CarriedTo(name, snapshot)


def drop_purged(objects: ColumnObjects, before: int, dataset_id: str = "", carried_to: CarriedTo | None = None) -> None:
    """Remove every value and error of records before an offset. Later rows do not change.

    The values and errors of carried rows move to the offsets that `carried_to` gives.

    The records are already gone, so a store error is only logged: verify reports the values that are left, and the next
    purge or garbage collection removes them. Without the dataset id, columns that depend on damaged values are computed
    again as a whole, not only in those rows.
    """
    try:
        if catalogs.load(objects).next_field_id == FIRST_FIELD_ID:
            return  # the dataset never had a computed column
        after = catalogs.change(objects, partial(_purged, objects, dataset_id, before, carried_to))
        left = find_purge_leftovers(objects, after, before, dataset_id)
    except (StorageError, CommitConflict, CommitUnknown, UnreadableColumn) as error:
        _log.warning("values computed from purged records could not be removed (%s); the next purge tries again", error)
        return
    for delete, keys in ((objects.store.delete, left.files), (objects.checkpoints.delete, left.checkpoints)):
        for key in keys:
            try:
                delete(key)
            except StorageError as error:
                _log.warning("a file of purged values could not be deleted (%s); the next purge tries again", error)


@dataclass(frozen=True)
class PurgeLeftovers:
    """Objects to delete that have values of purged records: object keys of files, and checkpoint keys."""

    files: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()


def find_purge_leftovers(objects: ColumnObjects, catalog: Catalog, before: int, dataset_id: str = "") -> PurgeLeftovers:
    """The files and checkpoints that have values of records before an offset and that the catalog does not name.

    Unreadable files are included, since they may have such values. With the dataset id, checkpoints of other datasets'
    records are excluded; views have these.
    """
    if before <= 0:
        return PurgeLeftovers()
    named = {key for column in catalog.columns for key in manifests.load(objects, column).keys(objects)}
    values = [i.key for i in objects.files() if i.key not in named and _first_of_file(objects, i.key) < before]
    errors = [i.key for i in objects.errors() if i.key not in named and _first_of_errors(objects, i.key) < before]
    rows = catalog.fragment_rows
    listed = objects.checkpoints.list_keys()
    own = [key for key in listed if not is_of_other_dataset(key, dataset_id)] if dataset_id else listed
    checkpoints = [key for key in own if _first_of_checkpoint(key, rows) < before]
    return PurgeLeftovers((*values, *errors), tuple(checkpoints))


def _purged(
    objects: ColumnObjects, dataset_id: str, before: int, carried_to: CarriedTo | None, catalog: Catalog
) -> Catalog:
    trimmed = [_column(objects, column, catalog, before, carried_to) for column in catalog.columns]
    columns = tuple(t.column for t in trimmed)
    after = replace(catalog, columns=columns, purged_before=max(catalog.purged_before, before))
    for one in trimmed:  # a second loop, since the dependents of each column must be readable
        after = hide_dependent_values(objects, dataset_id, after, after.column(one.column.name), one.lost)
    return after


@dataclass(frozen=True)
class _PurgedColumn:
    """A column without purged rows, and the later rows that are lost, too, because their file cannot be read."""

    column: ColumnDefinition
    lost: ChangedAddresses


def _column(
    objects: ColumnObjects, column: ColumnDefinition, catalog: Catalog, before: int, carried_to: CarriedTo | None
) -> _PurgedColumn:
    try:
        manifest = manifests.load(objects, column)
    except UnreadableColumn as error:  # without a manifest, no value can be kept
        _log.warning("%s; the purge drops all values of the column", error.message)
        return _PurgedColumn(replace(column, manifest=None), _all_rows(objects, column, catalog))
    end, reads, rows = NO_END, column.reads, catalog.fragment_rows
    if carried_to is not None and (lost := find_lost_values(column, carried_to)) is not None:
        report_lost_records(f"column {column.name}", [lost], "the purge drops their values")
        end, reads = lost.kept.offset + 1, cut_trail(reads, lost.kept)
    trimmed = [clip_fragment(objects, column, f, rows, before, end) for f in manifest.fragments]
    after = replace(manifest, fragments=tuple(f for f in trimmed if f.segments))
    if carried_to is not None:
        after = _carry(objects, column, catalog, keep_valid(manifest, end, rows), after, before, carried_to)
        reads = extend_trail(reads, carried_to.read)
    if after == manifest:
        return _PurgedColumn(column, {})
    gone = {
        f.number: row_sets.span(max(0, before - f.number * catalog.fragment_rows), catalog.fragment_rows)
        for f in manifest.fragments
    }
    unreadable = {
        old.number: (old.visible - new.visible) & gone[old.number]
        for old, new in zip(manifest.fragments, trimmed, strict=True)
    }
    return _PurgedColumn(replace(column, manifest=manifests.put(objects, after).digest, reads=reads), unreadable)


@dataclass(frozen=True)
class _CarriedValues:
    """Values of rows that a purge carried, with their new offsets and whether they are of the present version."""

    offsets: I64
    is_done: Mask
    values: pa.ChunkedArray
    errors: pa.Table

    def within(self, start: int, end: int) -> _CarriedValues:
        at = np.flatnonzero((self.offsets >= start) & (self.offsets < end))
        offset = pc.field("offset")
        errors = self.errors.filter((offset >= start) & (offset < end))
        return _CarriedValues(self.offsets[at], self.is_done[at], self.values.take(pa.array(at)), errors)


def _carry(
    objects: ColumnObjects,
    column: ColumnDefinition,
    catalog: Catalog,
    manifest: ColumnManifest,
    after: ColumnManifest,
    before: int,
    carried_to: CarriedTo,
) -> ColumnManifest:
    """The manifest `after` with the values that `manifest` has of carried rows, at the rows' new offsets."""
    rows = catalog.fragment_rows
    try:
        moved = [_moved(objects, column, rows, f, before, carried_to) for f in manifest.fragments]
    except UnreadableColumn as error:
        _log.warning("%s; the next backfill computes the values of the carried rows again", error.message)
        return after
    found = [one for one in moved if len(one.offsets)]
    if not found:
        return after
    offsets = np.concatenate([one.offsets for one in found])
    order = np.argsort(offsets)
    everything = _CarriedValues(
        offsets[order],
        np.concatenate([one.is_done for one in found])[order],
        pa.chunked_array([c for one in found for c in one.values.chunks], column.type).take(pa.array(order)),
        pa.concat_tables([row_errors.EMPTY, *(one.errors for one in found)]).sort_by("offset"),
    )
    placed = []
    for number in np.unique(everything.offsets // rows).tolist():
        mine = everything.within(number * rows, (number + 1) * rows)
        placed.append(_place(objects, column, after.fragment(number), mine, number * rows))
    return after.with_fragments(placed)


def _moved(
    objects: ColumnObjects, column: ColumnDefinition, rows: int, fragment: Fragment, before: int, carried_to: CarriedTo
) -> _CarriedValues:
    """The values of a fragment's rows that were carried from before an offset."""
    base = fragment.number * rows
    known = row_sets.to_array(fragment.visible & row_sets.span(0, min(max(before - base, 0), rows))) + base
    new = carried_to(known)
    at = np.flatnonzero(new >= before)
    [values] = ColumnValues(objects, rows, (column,)).open([column.name]).take(known[at])
    done = row_sets.to_array(fragment.done) + base
    errors = row_errors.load(objects, fragment.errors)
    old, where = errors.column("offset").to_numpy(), np.searchsorted(known[at], errors.column("offset").to_numpy())
    is_carried = np.append(known[at], -1)[where] == old
    offsets = pa.array(new[at][where[is_carried]], pa.int64())
    errors = errors.filter(pa.array(is_carried)).set_column(0, row_errors.SCHEMA.field("offset"), offsets)
    return _CarriedValues(new[at], np.isin(known[at], done, assume_unique=True), values, errors)


def _place(
    objects: ColumnObjects, column: ColumnDefinition, fragment: Fragment, mine: _CarriedValues, base: int
) -> Fragment:
    """The fragment with these values in one more file; unchanged if it has values of these rows already."""
    start, end = int(mine.offsets[0]), int(mine.offsets[-1]) + 1
    if any(s.start < end and s.end > start for s in fragment.segments):
        return fragment
    places = np.full(end - start, -1)
    places[mine.offsets - start] = np.arange(len(mine.offsets))
    values = mine.values.take(pa.array(places, mask=places < 0))
    segment = write_segment(objects, column.field, start, [values])
    addresses = mine.offsets - base
    errors = row_errors.merge_errors([row_errors.load(objects, fragment.errors), mine.errors])
    return replace(
        fragment,
        segments=tuple(sorted([*fragment.segments, segment], key=lambda s: s.start)),
        done=fragment.done | row_sets.from_array(addresses[mine.is_done]),
        kept=fragment.kept | row_sets.from_array(addresses[~mine.is_done]),
        errors=row_errors.put(objects, errors),
        carried=fragment.carried | row_sets.from_array(addresses),
    )


def _all_rows(objects: ColumnObjects, column: ColumnDefinition, catalog: Catalog) -> ChangedAddresses:
    """All rows of the fragments of dependent columns, since the rows that the lost manifest had are unknown."""
    whole = row_sets.span(0, catalog.fragment_rows)
    found = [manifests.find(objects, c.manifest) for c in catalog.dependents(column.name) if c.manifest is not None]
    return {f.number: whole for manifest in found if manifest is not None for f in manifest.fragments}


def _first_of_file(objects: ColumnObjects, key: str) -> int:
    try:
        with objects.store.open(key) as file:
            return int(pq.read_metadata(file).metadata[START_KEY])
    except (StorageError, OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return 0


def _first_of_errors(objects: ColumnObjects, key: str) -> int:
    try:
        offsets = row_errors.load(objects, key.rpartition("/")[2]).column("offset")
    except UnreadableColumn:
        return 0
    return int(pc.min(offsets).as_py())


def is_of_other_dataset(key: str, dataset_id: str) -> bool:
    """Whether a checkpoint has values of the records of another dataset."""
    parsed = parse_key(key)
    prefix = None if parsed is None else CheckpointPrefix.parse(parsed.prefix)
    return prefix is not None and prefix.uri != hash_text(dataset_id)


def _first_of_checkpoint(key: str, fragment_rows: int) -> int:
    """The offset of the first record that a checkpoint may have; 0 for older keys, which do not contain it."""
    parsed = parse_key(key)
    return 0 if parsed is None else parsed.fragment * fragment_rows + parsed.start
