"""A dataset's computed columns as its catalog has them: one small read, whatever the dataset's size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floodmark.compute.catalog import Catalog
    from floodmark.dataset import Dataset


def catalog_of(dataset: Dataset) -> Catalog:
    """Which computed columns there are, and what computes them."""
    from floodmark.compute import catalog

    return catalog.load(dataset._columns_objects)
