"""Purging computed columns: values that were computed from purged records go with them, wherever they are kept.

First the catalog stops naming them, and takes no more of them; then the files and checkpoints are deleted.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from floodmark.compute import addresses, row_errors
from floodmark.compute import catalog as catalogs
from floodmark.compute import manifest as manifests
from floodmark.compute.catalog import FIRST_FIELD_ID, Catalog, Column
from floodmark.compute.column_file import START_KEY, read_values, write_segment
from floodmark.compute.errors import BadColumn, BadRowErrors, UnreadableColumn
from floodmark.compute.keys import parse_key
from floodmark.compute.manifest import Fragment, Segment
from floodmark.compute.objects import ColumnObjects
from floodmark.storage.errors import StorageError

_log = logging.getLogger(__name__)


def drop_purged(objects: ColumnObjects, before: int) -> None:
    """Remove every value and error of records before an offset; rows from there on stay as they are."""
    if catalogs.load(objects).next_field_id == FIRST_FIELD_ID:
        return  # there never was a computed column

    def purged(catalog: Catalog) -> Catalog:
        columns = tuple(_column(objects, column, catalog.fragment_rows, before) for column in catalog.columns)
        return replace(catalog, columns=columns, purged_before=max(catalog.purged_before, before))

    after = catalogs.change(objects, purged)
    _delete_files(objects, after, before)
    _delete_checkpoints(objects, after.fragment_rows, before)


def _column(objects: ColumnObjects, column: Column, fragment_rows: int, before: int) -> Column:
    try:
        manifest = manifests.load(objects, column)
    except BadColumn as error:  # it names nothing that could be kept
        _log.warning("%s; all of its values are dropped by the purge", error.message)
        return replace(column, manifest=None)
    trimmed = [_fragment(objects, column, f, fragment_rows, before) for f in manifest.fragments]
    after = replace(manifest, fragments=tuple(f for f in trimmed if f.segments))
    return column if after == manifest else replace(column, manifest=manifests.put(objects, after).digest)


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


def _delete_files(objects: ColumnObjects, catalog: Catalog, before: int) -> None:
    """Delete files with purged rows, named by an older manifest or by none; unreadable ones might have some too."""
    named = {key for column in catalog.columns for key in manifests.load(objects, column).keys(objects)}
    for info in list(objects.files()):
        if info.key not in named and _first_of_file(objects, info.key) < before:
            objects.store.delete(info.key)
    for info in list(objects.errors()):
        if info.key not in named and _first_of_errors(objects, info.key) < before:
            objects.store.delete(info.key)


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


def _delete_checkpoints(objects: ColumnObjects, fragment_rows: int, before: int) -> None:
    """Delete checkpoints that overlap purged rows; of those whose keys do not tell, all: they are older than most."""
    checkpoints = objects.checkpoints
    for key in checkpoints.list_keys():
        parsed = parse_key(key)
        if parsed is None or parsed.fragment * fragment_rows + parsed.start < before:
            checkpoints.delete(key)
