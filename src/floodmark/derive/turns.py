"""Turns: one run of a derived thing at a time. The second waits, says so, and finds the work done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from floodmark.engine import Progress
from floodmark.ledger.objects import DatasetObjects
from floodmark.storage.store import Store

_SILENCE = 1.0
"""Seconds to wait for another run before the progress line says so."""


@contextmanager
def take_turn(store: Store, key: str, other: str, progress: Progress) -> Iterator[None]:
    """Wait for the `other` run that holds the turn of this key. On stores without turns, both go on at once."""
    saying = threading.Timer(_SILENCE, progress.start, (f"waiting for {other}", None))
    saying.daemon = True
    saying.start()
    with ExitStack() as held:
        try:
            held.enter_context(store.turn(key))
        finally:
            saying.cancel()
            saying.join()
            progress.finish()
        yield


def take_dataset_turn(objects: DatasetObjects, other: str, progress: Progress) -> AbstractContextManager[None]:
    """Wait for the `other` run that computes the rows of the same dataset."""
    return take_turn(objects.store, f"{objects.folder}/info/transform/run", other, progress)
