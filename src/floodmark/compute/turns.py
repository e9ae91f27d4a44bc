"""Turns: who computes the same values waits, and says so if it takes a while; who comes second finds them done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from floodmark.engine import Progress
from floodmark.storage.store import Store

_SILENCE = 1.0
"""Seconds to wait for somebody else without a word."""


@contextmanager
def turn(store: Store, key: str, other: str, progress: Progress) -> Iterator[None]:
    """Wait for the `other` that holds the turn of this key. On stores without turns, both go on at once."""
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
