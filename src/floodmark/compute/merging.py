"""Many small checkpoints of a fragment become one: a trickle of rows must not make listing them slow.

Checkpoints are merged among those of about their size, a fixed number at a time, so that a row is written again a few
times at most however many there are, and a fragment never has many. The merged one is durable before the others go; a
crash in between leaves rows twice, which does no harm.

A merged checkpoint is as young as its merge. So of two values of one row, which only races and functions that do not
always return the same can leave behind, the older one may come to count. A value never gives way to a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import ERROR, ERROR_TYPE, ROWADDR, Source
from floodmark.compute.checkpoints.found import Mending
from floodmark.compute.checkpoints.keys import RANGE, ParsedKey, Prefix, parse_key, range_key
from floodmark.compute.checkpoints.store import CheckpointInfo, CheckpointStore
from floodmark.compute.kept_values import Piece

MANY = 64
"""So many checkpoints of about one size become one."""

SIZES = (32 << 10, 1 << 20)
"""Bytes below which checkpoints count as small, and as medium; larger ones are left as they are."""


def merge_crowded(store: CheckpointStore, prefix: Prefix, fragment: int, column: pa.Field) -> None:
    """Merge the range checkpoints of a fragment until there are few of each size; bad ones are deleted.

    Values must not be asked for meanwhile by keys that were listed before.
    """
    infos = store.fragment_infos(prefix.text, fragment)
    while some := crowd(infos):
        merged = _merge(store, prefix, fragment, column, some)
        if merged is None:
            return
        gone = {info.key for info in some}
        infos = [*[info for info in infos if info.key not in gone], merged]


def crowd(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """The checkpoints to merge next, neighbours of about one size; none when there are few of each. Pure."""
    parsed = [(info, found) for info in infos if (found := parse_key(info.key)) is not None and found.kind == RANGE]
    low = 0
    for high in SIZES:
        alike = [(info, found) for info, found in parsed if low <= info.size < high]
        if len(alike) >= MANY:
            return [info for info, _ in sorted(alike, key=_start)[:MANY]]
        low = high
    return []


def _start(pair: tuple[CheckpointInfo, ParsedKey]) -> tuple[int, int]:
    return pair[1].start, pair[1].end


def _merge(
    store: CheckpointStore, prefix: Prefix, fragment: int, column: pa.Field, infos: Sequence[CheckpointInfo]
) -> CheckpointInfo | None:
    """What these checkpoints became, which are gone; None when they are left as they are."""
    ages = {info.key: info.modified for info in infos}
    found = Mending(store).among(ages, column)
    found.sort(key=lambda checkpoint: (ages[checkpoint.key], checkpoint.key))
    rows = BitMap.union(*[checkpoint.rows for checkpoint in found], BitMap(), BitMap())
    if len(found) < len(infos) or not rows:
        return None  # some are damaged, or another type's
    key = _free_key(store, prefix, fragment, min(c.start for c in found), max(c.end for c in found))
    sources = [replace(Source.of(store.get(c.key), 0), made=ages[c.key]) for c in found]
    at = addresses.to_array(rows)
    piece = Piece(at, column.type, sources)
    schema = pa.schema([(ROWADDR, pa.int64()), (column.name, column.type), (ERROR, ERROR_TYPE)])
    batch = pa.RecordBatch.from_arrays([pa.array(at), piece.values, piece.details], schema=schema)
    if not store.keep(key, batch):
        return None  # somebody else merged them
    for checkpoint in found:
        store.delete(checkpoint.key)
    return store.info(key)


def _free_key(store: CheckpointStore, prefix: Prefix, fragment: int, start: int, end: int) -> str:
    """A key that covers a range and, where another checkpoint has just that range, a little more."""
    while store.has(key := range_key(prefix.text, fragment, start, end)):
        end += 1
    return key
