"""Purging computed columns: values that were computed from purged records go with them, wherever they are kept.

First the catalog stops naming them, and takes no more of them; then the files and checkpoints are deleted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.keys import Prefix, hash_text, parse_key
from floodmark.compute.errors import BadCatalog, BadColumn, BadRowErrors, UnreadableColumn
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored import row_errors
from floodmark.compute.stored.catalog import FIRST_FIELD_ID, Catalog, Column
from floodmark.compute.stored.column_file import START_KEY, read_values, write_segment
from floodmark.compute.stored.install import Changed, with_changed
from floodmark.compute.stored.manifest import Fragment, Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.ledger.errors import CommitConflict, CommitUnknown
from floodmark.storage.errors import StorageError

_log = logging.getLogger(__name__)


def drop_purged(objects: ColumnObjects, before: int, dataset_id: str = "") -> None:
    """Remove every value and error of records before an offset; rows from there on stay as they are.

    The records are gone already, so a store that fails fails nothing: what is left goes with the next purge or
    collection, and verify tells of it. Without the dataset's id, columns that are computed from values which proved
    damaged are computed again as a whole, and not just in those rows.
    """
    try:
        if catalogs.load(objects).next_field_id == FIRST_FIELD_ID:
            return  # there never was a computed column
        after = catalogs.change(objects, partial(_purged, objects, dataset_id, before))
        left = find_left(objects, after, before, dataset_id)
    except (StorageError, CommitConflict, CommitUnknown, BadCatalog, BadColumn) as error:
        _log.warning("values computed from purged records could not be removed (%s); the next purge tries again", error)
        return
    for delete, keys in ((objects.store.delete, left.files), (objects.checkpoints.delete, left.checkpoints)):
        for key in keys:
            try:
                delete(key)
            except StorageError as error:
                _log.warning("a file of purged values could not be deleted (%s); the next purge tries again", error)


@dataclass(frozen=True)
class Left:
    """What nobody may keep: files, by their keys in the store, and checkpoints that hold values of purged records."""

    files: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()


def find_left(objects: ColumnObjects, catalog: Catalog, before: int, dataset_id: str = "") -> Left:
    """What there is of records before an offset and the catalog does not name; unreadable files might have some too.

    With the dataset's id, checkpoints of other datasets' records, which views have, are left alone.
    """
    if before <= 0:
        return Left()
    named = {key for column in catalog.columns for key in manifests.load(objects, column).keys(objects)}
    values = [i.key for i in objects.files() if i.key not in named and _first_of_file(objects, i.key) < before]
    errors = [i.key for i in objects.errors() if i.key not in named and _first_of_errors(objects, i.key) < before]
    rows = catalog.fragment_rows
    listed = objects.checkpoints.list_keys()
    own = [key for key in listed if not is_of_another(key, dataset_id)] if dataset_id else listed
    checkpoints = [key for key in own if _first_of_checkpoint(key, rows) < before]
    return Left((*values, *errors), tuple(checkpoints))


def _purged(objects: ColumnObjects, dataset_id: str, before: int, catalog: Catalog) -> Catalog:
    trimmed = [_column(objects, column, catalog, before) for column in catalog.columns]
    columns = tuple(t.column for t in trimmed)
    after = replace(catalog, columns=columns, purged_before=max(catalog.purged_before, before))
    for one in trimmed:  # after all are cut: those that depend on it can be read by now
        after = with_changed(objects, dataset_id, after, after.column(one.column.name), one.lost)
    return after


@dataclass(frozen=True)
class _Trimmed:
    """A column without purged rows, and the rows from there on that are lost too, because they could not be read."""

    column: Column
    lost: Changed


def _column(objects: ColumnObjects, column: Column, catalog: Catalog, before: int) -> _Trimmed:
    try:
        manifest = manifests.load(objects, column)
    except BadColumn as error:  # it names nothing that could be kept
        _log.warning("%s; all of its values are dropped by the purge", error.message)
        return _Trimmed(replace(column, manifest=None), _all_rows(objects, column, catalog))
    trimmed = [_fragment(objects, column, f, catalog.fragment_rows, before) for f in manifest.fragments]
    after = replace(manifest, fragments=tuple(f for f in trimmed if f.segments))
    if after == manifest:
        return _Trimmed(column, {})
    gone = {
        f.number: addresses.span(max(0, before - f.number * catalog.fragment_rows), catalog.fragment_rows)
        for f in manifest.fragments
    }
    lost = {
        old.number: (old.visible - new.visible) & gone[old.number]
        for old, new in zip(manifest.fragments, trimmed, strict=True)
    }
    return _Trimmed(replace(column, manifest=manifests.put(objects, after).digest), lost)


def _all_rows(objects: ColumnObjects, column: Column, catalog: Catalog) -> Changed:
    """Every row that something was computed from: which of them a column had, nobody knows any more."""
    whole = addresses.span(0, catalog.fragment_rows)
    found = [manifests.find(objects, c.manifest) for c in catalog.dependents(column.name) if c.manifest is not None]
    return {f.number: whole for manifest in found if manifest is not None for f in manifest.fragments}


def _fragment(objects: ColumnObjects, column: Column, fragment: Fragment, rows: int, before: int) -> Fragment:
    base = fragment.number * rows
    if base >= before:
        return fragment
    segments = tuple(s for s in (_segment(objects, column, s, before) for s in fragment.segments) if s is not None)
    there = BitMap.union(BitMap(), BitMap(), *[addresses.span(s.start - base, s.end - base) for s in segments])
    return Fragment(
        number=fragment.number,
        segments=segments,
        done=fragment.done & there,
        kept=fragment.kept & there,
        hidden=fragment.hidden & there,
        errors=_errors(objects, fragment.errors, before),
    )


def _segment(objects: ColumnObjects, column: Column, segment: Segment, before: int) -> Segment | None:
    """What stays of a segment: all, nothing, or a new file without the purged rows."""
    if segment.start >= before:
        return segment
    if segment.end <= before:
        return None
    try:
        values = read_values(objects, segment, column.field, before, segment.end)
    except UnreadableColumn as error:
        _log.warning("%s; it is dropped by the purge, and a backfill makes the rest of it anew", error.message)
        return None
    return write_segment(objects, column.field, before, [values])


def _errors(objects: ColumnObjects, digest: str | None, before: int) -> str | None:
    try:
        errors = row_errors.load(objects, digest)
    except BadRowErrors as error:
        _log.warning("%s; it is dropped by the purge", error.message)
        return None
    return row_errors.put(objects, errors.filter(pc.field("offset") >= before))


def _first_of_file(objects: ColumnObjects, key: str) -> int:
    try:
        with objects.store.open(key) as file:
            return int(pq.read_metadata(file).metadata[START_KEY])
    except (StorageError, OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return 0


def _first_of_errors(objects: ColumnObjects, key: str) -> int:
    try:
        offsets = row_errors.load(objects, key.rpartition("/")[2]).column("offset")
    except BadRowErrors:
        return 0
    return int(pc.min(offsets).as_py())


def is_of_another(key: str, dataset_id: str) -> bool:
    """Whether a checkpoint has values of another dataset's records."""
    parsed = parse_key(key)
    prefix = None if parsed is None else Prefix.parse(parsed.prefix)
    return prefix is not None and prefix.uri != hash_text(dataset_id)


def _first_of_checkpoint(key: str, fragment_rows: int) -> int:
    """The first record that a checkpoint may be of; keys that do not tell are older than most."""
    parsed = parse_key(key)
    return 0 if parsed is None else parsed.fragment * fragment_rows + parsed.start
