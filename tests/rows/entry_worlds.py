"""Entries and records of made-up hashes, many of which agree in half of their bits, and naive answers about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from floodmark.rows.key_entries import KeyEntries, order_columns
from floodmark.storage.arrays import Hashes, stable_order

TOP = 2**64 - 1
HALVES = (0, 1, 2**32, 2**63 - 1, 2**63, TOP - 1, TOP)
Hash = tuple[int, int]

hash_values: st.SearchStrategy[Hash] = st.tuples(st.sampled_from(HALVES), st.sampled_from(HALVES))


def hashes(values: Sequence[Hash]) -> Hashes:
    return Hashes(np.array([v[0] for v in values], np.uint64), np.array([v[1] for v in values], np.uint64))


def spread(count: int, seed: int = 0) -> Hashes:
    """Hashes as good ones are: evenly spread, in no order."""
    random = np.random.default_rng(seed)
    halves = random.integers(0, 2**64, (2, count), np.uint64)
    return Hashes(halves[0], halves[1])


def sorted_entries(key: Hashes, lookup: Hashes | None = None) -> KeyEntries:
    """Entries of these keys in order; each row hash says which key it belongs to, each offset where it was."""
    order = stable_order(order_columns(key, lookup))
    row = Hashes(key.low ^ np.uint64(1), key.high ^ np.uint64(2))
    return KeyEntries(key, row, np.arange(len(key)), lookup).take(order)


def pairs(found: Hashes) -> list[Hash]:
    return list(zip(found.high.tolist(), found.low.tolist(), strict=True))
