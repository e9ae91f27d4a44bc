"""Chunks: some keys with all their rows, the input of one call of a step's function."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from floodmark.storage.arrays import I64, U64, Hashes

_M1, _M2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@dataclass(frozen=True)
class Side:
    """The rows of one input in a chunk, in offset order. Each row belongs to one part.

    A part has the values of those transform keys that the input has. Keys with the same part share its rows.
    """

    rows: pa.Table  # with the input's own column names
    offsets: I64
    owner: I64  # per row: the number of its part
    part: I64  # per key: the number of its part
    seed: int = 0  # makes signatures of different inputs differ

    def take(self, keys: I64) -> Side:
        """The rows of some of the keys."""
        part = self.part[keys]
        parts, renumbered = np.unique(part, return_inverse=True)
        at = np.searchsorted(parts, self.owner)
        mine = np.flatnonzero(parts[np.minimum(at, len(parts) - 1)] == self.owner) if len(parts) else at[:0]
        rows = self.rows if len(mine) == len(self.owner) else _rows_at(self.rows, mine)
        return Side(rows, self.offsets[mine], at[mine], renumbered.astype(np.int64), self.seed)

    def signature(self) -> Hashes:
        """Per key an order-free hash of the offsets of its rows."""
        count = int(max(self.part.max(initial=-1), self.owner.max(initial=-1))) + 1
        seed = np.uint64(self.seed)
        one = _mix(self.offsets.astype(np.uint64) ^ seed)
        two = _mix(one + seed + np.uint64(1))
        high, low = _sum_by_owner(one, self.owner, count), _sum_by_owner(two, self.owner, count)
        return Hashes(high[self.part], low[self.part])


@dataclass(frozen=True)
class LinkedSide(Side):
    """The rows of an input that is looked up through the rows of another: a key may have several parts."""

    ends: I64 = field(default_factory=lambda: np.empty(0, np.int64))  # per key: where its parts end in `part`

    def take(self, keys: I64) -> Side:
        sizes = np.diff(self.ends, prepend=0)[keys]
        ends = np.cumsum(sizes)
        at = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes) + np.repeat(self.ends[keys] - sizes, sizes)
        mine = super().take(at)
        return LinkedSide(mine.rows, mine.offsets, mine.owner, mine.part, mine.seed, ends)

    def signature(self) -> Hashes:
        each, bounds = super().signature(), np.concatenate([[0], self.ends])
        sums = [np.concatenate([np.zeros(1, np.uint64), np.cumsum(half)])[bounds] for half in (each.high, each.low)]
        return Hashes(*(np.diff(half) for half in sums))


@dataclass(frozen=True)
class Chunk:
    """The keys of one call, their rows in every input, and gone keys: they have no rows left and need no call."""

    keys: pa.Table  # the transform keys, by name and type
    hashes: Hashes
    sides: tuple[Side, ...]
    gone: Hashes = field(default_factory=lambda: Hashes.joined([]))
    gone_keys: pa.Table | None = None
    axes: tuple[int, ...] = ()  # in a cross join one input of each side: the parts of these inputs form a rectangle

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def frames(self) -> tuple[pa.Table, ...]:
        """The rows of each input."""
        return tuple(side.rows for side in self.sides)

    @property
    def rows(self) -> int:
        """The number of rows of all inputs together."""
        return sum(side.rows.num_rows for side in self.sides)

    @cached_property
    def signature(self) -> Hashes:
        """Per key an order-free hash of the offsets of its rows in each input: its result depends on these rows."""
        high, low = np.zeros(len(self), np.uint64), np.zeros(len(self), np.uint64)
        for side in self.sides:
            mine = side.signature()
            high += mine.high
            low += mine.low
        return Hashes(high, low)

    def take(self, positions: I64) -> Chunk:
        """Some of the keys with their rows. In a cross join they must form a rectangle: see `chosen`."""
        keys = self.keys if len(positions) == len(self) else self.keys.take(pa.array(positions))
        sides = tuple(side.take(positions) for side in self.sides)
        return Chunk(keys, self.hashes.take(positions), sides, axes=self.axes)

    def chosen(self, positions: I64) -> list[Chunk]:
        """Exactly these keys as chunks: one chunk, or several rectangles in a cross join."""
        if len(positions) == 0:
            return []
        if not self.axes:
            return [self.take(positions)]
        parts = [self.sides[number].part[positions] for number in self.axes]
        return [self.take(positions[mine]) for mine in rectangles(parts)]

    def halves(self) -> tuple[Chunk, Chunk] | None:
        """The keys and their rows in two chunks; None if there is one key. A rectangle is cut at its longest side."""
        if len(self) < 2:
            return None
        if not self.axes:
            positions = np.arange(len(self))
            return self.take(positions[: len(self) // 2]), self.take(positions[len(self) // 2 :])
        sizes = [len(np.unique(self.sides[number].part)) for number in self.axes]
        longest = int(np.argmax(sizes))
        part = self.sides[self.axes[longest]].part
        is_first = part < np.unique(part)[sizes[longest] // 2]
        return self.take(np.flatnonzero(is_first)), self.take(np.flatnonzero(~is_first))


def signature_seed(dataset_id: str, number: int) -> int:
    """The seed of an input's signatures: the same offsets in another dataset give another signature."""
    return int.from_bytes(hashlib.blake2b(f"{number} {dataset_id}".encode(), digest_size=8).digest(), "little")


