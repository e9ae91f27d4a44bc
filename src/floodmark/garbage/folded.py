"""Folded files that no reader uses any more: a fold removes them, but a dataset may never be folded again."""

from __future__ import annotations

from collections.abc import Iterable

from floodmark.garbage.found import young
from floodmark.ledger.fold_manifest import FoldManifest, load_manifest
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.document import Damaged
from floodmark.storage.store import ObjectInfo


def find(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Those that can go now. A manifest that cannot be read names nobody knows what: then none do."""
    files = list(objects.fold_files())
    if not files:
        return ()
    try:
        manifest = load_manifest(objects)  # after the listing: it names what was listed
    except Damaged:
        return ()
    return plan(objects, manifest, files, oldest)


def plan(
    objects: DatasetObjects, manifest: FoldManifest, files: Iterable[ObjectInfo], oldest: float
) -> tuple[ObjectInfo, ...]:
    """The files that a manifest does not name, or has not since a moment, and that are older than it."""
    named = manifest.retired_since(int(oldest * 10**9)).keys(objects)
    return tuple(info for info in files if info.key not in named and not young(info, oldest))
