"""Verifies computed columns: checks the catalog, manifests and files against their hashes and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import column_file, row_errors
from floodmark.columns import manifest as manifests
from floodmark.columns.catalog import Catalog, ColumnDefinition, ColumnObjects
from floodmark.columns.column_file import SegmentFile
from floodmark.columns.erase import list_leftovers
from floodmark.columns.manifest import ColumnManifest, ColumnSegment, Fragment
from floodmark.columns.purge import find_purge_leftovers
from floodmark.engine.run import GeneratorThreads
from floodmark.errors import UnreadableColumn
from floodmark.ledger.verify import VerifyProblem
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64
from floodmark.storage.parquet import ROW_GROUP_ROWS
from floodmark.storage.pointer import read_consistently

_THREADS = 2


def find_column_problems(objects: ColumnObjects, purged_before: int = 0, dataset_id: str = "") -> list[VerifyProblem]:
    """All problems of a dataset's computed columns. Every byte of their files is read.

    Values of records before `purged_before` are a problem. Backfills, purges and gc may run meanwhile: objects that
    they replace are not reported.
    """
    try:
        return read_consistently(
            lambda: catalogs.load(objects),
            lambda catalog: _problems(objects, catalog, purged_before, dataset_id),
            lambda catalog: catalogs.load(objects) != catalog,
            doubted=bool,
        )
    except UnreadableColumn as error:
        return [VerifyProblem("column", error.key, error.message)]


def find_erased_values(objects: ColumnObjects, erased: I64, dataset_id: str) -> list[VerifyProblem]:
    """Files and checkpoints that may have values of erased records."""
    message = "it may have values of erased records; erase their keys again to remove it"
    return [VerifyProblem("column", key, f"{key!r}: {message}") for key in list_leftovers(objects, erased, dataset_id)]


def _problems(objects: ColumnObjects, catalog: Catalog, purged_before: int, dataset_id: str) -> list[VerifyProblem]:
    problems = [p for column in catalog.columns for p in _column_problems(objects, catalog, column)]
    if not catalog.columns and objects.catalog.read() is None:
        problems += _without_catalog(objects)
    before = max(purged_before, catalog.purged_before)
    return [*problems, *_purged_problems(objects, catalog, before, dataset_id)]


def _without_catalog(objects: ColumnObjects) -> Iterator[VerifyProblem]:
    """Manifests and files of columns are written after the catalog, which is never removed."""
    if any(True for listed in (objects.manifests(), objects.files()) for _ in listed):
        message = "the catalog is missing, but there are values of computed columns; restore it from a copy"
        yield VerifyProblem("column", objects.catalog_key, message)


def _column_problems(objects: ColumnObjects, catalog: Catalog, column: ColumnDefinition) -> Iterator[VerifyProblem]:
    if column.manifest is None:
        return
    key = objects.manifest_key(column.manifest)
    try:
        manifest = manifests.load(objects, column)
    except UnreadableColumn as error:
        yield VerifyProblem("column", key, error.message, column=column.name)
        return
    rows = catalog.fragment_rows
    for fragment in manifest.fragments:
        for contradiction in _contradictions(fragment, rows):
            message = f"fragment {fragment.number} of the computed column {column.name!r} {contradiction}"
            yield VerifyProblem("column", key, message, column=column.name)
    segments = [s for f in manifest.fragments for s in f.segments]
    owners = [f for f in manifest.fragments for _ in f.segments]
    with GeneratorThreads(_THREADS) as hashing:  # hashing and reading both release the GIL
        for found in hashing.map(partial(_segment_problem, objects, column, rows), owners, segments):
            if found is not None:
                yield found
    for fragment in manifest.fragments:
        yield from _error_problems(objects, column, fragment, rows)


def _contradictions(fragment: Fragment, rows: int) -> Iterator[str]:
    """The contradictions within a fragment's manifest entry."""
    start, end = fragment.number * rows, (fragment.number + 1) * rows
    for segment in fragment.segments:
        if not start <= segment.start < segment.end <= end:
            yield f"has a file for offsets {segment.start}–{segment.end - 1}, outside of its window {start}–{end - 1}"
            return
    for one, other in pairwise(fragment.segments):
        if one.end > other.start:
            yield f"has two files for offset {other.start}, or its files are out of order"
    if twice := (fragment.done & fragment.kept) | (fragment.done & fragment.hidden) | (fragment.kept & fragment.hidden):
        yield f"lists {len(twice)} rows in two states, the first at offset {start + twice.min()}"
    spans = [row_sets.span(s.start - start, s.end - start) for s in fragment.segments]
    if uncovered := (fragment.visible | fragment.hidden) - BitMap.union(BitMap(), BitMap(), *spans):
        yield f"has no file for {len(uncovered)} computed rows, the first at offset {start + uncovered.min()}"


