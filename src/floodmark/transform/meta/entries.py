"""Entries: the keys that runs have processed, sorted by hash; of several entries of a key the newest counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from floodmark.ledger.keys.entries import stable_order, starts_of_groups
from floodmark.ledger.keys.records import I64, U64, Hashes

U32 = npt.NDArray[np.uint32]

_MANY = 1 << 16


@dataclass(frozen=True)
class Entries:
    """Processed keys, each once and sorted by hash, with the time and the number of the run that did it."""

    hashes: Hashes
    process_ts: I64
    run: U32

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, at: Any) -> Entries:
        """Those at these positions (indices, a mask or a slice)."""
        return Entries(self.hashes.take(at), self.process_ts[at], self.run[at])

    @staticmethod
    def of_sorted(hashes: Hashes, process_ts: int, run: int) -> Entries:
        """Keys, sorted and distinct, that one run has processed."""
        # Views of one value: nothing is allocated for what all entries share.
        return Entries(
            hashes,
            np.broadcast_to(np.int64(process_ts), len(hashes)),
            np.broadcast_to(np.uint32(run), len(hashes)),
        )


def distinct(hashes: Hashes) -> Hashes:
    """The hashes sorted, each once."""
    if not ascends(hashes.high):
        hashes = _sorted(hashes)
    first = starts_of_groups([hashes.high, hashes.low])
    return hashes if first.all() else hashes.take(first)


def _sorted(hashes: Hashes) -> Hashes:
    """The hashes in order; many are first dealt out by their first byte, and each heap is sorted within the cache."""
    if len(hashes) < _MANY:
        return hashes.take(stable_order([hashes.high, hashes.low]))
    heap = (hashes.high >> np.uint64(56)).astype(np.uint8)
    dealt = hashes.take(np.argsort(heap, kind="stable"))
    edges = [0, *np.cumsum(np.bincount(heap)).tolist()]
    for some in (slice(*ends) for ends in pairwise(edges)):
        order = stable_order([dealt.high[some], dealt.low[some]])
        dealt.high[some], dealt.low[some] = dealt.high[some][order], dealt.low[some][order]
    return dealt


def newest(parts: Sequence[Entries]) -> Entries:
    """The entries of several parts as one; of those with one key the first part that has it wins."""
    if len(parts) == 1:
        return parts[0]
    hashes = Hashes.joined([part.hashes for part in parts])
    order = stable_order([hashes.high, hashes.low])
    order = order[starts_of_groups([hashes.high[order], hashes.low[order]])]
    process_ts, run = (np.concatenate(c) for c in zip(*((p.process_ts, p.run) for p in parts), strict=True))
    return Entries(hashes.take(order), process_ts[order], run[order])


def ascends(high: U64) -> bool:
    """Whether hashes are sorted already, as far as their high halves can say."""
    return bool((high[1:] > high[:-1]).all())
