"""Uncompressed copies of slices that nobody will take a row from: no record of theirs is current any more."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from floodmark.chain.hashes import SHA3_256, Multihash
from floodmark.garbage.found import last_name, young
from floodmark.ledger.keys import index as key_index
from floodmark.ledger.keys.records import I64
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import strategy_of
from floodmark.storage.store import ObjectInfo


def find(snapshot: Snapshot, oldest: float) -> tuple[ObjectInfo, ...]:
    """Those that can go now: of slices that had no current record at a moment, or that are none of the dataset's."""
    objects = snapshot.objects
    copies = [info for info in objects.store.list(objects.rows_key("").removesuffix("/")) if not young(info, oldest)]
    if not copies or not strategy_of(snapshot.state).is_keyed:
        return ()
    end = _end_at(snapshot.slices, oldest)
    dead = key_index.mended(snapshot, {}, lambda index: index.dead(end))
    return plan(copies, snapshot.slices, dead, oldest)


def plan(copies: Iterable[ObjectInfo], slices: pa.Table, dead: I64, oldest: float) -> tuple[ObjectInfo, ...]:
    """Which copies can go, given the offsets, sorted, that were dead at a moment."""
    starts, ends = (slices.column(name).to_numpy() for name in ("start", "end"))
    alive = np.searchsorted(dead, ends) - np.searchsorted(dead, starts) < ends - starts
    named = {
        Multihash(SHA3_256, digest).text for digest in slices.column("physical").filter(pa.array(alive)).to_pylist()
    }
    return tuple(info for info in copies if last_name(info) not in named and not young(info, oldest))


def _end_at(slices: pa.Table, moment: float) -> int:
    """The offset after the last record that was there at a moment; times of blocks never go back."""
    before = int(np.searchsorted(slices.column("system_time").to_numpy(), int(moment * 10**9)))
    return 0 if before == 0 else int(slices.column("end")[before - 1].as_py())