def _mix(values: U64) -> U64:
    values = (values ^ (values >> _SHIFT)) * _M1
    values = (values ^ (values >> _SHIFT)) * _M2
    mixed: U64 = values ^ (values >> _SHIFT)
    return mixed


def _sum_by_owner(values: U64, owner: I64, count: int) -> U64:
    sums = np.zeros(count, np.uint64)
    np.add.at(sums, owner, values)
    return sums


def _rows_at(rows: pa.Table, at: I64) -> pa.Table:
    if len(at) and int(at[-1]) - int(at[0]) + 1 == len(at):  # consecutive rows need no copy
        return rows.slice(int(at[0]), len(at))
    return rows.take(pa.array(at))


# Rectangles of a cross join


def rectangles(parts: Sequence[I64]) -> list[I64]:
    """Group the positions of distinct tuples (one part number per side) so that each group is a product of its sides.

    Each prefix (a tuple without its last side) has a set of last values. Prefixes with equal sets are grouped, and each
    group of prefixes is split in the same way.
    """
    positions = np.arange(len(parts[0]), dtype=np.int64)
    return [np.sort(group) for group in _group([np.asarray(p, np.int64) for p in parts], positions)]


def _group(parts: list[I64], positions: I64) -> list[I64]:
    if len(positions) == 0:
        return []
    if len(parts) == 1:
        return [positions]
    prefix = _number_tuples(parts[:-1])
    sets = _set_numbers(prefix, parts[-1])
    groups: list[I64] = []
    for number in np.unique(sets).tolist():
        mine = np.flatnonzero(sets == number)
        # These tuples are the product of their prefixes and one set: each value of the set has the same prefixes.
        first = mine[parts[-1][mine] == parts[-1][mine[0]]]
        for group in _group([p[first] for p in parts[:-1]], first):
            chosen = np.isin(prefix[mine], prefix[group])
            groups.append(positions[mine[chosen]])
    return groups


def _number_tuples(parts: Sequence[I64]) -> I64:
    """Number the tuples: equal tuples get equal numbers."""
    number = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        _, inner = np.unique(part, return_inverse=True)
        _, number = np.unique(number * (int(inner.max(initial=0)) + 1) + inner, return_inverse=True)
    return number.astype(np.int64)


def _set_numbers(prefix: I64, last: I64) -> I64:
    """For each tuple the number of its prefix's set of last parts."""
    order = np.lexsort((last, prefix))
    sorted_prefix, sorted_last = prefix[order], last[order]
    starts = np.flatnonzero(np.diff(sorted_prefix, prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    # Sets of the same length are compared as rows of a matrix: exact, without hashing.
    numbers = np.empty(len(starts), np.int64)
    used = 0
    for length in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == length)
        matrix = sorted_last[starts[which][:, None] + np.arange(length)]
        _, inverse = np.unique(matrix, axis=0, return_inverse=True)
        numbers[which] = inverse.reshape(-1) + used
        used += len(which)
    result: I64 = numbers[prefix]
    return result


def cut_product(sizes: Sequence[int], largest: int) -> list[tuple[slice, ...]]:
    """Cut a product of sides with these lengths into products of at most `largest` members. Not always the fewest."""
    widths = list(sizes)
    while _multiply(widths) > largest and max(widths) > 1:
        longest = int(np.argmax(widths))
        rest = _multiply(widths) // widths[longest]
        widths[longest] = max(1, min(-(-widths[longest] // 2), max(largest // max(rest, 1), 1)))
    cuts = [[slice(at, min(at + w, size)) for at in range(0, size, w)] for size, w in zip(sizes, widths, strict=True)]
    products: list[tuple[slice, ...]] = [()]
    for side in cuts:
        products = [(*before, cut) for before in products for cut in side]
    return products


def _multiply(values: Sequence[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