def _segment_problem(
    objects: ColumnObjects, column: ColumnDefinition, rows: int, fragment: Fragment, segment: ColumnSegment
) -> VerifyProblem | None:
    try:
        opened = column_file.open_segment(objects, segment, column.field)
        if not column_file.has_valid_hash(objects, segment):
            raise column_file.unreadable_error(
                segment.key(objects), segment, column.field, "was changed or damaged", column_file.DELETE_FIRST
            )
        strays = _strays(opened, fragment, fragment.number * rows)
    except UnreadableColumn as error:
        return VerifyProblem("column", error.key, f"{error.message}; {error.hint}", column=column.name)
    if not strays:
        return None
    message = (
        f"{len(strays)} values of the computed column {column.name!r} are readable but not listed in its manifest, the "
        f"first at offset {fragment.number * rows + strays.min()}; call drop_column({column.name!r}) and add it again"
    )
    return VerifyProblem("column", segment.key(objects), message, column=column.name)


def _strays(file: SegmentFile, fragment: Fragment, base: int) -> BitMap:
    """The addresses that have a value in a file and are in no set, so a change of their inputs would go unnoticed."""
    segment = file.segment
    unknown = row_sets.span(segment.start - base, segment.end - base) - fragment.visible - fragment.hidden
    found = BitMap()
    for start in range(segment.start, segment.end, ROW_GROUP_ROWS) if unknown else ():
        values = file.read(start, min(start + ROW_GROUP_ROWS, segment.end))
        there = np.flatnonzero(values.is_valid().to_numpy())
        found |= row_sets.from_array(there + start - base) & unknown
    return found


def _purged_problems(objects: ColumnObjects, catalog: Catalog, before: int, dataset_id: str) -> Iterator[VerifyProblem]:
    """The values that are left of purged records, after an interrupted or unfinished purge."""
    remedy = f"run purge({before}) again to remove it"
    try:
        starts = {c: _first_offset(manifests.load(objects, c)) for c in catalog.columns}
        left = find_purge_leftovers(objects, catalog, before, dataset_id)
    except UnreadableColumn:
        return  # already reported; without the manifest, the owners of the files are unknown
    for column, start in starts.items():
        if start is not None and start < before:
            message = f"the computed column {column.name!r} has values of purged records, before offset {before}"
            key = objects.manifest_key(str(column.manifest))
            yield VerifyProblem("column", key, f"{message}; {remedy}", column=column.name)
    for key in (*left.files, *left.checkpoints):
        yield VerifyProblem("column", key, f"{key!r} has values of purged records, before offset {before}; {remedy}")


def _first_offset(manifest: ColumnManifest) -> int | None:
    return min((s.start for f in manifest.fragments for s in f.segments), default=None)


def _error_problems(
    objects: ColumnObjects, column: ColumnDefinition, fragment: Fragment, rows: int
) -> Iterator[VerifyProblem]:
    if fragment.errors is None:
        return
    key = objects.errors_key(fragment.errors)
    try:
        offsets = row_errors.load(objects, fragment.errors).column("offset").to_numpy()
    except UnreadableColumn as error:
        yield VerifyProblem("column", key, f"{error.message}; {error.hint}", column=column.name)
        return
    if len(offsets) and (offsets.min() // rows != fragment.number or offsets.max() // rows != fragment.number):
        yield VerifyProblem(
            "column", key, f"errors of fragment {fragment.number} belong to other rows", column=column.name
        )
