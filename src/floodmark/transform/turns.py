"""Turns: one run of a step, or refresh of a view, at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager

from floodmark.compute import turns
from floodmark.engine import Progress
from floodmark.ledger.objects import DatasetObjects


def turn(objects: DatasetObjects, other: str, progress: Progress) -> AbstractContextManager[None]:
    """Wait for the `other` that computes the same dataset, and say so if it takes a while."""
    return turns.turn(objects.store, f"{objects.folder}/info/transform/run", other, progress)
