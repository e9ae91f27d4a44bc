"""Checking computed columns: catalog, manifests and files against their hashes and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.errors import BadCatalog, BadColumn, BadRowErrors, UnreadableColumn
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import column_file, row_errors
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.column_file import SegmentFile
from floodmark.compute.stored.manifest import Fragment, Manifest, Segment
from floodmark.compute.stored.objects import ColumnObjects
from floodmark.compute.stored.purge import find_left
from floodmark.engine.threads import Threads
from floodmark.ledger.slice_check import Problem
from floodmark.storage.retry import read_steadily
from floodmark.storage.slices import ROW_GROUP_ROWS

_THREADS = 2


def column_problems(objects: ColumnObjects, purged_before: int = 0, dataset_id: str = "") -> list[Problem]:
    """Everything that is wrong with a dataset's computed columns; every byte of their files is read.

    No value may be left of records before `purged_before`. Backfills, purges and gc may go on meanwhile: what they
    replaced is no reason to complain.
    """
    try:
        return read_steadily(
            lambda: catalogs.load(objects),
            lambda catalog: _problems(objects, catalog, purged_before, dataset_id),
            lambda catalog: catalogs.load(objects) != catalog,
            doubted=bool,
        )
    except BadCatalog as error:
        return [Problem("column", error.key, error.message)]


def _problems(objects: ColumnObjects, catalog: Catalog, purged_before: int, dataset_id: str) -> list[Problem]:
    problems = [p for column in catalog.columns for p in _column_problems(objects, catalog, column)]
    before = max(purged_before, catalog.purged_before)
    return [*problems, *_purged_problems(objects, catalog, before, dataset_id)]


def _column_problems(objects: ColumnObjects, catalog: Catalog, column: Column) -> Iterator[Problem]:
    if column.manifest is None:
        return
    key = objects.manifest_key(column.manifest)
    try:
        manifest = manifests.load(objects, column)
    except BadColumn as error:
        yield Problem("column", key, error.message, column=column.name)
        return
    rows = catalog.fragment_rows
    for fragment in manifest.fragments:
        for contradiction in _contradictions(fragment, rows):
            message = f"fragment {fragment.number} of the computed column {column.name!r} {contradiction}"
            yield Problem("column", key, message, column=column.name)
    segments = [s for f in manifest.fragments for s in f.segments]
    owners = [f for f in manifest.fragments for _ in f.segments]
    with Threads(_THREADS) as hashing:  # hashing and reading both release the GIL
        for found in hashing.map(partial(_segment_problem, objects, column, rows), owners, segments):
            if found is not None:
                yield found
    for fragment in manifest.fragments:
        yield from _error_problems(objects, column, fragment, rows)


def _contradictions(fragment: Fragment, rows: int) -> Iterator[str]:
    """What a fragment says of itself that cannot be."""
    start, end = fragment.number * rows, (fragment.number + 1) * rows
    for segment in fragment.segments:
        if not start <= segment.start < segment.end <= end:
            yield f"has a file for offsets {segment.start}–{segment.end - 1}, outside of its window {start}–{end - 1}"
            return
    for one, other in pairwise(fragment.segments):
        if one.end > other.start:
            yield f"has two files for offset {other.start}, or its files are out of order"
    if twice := (fragment.done & fragment.kept) | (fragment.done & fragment.hidden) | (fragment.kept & fragment.hidden):
        yield f"says two things of {len(twice)} rows, the first at offset {start + twice.min()}"
    spans = [addresses.span(s.start - start, s.end - start) for s in fragment.segments]
    if homeless := (fragment.visible | fragment.hidden) - BitMap.union(BitMap(), BitMap(), *spans):
        yield f"has no file for {len(homeless)} rows that are computed, the first at offset {start + homeless.min()}"


def _segment_problem(
    objects: ColumnObjects, column: Column, rows: int, fragment: Fragment, segment: Segment
) -> Problem | None:
    try:
        opened = column_file.open_segment(objects, segment, column.field)
        if not column_file.is_whole(objects, segment):
            raise column_file.unreadable(
                segment.key(objects), segment, column.field, "was changed or damaged", column_file.DELETE_FIRST
            )
        strays = _strays(opened, fragment, fragment.number * rows)
    except UnreadableColumn as error:
        return Problem("column", error.key, f"{error.message}; {error.hint}", column=column.name)
    if not strays:
        return None
    message = (
        f"{len(strays)} values of the computed column {column.name!r} can be read and nothing says what they were "
        f"computed from, the first at offset {fragment.number * rows + strays.min()}; drop_column({column.name!r}) and "
        "add it again"
    )
    return Problem("column", segment.key(objects), message, column=column.name)


def _strays(file: SegmentFile, fragment: Fragment, base: int) -> BitMap:
    """The addresses that have a value in a file and are in no set: nobody would notice when their inputs change."""
    segment = file.segment
    unknown = addresses.span(segment.start - base, segment.end - base) - fragment.visible - fragment.hidden
    found = BitMap()
    for start in range(segment.start, segment.end, ROW_GROUP_ROWS) if unknown else ():
        values = file.read(start, min(start + ROW_GROUP_ROWS, segment.end))
        there = np.flatnonzero(values.is_valid().to_numpy())
        found |= addresses.from_array(there + start - base) & unknown
    return found


def _purged_problems(objects: ColumnObjects, catalog: Catalog, before: int, dataset_id: str) -> Iterator[Problem]:
    """What is left of purged records: a purge that ended halfway, or that others have not finished."""
    remedy = f"purge({before}) again removes it"
    try:
        starts = {c: _first_offset(manifests.load(objects, c)) for c in catalog.columns}
        left = find_left(objects, catalog, before, dataset_id)
    except BadColumn:
        return  # which is a problem already; without it nobody knows whose the files are
    for column, start in starts.items():
        if start is not None and start < before:
            message = f"the computed column {column.name!r} has values of purged records, before offset {before}"
            key = objects.manifest_key(str(column.manifest))
            yield Problem("column", key, f"{message}; {remedy}", column=column.name)
    for key in (*left.files, *left.checkpoints):
        yield Problem("column", key, f"{key!r} holds values of purged records, before offset {before}; {remedy}")


def _first_offset(manifest: Manifest) -> int | None:
    return min((s.start for f in manifest.fragments for s in f.segments), default=None)


def _error_problems(objects: ColumnObjects, column: Column, fragment: Fragment, rows: int) -> Iterator[Problem]:
    if fragment.errors is None:
        return
    key = objects.errors_key(fragment.errors)
    try:
        offsets = row_errors.load(objects, fragment.errors).column("offset").to_numpy()
    except BadRowErrors as error:
        yield Problem("column", key, f"{error.message}; {error.hint}", column=column.name)
        return
    if len(offsets) and (offsets.min() // rows != fragment.number or offsets.max() // rows != fragment.number):
        yield Problem("column", key, f"errors of fragment {fragment.number} are of other rows", column=column.name)
