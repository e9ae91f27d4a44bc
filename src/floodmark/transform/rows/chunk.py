"""Chunks: some keys with all rows that belong to them, which is what one call of a step's function gets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.storage.arrays import I64, U64, Hashes
from floodmark.transform.rows.rectangles import rectangles

_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@dataclass(frozen=True)
class Side:
    """What a chunk has of one input: rows in offset order, each of which belongs to one part.

    A part is what keys have of the transform keys that the input has; keys that agree in it share its rows.
    """

    rows: pa.Table  # with the input's own column names
    offsets: I64
    owner: I64  # per row: the number of its part
    part: I64  # per key: the number of its part
    seed: int = 0  # tells the inputs apart in signatures

    def take(self, keys: I64) -> Side:
        """The rows of some of the keys."""
        part = self.part[keys]
        wanted, renumbered = np.unique(part, return_inverse=True)
        at = np.searchsorted(wanted, self.owner)
        mine = np.flatnonzero(wanted[np.minimum(at, len(wanted) - 1)] == self.owner) if len(wanted) else at[:0]
        rows = self.rows if len(mine) == len(self.owner) else _rows_at(self.rows, mine)
        return Side(rows, self.offsets[mine], at[mine], renumbered.astype(np.int64), self.seed)

    def signature(self) -> Hashes:
        """Per key an order-free hash of the offsets of its rows."""
        count = int(max(self.part.max(initial=-1), self.owner.max(initial=-1))) + 1
        seed = np.uint64(self.seed)
        one = _mixed(self.offsets.astype(np.uint64) ^ seed)
        two = _mixed(one + seed + np.uint64(1))
        high, low = _summed(one, self.owner, count), _summed(two, self.owner, count)
        return Hashes(high[self.part], low[self.part])


@dataclass(frozen=True)
class Chunk:
    """Keys of one call, their rows in every input, and keys that lost all of theirs and need no call."""

    keys: pa.Table  # the transform keys, by name and type
    hashes: Hashes
    sides: tuple[Side, ...]
    gone: Hashes = field(default_factory=lambda: Hashes.joined([]))
    gone_keys: pa.Table | None = None
    is_cross: bool = False

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def frames(self) -> tuple[pa.Table, ...]:
        """The rows of each input."""
        return tuple(side.rows for side in self.sides)

    @property
    def rows(self) -> int:
        """How many rows all inputs have together."""
        return sum(side.rows.num_rows for side in self.sides)

    @cached_property
    def signature(self) -> Hashes:
        """Per key what its result depends on: an order-free hash of the offsets of its rows in each input."""
        high, low = np.zeros(len(self), np.uint64), np.zeros(len(self), np.uint64)
        for side in self.sides:
            mine = side.signature()
            high += mine.high
            low += mine.low
        return Hashes(high, low)

    def take(self, positions: I64) -> Chunk:
        """Some of the keys with their rows. Of a cross join they must make a rectangle: see `chosen`."""
        keys = self.keys if len(positions) == len(self) else self.keys.take(pa.array(positions))
        sides = tuple(side.take(positions) for side in self.sides)
        return Chunk(keys, self.hashes.take(positions), sides, is_cross=self.is_cross)

    def chosen(self, positions: I64) -> list[Chunk]:
        """Some of the keys as chunks that hold no others: one, or as many rectangles as a cross join needs."""
        if len(positions) == 0:
            return []
        if not self.is_cross:
            return [self.take(positions)]
        parts = [side.part[positions] for side in self.sides]
        return [self.take(positions[mine]) for mine in rectangles(parts)]

    def halves(self) -> tuple[Chunk, Chunk] | None:
        """The keys in two, each with their rows; None when there is one key. A rectangle is cut across."""
        if len(self) < 2:
            return None
        if not self.is_cross:
            everyone = np.arange(len(self))
            return self.take(everyone[: len(self) // 2]), self.take(everyone[len(self) // 2 :])
        sizes = [len(np.unique(side.part)) for side in self.sides]
        longest = int(np.argmax(sizes))
        part = self.sides[longest].part
        is_first = part < np.unique(part)[sizes[longest] // 2]
        return self.take(np.flatnonzero(is_first)), self.take(np.flatnonzero(~is_first))


def seed_of(dataset_id: str, number: int) -> int:
    """What tells an input apart in signatures: another dataset in its place gives other results."""
    return int.from_bytes(hashlib.blake2b(f"{number} {dataset_id}".encode(), digest_size=8).digest(), "little")


def _mixed(values: U64) -> U64:
    values = (values ^ (values >> _SHIFT)) * _M1
    values = (values ^ (values >> _SHIFT)) * _M2
    mixed: U64 = values ^ (values >> _SHIFT)
    return mixed


def _summed(values: U64, owner: I64, count: int) -> U64:
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, owner, values)
    return sums


def _rows_at(rows: pa.Table, at: I64) -> pa.Table:
    if len(at) and int(at[-1]) - int(at[0]) + 1 == len(at):  # neighbours: nothing to copy
        return rows.slice(int(at[0]), len(at))
    return rows.take(pa.array(at))
