"""Hashes among hashes: where each one stands, and which stand there twice."""

from __future__ import annotations

import numpy as np

from floodmark.ledger.keys.records import I64, Hashes


def find(hashes: Hashes, among: Hashes) -> I64:
    """Where each hash stands among others that are all different; -1 if it does not."""
    if not len(among):
        return np.full(len(hashes), -1, np.int64)
    order = np.argsort(among.high, kind="stable")
    ordered = among.take(order)
    at = np.minimum(np.searchsorted(ordered.high, hashes.high), len(among) - 1)
    found = np.where(hashes.same(ordered.take(at)), order[at], -1)
    if (found < 0).any() and (ordered.high[1:] == ordered.high[:-1]).any():  # first halves that meet by chance
        places = {pair: i for i, pair in enumerate(zip(among.high.tolist(), among.low.tolist(), strict=True))}
        pairs = zip(hashes.high.tolist(), hashes.low.tolist(), strict=True)
        found = np.fromiter((places.get(pair, -1) for pair in pairs), np.int64, len(hashes))
    return found.astype(np.int64, copy=False)


def repeated(hashes: Hashes) -> I64:
    """The positions of hashes that stand before them already, ascending."""
    ordered = np.sort(hashes.high)
    if not (ordered[1:] == ordered[:-1]).any():
        return np.empty(0, np.int64)
    order = np.lexsort((hashes.low, hashes.high))  # stable: the first of each comes first
    ranked = hashes.take(order)
    same = ranked.take(slice(1, None)).same(ranked.take(slice(None, -1)))
    return np.sort(order[1:][same])
