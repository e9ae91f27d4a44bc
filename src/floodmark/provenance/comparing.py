"""Rows that are there compared with rows that were computed again: by a digest that knows no order, and key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.ledger.keys import hashing
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transform.changed.changes import Groups

SHOWN = 10
"""So many differences are told in full; all are counted."""

_WORD = 1 << 64


@dataclass(frozen=True)
class Difference:
    """A key for which other rows were computed: what is there, and what should be; None where there is no row."""

    key: Mapping[str, Any]
    stored: Mapping[str, Any] | None
    replayed: Mapping[str, Any] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values are others."""
        if self.stored is None or self.replayed is None:
            return ()
        theirs = self.replayed
        return tuple(name for name, value in self.stored.items() if not _same(value, theirs[name]))


@dataclass(frozen=True)
class Compared:
    """Two digests, and where they come from if they are not one."""

    stored: str
    replayed: str
    rows: int
    differing: int = 0  # keys
    differences: tuple[Difference, ...] = ()


def compare(stored: pa.Table, replayed: pa.Table, key: Sequence[str]) -> Compared:
    """Compare rows of the same columns and types; a key has one row at most, a second one is a difference."""
    names = stored.column_names
    mine, theirs = hashing.hash_rows(stored, names), hashing.hash_rows(replayed, names)
    digests = _digest(mine), _digest(theirs)
    if digests[0] == digests[1] and len(mine) == len(theirs):
        return Compared(*digests, stored.num_rows)
    stored, replayed = stored.filter(pa.array(_beyond(mine, theirs))), replayed.filter(pa.array(_beyond(theirs, mine)))
    keys = hashing.hash_rows(stored, key), hashing.hash_rows(replayed, key)
    twice = int(keys[1].among(keys[0]).sum())
    count = stored.num_rows + replayed.num_rows - twice
    return Compared(*digests, len(mine), count, tuple(_differences(stored, replayed, key, keys)))


def _beyond(mine: Hashes, theirs: Hashes) -> Mask:
    """Which rows are more than there are on the other side, of each."""
    number = Groups.of(Hashes.joined([mine, theirs])).number
    there = np.bincount(number[len(mine) :], minlength=int(number.max(initial=0)) + 1)
    own = number[: len(mine)]
    order = np.argsort(own, kind="stable")
    starts = np.searchsorted(own[order], own[order])
    turn = np.empty(len(own), np.int64)
    turn[order] = np.arange(len(own)) - starts  # the first, second, … of its kind
    more: Mask = turn >= there[own]
    return more


def _differences(
    stored: pa.Table, replayed: pa.Table, key: Sequence[str], keys: tuple[Hashes, Hashes]
) -> list[Difference]:
    """The first of them, in the order of the rows that are there."""
    at = {pair: n for n, pair in enumerate(_pairs(keys[1]))}
    found = []
    for n, pair in enumerate(_pairs(keys[0].take(slice(0, SHOWN)))):
        row, other = _row(stored, n), at.get(pair)
        found.append(Difference({k: row[k] for k in key}, row, None if other is None else _row(replayed, other)))
    alone: I64 = np.flatnonzero(~keys[1].among(keys[0]))
    for n in alone[: SHOWN - len(found)].tolist():
        row = _row(replayed, n)
        found.append(Difference({k: row[k] for k in key}, None, row))
    return found


def _pairs(hashes: Hashes) -> list[tuple[int, int]]:
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


def _row(table: pa.Table, at: int) -> dict[str, Any]:
    [row] = table.slice(at, 1).to_pylist()
    return dict(row)


def _digest(hashes: Hashes) -> str:
    """The sum of the rows' hashes: the same in whichever order they come."""
    with np.errstate(over="ignore"):
        high, low = int(hashes.high.sum(dtype=np.uint64)), int(hashes.low.sum(dtype=np.uint64))
    return f"{high % _WORD:016x}{low % _WORD:016x}"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)
