"""Commits new values of a column, and marks the values that depend on them as stale.

One swap of the catalog changes the manifest of the column and those of all columns that are computed from it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap

from floodmark.columns import catalog as catalogs
from floodmark.columns import manifest as manifests
from floodmark.columns import row_errors
from floodmark.columns.catalog import Catalog, ColumnDefinition, ColumnObjects
from floodmark.columns.clip import clip_fragment
from floodmark.columns.lost_values import find_lost_values
from floodmark.columns.manifest import ColumnManifest, Fragment
from floodmark.derive.checkpoint_key import CheckpointPrefix
from floodmark.derive.lost_records import cut_trail, extend_trail
from floodmark.derive.positions import PositionInput
from floodmark.errors import DerivationError, LostRace, UnreadableColumn
from floodmark.ledger.position import Position

_log = logging.getLogger(__name__)

ChangedAddresses = Mapping[int, BitMap]
"""Per fragment, the addresses of rows whose visible value changed."""


def commit_fragments(
    objects: ColumnObjects,
    dataset_id: str,
    column: ColumnDefinition,
    base: ColumnManifest,
    fragments: Sequence[Fragment],
    changed: ChangedAddresses,
    identity: str,
    read: Position | None = None,
) -> Catalog:
    """Commit fragments that were computed under an identity. All other fragments stay as in the manifest `base`.

    `read` is the newest record of the dataset when they were computed.
    `DerivationError` when the column was dropped or its function changed. `LostRace` when another commit came first:
    plan again.
    """
    stored = manifests.put(objects, base.with_identity(identity).with_fragments(fragments))
    first = min((s.start for f in stored.fragments for s in f.segments), default=None)

    def swapped(before: Catalog) -> Catalog:
        present = _current_column(before, column)
        # Compare identities, too: before the first values, a changed input does not change a manifest.
        if present.manifest != base.digest or catalogs.identity(before, dataset_id, present) != identity:
            raise _lost_race(column, "another process changed it or its inputs")
        if first is not None and first < before.purged_before:
            raise _lost_race(column, "records were purged")
        reads = present.reads if read is None else extend_trail(present.reads, read)
        filled = before.with_column(replace(present, manifest=stored.digest, reads=reads))
        return hide_dependent_values(objects, dataset_id, filled, filled.column(column.name), changed)

    return catalogs.change(objects, swapped)


def _current_column(catalog: Catalog, column: ColumnDefinition) -> ColumnDefinition:
    """The current definition of the column, if the values were computed for it."""
    present = catalog.find(column.name)
    if present is None or present.field_id != column.field_id:
        raise _column_changed(column, "was dropped")
    if not present.function.is_same(column.function) or present.inputs != column.inputs:
        raise _column_changed(column, "got another function")
    return present


def hide_dependent_values(
    objects: ColumnObjects, dataset_id: str, before: Catalog, column: ColumnDefinition, changed: ChangedAddresses
) -> Catalog:
    """The catalog after visible values of a column changed in some rows. Values computed from them are hidden."""
    touched = {number: rows for number, rows in changed.items() if rows}
    if not touched:
        return before
    after = before.with_column(replace(column, generation=column.generation + 1))
    for dependent in before.dependents(column.name):
        after = after.with_column(_hide_stale(objects, dataset_id, before, after, dependent, touched))
    return after


def _hide_stale(
    objects: ColumnObjects,
    dataset_id: str,
    before: Catalog,
    after: Catalog,
    column: ColumnDefinition,
    changed: ChangedAddresses,
) -> ColumnDefinition:
    """A column whose inputs changed in some rows. Their values are hidden until computed again; others stay visible."""
    if column.manifest is None:
        return column
    manifest = manifests.load(objects, column)
    hiding = [manifest.fragment(number).hide(rows) for number, rows in changed.items()]
    hidden = [_without_errors(objects, f, changed[f.number], after) for f in hiding if f != manifest.fragment(f.number)]
    is_current = manifest.identity == catalogs.identity(before, dataset_id, column)
    identity = catalogs.identity(after, dataset_id, column) if is_current else manifest.identity
    if not hidden and identity == manifest.identity:
        return column
    stored = manifests.put(objects, replace(manifest, identity=identity).with_fragments(hidden))
    return replace(column, manifest=stored.digest, generation=column.generation + bool(hidden))


def _without_errors(objects: ColumnObjects, fragment: Fragment, hidden: BitMap, catalog: Catalog) -> Fragment:
    """A fragment without the errors of hidden rows: their old inputs caused them."""
    try:
        errors = row_errors.load(objects, fragment.errors)
    except UnreadableColumn as error:  # values can be committed without it
        _log.warning("%s", error.message)
        return fragment
    left = row_errors.without(errors, hidden, fragment.number * catalog.fragment_rows)
    return fragment if left.num_rows == errors.num_rows else replace(fragment, errors=row_errors.put(objects, left))


def _column_changed(column: ColumnDefinition, what: str) -> DerivationError:
    return DerivationError(
        f"the computed column {column.name!r} {what} while values were computed for it",
        hint="run the backfill again if the column is still needed; these values were not committed",
        column=column.name,
    )


def _lost_race(column: ColumnDefinition, why: str) -> LostRace:
    return LostRace(
        f"values of the computed column {column.name!r} were not committed: {why} meanwhile",
        hint="run the backfill again: what was computed is in checkpoints",
        column=column.name,
    )


def drop_lost_values(objects: ColumnObjects, name: str, given: PositionInput) -> None:
    """Remove the values of records that the dataset lost from a column, in one swap of the catalog."""

    def dropped(before: Catalog) -> Catalog:
        column = before.column(name)
        lost = find_lost_values(column, given)
        if lost is None:
            return before
        manifest, end = manifests.load(objects, column), lost.kept.offset + 1
        clipped = [clip_fragment(objects, column, f, before.fragment_rows, 0, end) for f in manifest.fragments]
        stored = manifests.put(objects, replace(manifest, fragments=tuple(f for f in clipped if f.segments)))
        reads = cut_trail(column.reads, lost.kept)
        return before.with_column(replace(column, manifest=stored.digest, reads=reads))

    catalogs.change(objects, dropped)


_NO_IDENTITY = ""
"""The identity of values that no function has computed: for every function they are older values."""


def reset_values(objects: ColumnObjects, name: str, prefix: CheckpointPrefix) -> None:
    """Remove the checkpoints of a column, and mark its values as outdated. They are visible until computed again."""
    # Checkpoints first: a crash after this only costs work, and once the values are outdated, no checkpoint may exist.
    for _, info in objects.checkpoints.computation_infos(prefix.text):
        objects.checkpoints.delete(info.key)

    def forgotten(before: Catalog) -> Catalog:
        column = before.column(name)
        if column.manifest is None:
            return before
        outdated = manifests.put(objects, manifests.load(objects, column).with_identity(_NO_IDENTITY))
        return before.with_column(replace(column, manifest=outdated.digest))

    catalogs.change(objects, forgotten)
