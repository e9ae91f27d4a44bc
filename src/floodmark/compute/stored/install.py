"""Changes of the catalog: new values become visible together with everything that they make stale.

A column's new manifest, and those of all columns that are computed from it, are swapped in by one change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap

from floodmark.compute.errors import BadRowErrors, ColumnChanged, ManifestMoved
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored import row_errors
from floodmark.compute.stored.catalog import Catalog, Column
from floodmark.compute.stored.manifest import Fragment, Manifest
from floodmark.compute.stored.objects import ColumnObjects

_log = logging.getLogger(__name__)

Changed = Mapping[int, BitMap]
"""Per fragment, the addresses of rows whose visible value changed."""


def install(
    objects: ColumnObjects,
    dataset_id: str,
    column: Column,
    base: Manifest,
    fragments: Sequence[Fragment],
    changed: Changed,
    identity: str,
) -> Catalog:
    """Make fragments that were computed under an identity the column's; all others stay as they are in `base`.

    `ColumnChanged` when it is another column or function by now, `ManifestMoved` when others were first: plan again.
    """
    stored = manifests.put(objects, base.under(identity).with_fragments(fragments))
    first = min((s.start for f in stored.fragments for s in f.segments), default=None)

    def swapped(before: Catalog) -> Catalog:
        present = _present(before, column)
        # Before the first values there is no manifest that would move when an input changes.
        if present.manifest != base.digest or catalogs.identity(before, dataset_id, present) != identity:
            raise _moved(column, "others changed it or its inputs")
        if first is not None and first < before.purged_before:
            raise _moved(column, "records were purged")
        filled = before.with_column(replace(present, manifest=stored.digest))
        return with_changed(objects, dataset_id, filled, filled.column(column.name), changed)

    return catalogs.change(objects, swapped)


def _present(catalog: Catalog, column: Column) -> Column:
    """The column as it is now, when it is still the one that values were computed for."""
    present = catalog.find(column.name)
    if present is None or present.field_id != column.field_id:
        raise _column_changed(column, "was dropped")
    if not present.function.is_same(column.function) or present.inputs != column.inputs:
        raise _column_changed(column, "got another function")
    return present


def with_changed(objects: ColumnObjects, dataset_id: str, before: Catalog, column: Column, changed: Changed) -> Catalog:
    """The catalog after visible values of a column changed in some rows: what was computed from those is hidden."""
    touched = {number: rows for number, rows in changed.items() if rows}
    if not touched:
        return before
    after = before.with_column(replace(column, generation=column.generation + 1))
    for dependent in before.dependents(column.name):
        after = after.with_column(_made_stale(objects, dataset_id, before, after, dependent, touched))
    return after


def _made_stale(
    objects: ColumnObjects, dataset_id: str, before: Catalog, after: Catalog, column: Column, changed: Changed
) -> Column:
    """A column whose inputs changed in some rows: those are hidden until they are computed again, the others stand."""
    if column.manifest is None:
        return column
    manifest = manifests.load(objects, column)
    hiding = [manifest.fragment(number).hiding(rows) for number, rows in changed.items()]
    hidden = [_without_errors(objects, f, changed[f.number], after) for f in hiding if f != manifest.fragment(f.number)]
    is_current = manifest.identity == catalogs.identity(before, dataset_id, column)
    identity = catalogs.identity(after, dataset_id, column) if is_current else manifest.identity
    if not hidden and identity == manifest.identity:
        return column
    stored = manifests.put(objects, replace(manifest, identity=identity).with_fragments(hidden))
    return replace(column, manifest=stored.digest, generation=column.generation + bool(hidden))


def _without_errors(objects: ColumnObjects, fragment: Fragment, hidden: BitMap, catalog: Catalog) -> Fragment:
    """A fragment without the errors of rows that were hidden: they came from inputs that are gone."""
    try:
        errors = row_errors.load(objects, fragment.errors)
    except BadRowErrors as error:  # no reason to refuse values
        _log.warning("%s", error.message)
        return fragment
    left = row_errors.without(errors, hidden, fragment.number * catalog.fragment_rows)
    return fragment if left.num_rows == errors.num_rows else replace(fragment, errors=row_errors.put(objects, left))


def _column_changed(column: Column, what: str) -> ColumnChanged:
    return ColumnChanged(
        f"the computed column {column.name!r} {what} while values were computed for it",
        hint="they were not installed; run the backfill again if the column is still wanted",
        column=column.name,
    )


def _moved(column: Column, why: str) -> ManifestMoved:
    return ManifestMoved(
        f"values of the computed column {column.name!r} were not installed: {why} meanwhile",
        hint="plan again from the present state: what was computed is in checkpoints",
        column=column.name,
    )
