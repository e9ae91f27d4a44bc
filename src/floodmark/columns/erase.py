"""Erase the computed values of some records: from the files of values and errors, and from checkpoints.

First, a new catalog names files without these values. Then the files and checkpoints that have them are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as manifests
from floodmark.columns import row_errors
from floodmark.columns.catalog import FIRST_FIELD_ID, FRAGMENT_ROWS, Catalog, ColumnDefinition, ColumnObjects
from floodmark.columns.checkpoint_batch import ROWADDR, OffsetValues
from floodmark.columns.checkpoint_store import CheckpointStore
from floodmark.columns.column_file import START_KEY, read_values, write_segment
from floodmark.columns.manifest import ColumnSegment, Fragment
from floodmark.columns.purge import is_of_other_dataset
from floodmark.derive.checkpoint_key import CheckpointKey, CheckpointPrefix, hash_text, parse_key
from floodmark.errors import (
    BadCheckpoint,
    CommitConflict,
    CommitUnknown,
    ObjectNotFound,
    StorageError,
    UnreadableColumn,
)
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64

_log = logging.getLogger(__name__)


def drop_erased(objects: ColumnObjects, erased: I64, dataset_id: str) -> None:
    """Remove every value and error of erased records, whose offsets are sorted.

    The records are already erased, so a store error is only logged: verify reports what is left, and the next erasure
    removes it.
    """
    try:
        if len(erased) == 0 or catalogs.load(objects).next_field_id == FIRST_FIELD_ID:
            return  # the dataset never had a computed column
        catalogs.change(objects, partial(_without, objects, erased))
        for key in list_leftovers(objects, erased, dataset_id):
            objects.store.delete(key)
    except (StorageError, CommitConflict, CommitUnknown, UnreadableColumn) as error:
        _log.warning("values of erased records could not be removed (%s); erase the key again to remove them", error)


def drop_checkpoints_of(objects: ColumnObjects, dataset_id: str, offsets: I64) -> None:
    """Remove the checkpoints of a view's functions that have values of these records of its input."""
    of_input = hash_text(dataset_id)
    for key in objects.checkpoints.list_keys():
        parsed = parse_key(key)
        prefix = None if parsed is None else CheckpointPrefix.parse(parsed.prefix)
        if parsed is None or prefix is None or prefix.uri != of_input:
            continue
        if _has(objects.checkpoints, key, parsed, FRAGMENT_ROWS, offsets):
            objects.checkpoints.delete(key)


def list_leftovers(objects: ColumnObjects, erased: I64, dataset_id: str) -> list[str]:
    """The object keys of files and checkpoints that have values or errors of erased records, in use or not.

    What cannot be read is included, since it may have some.
    """
    if len(erased) == 0 or (catalog := catalogs.load(objects)).next_field_id == FIRST_FIELD_ID:
        return []
    files = [i.key for i in objects.files() if _file_has(objects, i.key, erased)]
    errors = [i.key for i in objects.errors() if _errors_have(objects, i.key, erased)]
    return [*files, *errors, *_checkpoints(objects, catalog.fragment_rows, erased, dataset_id)]


def _checkpoints(objects: ColumnObjects, rows: int, erased: I64, dataset_id: str) -> Iterator[str]:
    store = objects.checkpoints
    for key in store.list_keys():
        parsed = parse_key(key)
        if parsed is None or (not is_of_other_dataset(key, dataset_id) and _has(store, key, parsed, rows, erased)):
            yield store.object_key(key)


def _has(store: CheckpointStore, key: str, parsed: CheckpointKey, rows: int, erased: I64) -> bool:
    base = parsed.fragment * rows
    mine = erased[slice(*np.searchsorted(erased, [base + parsed.start, base + parsed.end]))]
    if len(mine) == 0:
        return False
    try:
        batch = store.get(key)
        if ROWADDR in batch.schema.names:
            return bool(np.isin(OffsetValues.of(batch, base).offsets, mine).any())
        return bool(row_sets.unpack(batch.column("done")[0].as_py()) & row_sets.from_array(mine - base))
    except ObjectNotFound:
        return False
    except (BadCheckpoint, KeyError, ValueError):
        return True


def _file_has(objects: ColumnObjects, key: str, erased: I64) -> bool:
    """Whether a file of values has one of an erased record."""
    try:
        with objects.store.open(key) as source:
            file = pq.ParquetFile(source)
            start = int(file.metadata.metadata[START_KEY])
            mine = erased[slice(*np.searchsorted(erased, [start, start + file.metadata.num_rows]))]
            if len(mine) == 0:
                return False
            values = file.read().column(0).take(pa.array(mine - start))
    except ObjectNotFound:
        return False
    except (StorageError, OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return True
    return bool(values.null_count < len(values))


def _errors_have(objects: ColumnObjects, key: str, erased: I64) -> bool:
    try:
        offsets = row_errors.load(objects, key.rpartition("/")[2]).column("offset").to_numpy()
    except UnreadableColumn:
        return True
    return bool(np.isin(offsets, erased).any())


def _without(objects: ColumnObjects, erased: I64, catalog: Catalog) -> Catalog:
    for column in catalog.columns:
        manifest = manifests.load(objects, column)
        fragments = tuple(_fragment(objects, column, f, catalog.fragment_rows, erased) for f in manifest.fragments)
        if fragments != manifest.fragments:
            stored = manifests.put(objects, replace(manifest, fragments=fragments))
            catalog = catalog.with_column(replace(column, manifest=stored.digest))
    return catalog


def _fragment(objects: ColumnObjects, column: ColumnDefinition, fragment: Fragment, rows: int, erased: I64) -> Fragment:
    base = fragment.number * rows
    gone = row_sets.from_array(erased[slice(*np.searchsorted(erased, [base, base + rows]))] - base)
    errors = row_errors.load(objects, fragment.errors)
    left = row_errors.without(errors, gone, base)
    if not gone & (fragment.done | fragment.kept | fragment.hidden) and left.num_rows == errors.num_rows:
        return fragment
    segments = tuple(_segment(objects, column, segment, gone, base) for segment in fragment.segments)
    return Fragment(
        number=fragment.number,
        segments=segments,
        done=fragment.done - gone,
        kept=fragment.kept - gone,
        hidden=fragment.hidden - gone,
        errors=row_errors.put(objects, left),
        carried=fragment.carried - gone,
    )


def _segment(
    objects: ColumnObjects, column: ColumnDefinition, segment: ColumnSegment, gone: BitMap, base: int
) -> ColumnSegment:
    """The segment, in a new file if it has values of these rows."""
    mine = row_sets.to_array(gone & row_sets.span(segment.start - base, segment.end - base))
    if len(mine) == 0:
        return segment
    values = read_values(objects, segment, column.field, segment.start, segment.end)
    is_gone = np.zeros(segment.rows, np.bool_)
    is_gone[mine + base - segment.start] = True
    return write_segment(
        objects, column.field, segment.start, [values.take(pa.array(np.arange(segment.rows), mask=is_gone))]
    )
