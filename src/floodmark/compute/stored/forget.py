"""Forgetting what a column was computed to: its next backfill calls the function for every row once more."""

from __future__ import annotations

from dataclasses import replace

from floodmark.compute.checkpoints.keys import Prefix
from floodmark.compute.stored import catalog as catalogs
from floodmark.compute.stored import manifest as manifests
from floodmark.compute.stored.catalog import Catalog
from floodmark.compute.stored.objects import ColumnObjects

_NOBODYS = ""
"""The identity of values that no function has computed: to every function they are older ones."""


def forget(objects: ColumnObjects, name: str, prefix: Prefix) -> None:
    """Remove the checkpoints of a column, and make its values older ones: shown until each is computed again."""
    # First: whoever is killed here has lost some work, and who finds the values outdated has to find no checkpoints.
    for _, info in objects.checkpoints.computation_infos(prefix.text):
        objects.checkpoints.delete(info.key)

    def forgotten(before: Catalog) -> Catalog:
        column = before.column(name)
        if column.manifest is None:
            return before
        outdated = manifests.put(objects, manifests.load(objects, column).under(_NOBODYS))
        return before.with_column(replace(column, manifest=outdated.digest))

    catalogs.change(objects, forgotten)
