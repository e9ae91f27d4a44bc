"""Folded files that no reader uses any more: a fold removes them, but a dataset may never be folded again."""

from __future__ import annotations

from collections.abc import Iterable

from floodmark.garbage.found import young
from floodmark.ledger.fold_manifest import BadManifest, FoldManifest, decode
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.errors import ObjectNotFound
from floodmark.storage.store import ObjectInfo


def find(objects: DatasetObjects, oldest: float) -> tuple[ObjectInfo, ...]:
    """Those that can go now. A manifest that cannot be read names nobody knows what: then none do."""
    files = list(objects.fold_files())
    if not files:
        return ()
    try:
        manifest = decode(objects.store.get(objects.fold_manifest_key))  # after the listing: it names what was listed
    except ObjectNotFound:
        manifest = FoldManifest()
    except BadManifest:
        return ()
    return plan(objects, manifest, files, oldest)


def plan(
    objects: DatasetObjects, manifest: FoldManifest, files: Iterable[ObjectInfo], oldest: float
) -> tuple[ObjectInfo, ...]:
    """The files that a manifest does not name, or has not since a moment, and that are older than it."""
    named = manifest.retired_since(int(oldest * 10**9)).keys(objects)
    return tuple(info for info in files if info.key not in named and not young(info, oldest))
