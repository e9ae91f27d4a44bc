"""Whether one of several writers wins: what commits stand on, in a bucket as in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from uuid import uuid4

from floodmark.doctor.finding import Finding
from floodmark.storage.errors import StorageError
from floodmark.storage.store import Store

WRITERS = 4
ROUNDS = 3

_BEFORE = b"before"
_REMEDY = "use a bucket that honours conditional puts (If-None-Match, If-Match); without them commits could be lost"


def check_conditional(store: Store) -> Finding:
    """Let several put one object, and move one, at the same moment; the objects are gone afterwards."""
    what = "conditional puts"
    keys = [f"runs/doctor-{uuid4().hex}" for _ in range(ROUNDS)]
    try:
        for key in keys:
            made = _winners(partial(_put, store, key))
            moved = _winners(partial(_move, store, key))
            if (made, moved) != (1, 1):
                detail = f"of {WRITERS} writers {made} made an object and {moved} moved it; one each should"
                return Finding(what, "bad", detail, _REMEDY)
    except StorageError as error:
        return Finding(what, "bad", error.message, error.hint or _REMEDY)
    finally:
        for key in keys:
            with suppress(StorageError):  # that it cannot be written was said already
                store.delete(key)
    return Finding(what, "ok", f"of {WRITERS} writers at once one won, each time")


def _put(store: Store, key: str, _: int) -> bool:
    return store.put_if_absent(key, _BEFORE)


def _move(store: Store, key: str, me: int) -> bool:
    return store.compare_and_swap(key, _BEFORE, b"moved by %d" % me)


def _winners(act: Callable[[int], bool]) -> int:
    """How many of several who act at the same moment are told that they won."""
    start = threading.Barrier(WRITERS)

    def one(me: int) -> bool:
        start.wait()
        return act(me)

    with ThreadPoolExecutor(WRITERS) as pool:
        return sum(pool.map(one, range(WRITERS)))
