"""Comparing the key index with the records it stands for: what `verify` says of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from floodmark.ledger.errors import BadIndex
from floodmark.ledger.keys.entries import Entries
from floodmark.ledger.keys.files import KeyFiles
from floodmark.ledger.keys.index import built, load
from floodmark.ledger.keys.key_index import KeyIndex
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.slice_check import Problem
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.local import LocalStore
from floodmark.storage.sorted_runs import END_OF_HASHES

RANGE_ENTRIES = 4 << 20
"""About so many entries are compared at a time."""

_REMEDY = "it is derived: the next lookup that meets the damage makes it again, or remove the folder info/keys"


def index_problems(snapshot: Snapshot) -> Iterator[Problem]:
    """How the key index of a keyed dataset differs from one made from the records alone."""
    key = snapshot.objects.key_file_key("")
    try:
        index = load(snapshot, {})
        index.check()
        with tempfile.TemporaryDirectory(prefix="floodmark-verify-") as folder:
            objects = DatasetObjects(LocalStore(Path(folder)), snapshot.objects.folder)
            right = built(snapshot, KeyFiles(objects, {}), index.manifest.shape)
            for difference in _differences(index, right, snapshot.purged_before):
                yield Problem("keys", key, f"the key index {difference}; {_REMEDY}")
    except BadIndex as error:
        yield Problem("keys", key, f"{error.message}; {_REMEDY}")


def _differences(index: KeyIndex, right: KeyIndex, purged_before: int) -> Iterator[str]:
    if index.end != right.end:
        yield f"ends at record {index.end - 1}, not at {right.end - 1}"
        return
    ranges = -(-max(index.live_count, right.live_count, 1) // RANGE_ENTRIES)
    for number in range(ranges):
        low, high = END_OF_HASHES * number // ranges, END_OF_HASHES * (number + 1) // ranges
        mine, other = (_readable(i.live_between(low, high), purged_before) for i in (index, right))
        if not _same(mine, other):
            yield f"has wrong entries: {_described(mine.offset, other.offset)}"
            return
    dead, ended = (offsets[np.searchsorted(offsets, purged_before) :] for offsets in (index.dead(), right.dead()))
    if not np.array_equal(dead, ended):
        yield f"has wrong dead offsets: {_described(dead, ended)}"


def _readable(entries: Entries, purged_before: int) -> Entries:
    """Without rows that are purged: an index that is made again does not know them."""
    return entries.take(entries.offset >= purged_before) if purged_before else entries


def _same(a: Entries, b: Entries) -> bool:
    columns = [(a.offset, b.offset), (a.row.high, b.row.high), (a.row.low, b.row.low)]
    columns += list(zip(a.order_columns, b.order_columns, strict=True))
    return all(np.array_equal(x, y) for x, y in columns)


def _described(found: I64, right: I64) -> str:
    extra, missing = np.setdiff1d(found, right), np.setdiff1d(right, found)
    if len(extra) == 0 and len(missing) == 0:
        return "the offsets are right, the hashes are not"
    texts = [
        f"{name} {', '.join(map(str, some[:3]))}" for name, some in (("has", extra), ("lacks", missing)) if len(some)
    ]
    return f"{' and '.join(texts)} ({len(extra)} too many, {len(missing)} too few)"
