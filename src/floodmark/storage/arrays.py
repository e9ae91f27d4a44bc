"""Arrays of hashes and offsets: sort them, search sorted ones, and find many hashes among many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BEFORE: Any = np.less
"""Search for the first row that is not less than the query."""

UP_TO: Any = np.less_equal
"""Search for the first row that is greater than the query."""

_MANY = 1 << 16
_TOP_BITS = 32
_SIGN = np.uint64(1 << 63)
_TABLE_BITS = 24
_LONGEST_CHAIN = 64
_PER_TABLE = 32
"""A table is built for at least one query per this many hashes; fewer queries are bisected."""


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes, as the two halves of each."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, at: Any) -> Hashes:
        """Those at these positions (indices, a mask or a slice)."""
        return Hashes(self.high[at], self.low[at])

    def same(self, other: Hashes) -> Mask:
        """Which of them are equal, position by position."""
        result: Mask = (self.high == other.high) & (self.low == other.low)
        return result

    def among(self, others: Hashes) -> Mask:
        """Which of them are among the others."""
        return HashIndex.of(others).has(self)

    def positions_in(self, others: Hashes) -> I64:
        """For each its first position among the others; -1 when it is none of them."""
        return HashIndex.of(others).find(self)

    def first_of_each(self) -> I64:
        """The positions at which each hash occurs for the first time, ascending."""
        return np.sort(HashIndex.of(self).places)

    def repeated(self) -> I64:
        """The positions at which a hash occurs again, ascending."""
        again = np.ones(len(self), np.bool_)
        again[HashIndex.of(self).places] = False
        return np.flatnonzero(again)

    def distinct(self) -> Hashes:
        """The hashes sorted, each once."""
        hashes = self if ascends(self.high) else self._sorted()
        first = starts_of_groups([hashes.high, hashes.low])
        return hashes if first.all() else hashes.take(first)

    def _sorted(self) -> Hashes:
        if len(self) < _MANY:
            return self.take(stable_order([self.high, self.low]))
        # Parts by the first byte fit into the processor's cache, so sorting each of them is faster.
        byte = (self.high >> np.uint64(56)).astype(np.uint8)
        hashes = self.take(np.argsort(byte, kind="stable"))
        edges = [0, *np.cumsum(np.bincount(byte)).tolist()]
        for part in (slice(*ends) for ends in pairwise(edges)):
            order = stable_order([hashes.high[part], hashes.low[part]])
            hashes.high[part], hashes.low[part] = hashes.high[part][order], hashes.low[part][order]
        return hashes

    @staticmethod
    def joined(parts: list[Hashes]) -> Hashes:
        if not parts:
            return Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
        return Hashes(np.concatenate([p.high for p in parts]), np.concatenate([p.low for p in parts]))


@dataclass(frozen=True)
class HashIndex:
    """Hashes that can be found again: sorted and distinct, with the position at which each first occurred."""

    sorted: Hashes
    _places: I64 | None = None  # None: the position in `sorted`

    @staticmethod
    def of(hashes: Hashes) -> HashIndex:
        """An index of hashes in any order; the first position of a repeated hash counts."""
        order = stable_order([hashes.high, hashes.low])
        ordered = hashes.take(order)
        first = starts_of_groups([ordered.high, ordered.low])
        return HashIndex(ordered, order) if first.all() else HashIndex(ordered.take(first), order[first])

    def __len__(self) -> int:
        return len(self.sorted)

    @property
    def places(self) -> I64:
        """For each of the sorted hashes the position at which it first occurred."""
        return np.arange(len(self)) if self._places is None else self._places

    def find(self, wanted: Hashes) -> I64:
        """For each hash the position at which it first occurred; -1 when it is not there."""
        if len(self) == 0 or len(wanted) == 0:
            return np.full(len(wanted), -1, np.int64)
        few = len(wanted) * _PER_TABLE < len(self)
        at = self._bisected(wanted) if few or self._starts is None else self._probed(wanted, self._starts)
        if self._places is None:
            return at
        return np.where(at < 0, np.int64(-1), self._places[at])

    def has(self, wanted: Hashes) -> Mask:
        """Which of the hashes are there."""
        result: Mask = self.find(wanted) >= 0
        return result

    def _bisected(self, wanted: Hashes) -> I64:
        at, _ = bound([self.sorted.high, self.sorted.low], [wanted.high, wanted.low], BEFORE)
        inside = np.minimum(at, len(self) - 1)
        there = (at < len(self)) & self.sorted.take(inside).same(wanted)
        return np.where(there, inside, np.int64(-1))

    def _probed(self, wanted: Hashes, starts: I64) -> I64:
        """The same by a table of where the hashes with the same top bits begin: a few comparisons per query."""
        found = np.full(len(wanted), -1, np.int64)
        top = (wanted.high >> self._shift).astype(np.int64)
        at, end = starts[top], starts[top + 1]
        left = np.flatnonzero(at < end)
        at, end = at[left], end[left]
        while len(left):
            same = (self.sorted.high[at] == wanted.high[left]) & (self.sorted.low[at] == wanted.low[left])
            found[left[same]] = at[same]
            at = at + 1
            more = ~same & (at < end)
            left, at, end = left[more], at[more], end[more]
        return found

    @cached_property
    def _starts(self) -> I64 | None:
        """The table; None when so many hashes share their top bits that bisecting is faster."""
        counts = np.bincount((self.sorted.high >> self._shift).astype(np.int64), minlength=1 << self._bits)
        return None if counts.max() > _LONGEST_CHAIN else np.concatenate([[0], np.cumsum(counts)])

    @property
    def _bits(self) -> int:
        return min(_TABLE_BITS, len(self).bit_length() + 1)

    @property
    def _shift(self) -> np.uint64:
        return np.uint64(64 - self._bits)


# Sorting


def integer_order(values: npt.NDArray[Any]) -> I64:
    """The positions that sort integers; equal ones keep their order.

    Sorts by the two or four bytes in which the values differ most: a third of the time of a comparing sort.
    """
    words = _as_words(values)
    if len(words) == 0:
        return np.empty(0, np.int64)
    differing = int(np.bitwise_or.reduce(words ^ words[0])).bit_length()
    below = max(0, differing - _TOP_BITS)
    top = (words >> np.uint64(below)).astype(np.uint32)  # the bits above are the same in all values
    # For two bytes numpy counts the values instead of comparing them.
    order: I64 = np.argsort(top.astype(np.uint16), kind="stable")
    if differing > _TOP_BITS // 2:
        order = order[np.argsort((top >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    return order if below == 0 else _with_ties_sorted(words, top, order)


def _as_words(values: npt.NDArray[Any]) -> U64:
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    return values.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN


def _with_ties_sorted(words: U64, top: npt.NDArray[np.uint32], order: I64) -> I64:
    """The order by `top`, with values that share these bits sorted by all bits."""
    ordered = top[order]
    same = ordered[1:] == ordered[:-1]
    shares = np.zeros(len(order), np.bool_)
    shares[1:] |= same
    shares[:-1] |= same
    some = np.flatnonzero(shares)
    order[some] = order[some][np.argsort(words[order[some]], kind="stable")]
    return order


def stable_order(columns: Sequence[U64]) -> I64:
    """The positions that sort hashes by these columns (high and low halves in turn); equal ones keep their order."""
    high = columns[::2]
    # The high halves alone decide except for one pair in 2^64: sorting by fewer columns makes this fast.
    order = integer_order(high[0]) if len(high) == 1 else np.lexsort((high[1], high[0]))
    if _in_order([c[order] for c in columns]):
        return order
    return np.lexsort(list(columns)[::-1])


def _in_order(columns: Sequence[U64]) -> bool:
    ties = np.flatnonzero(columns[0][1:] == columns[0][:-1])
    if len(columns) == 1 or len(ties) == 0:
        return True
    later = [c[ties + 1] for c in columns[1:]]
    return not bool(compare(later, np.arange(len(ties)), [c[ties] for c in columns[1:]], np.less).any())


def ascends(high: U64) -> bool:
    """Whether hashes are sorted and distinct already, judged by their high halves."""
    return bool((high[1:] > high[:-1]).all())


def starts_of_groups(columns: Sequence[U64]) -> Mask:
    """Which rows of sorted columns differ from the row before."""
    first = np.ones(len(columns[0]), np.bool_)
    if len(first) > 1:
        first[1:] = columns[0][1:] != columns[0][:-1]
        for column in columns[1:]:
            first[1:] |= column[1:] != column[:-1]
    return first


# Searching


def compare(columns: Sequence[U64], at: I64, queries: Sequence[U64], last: Any) -> Mask:
    """Whether the rows at these positions are less than the queries, column by column.

    When all columns but the last are equal, `last` decides: `BEFORE` or `UP_TO`.
    """
    values = columns[0][at]
    if len(columns) == 1:
        alone: Mask = last(values, queries[0])
        return alone
    result: Mask = values < queries[0]
    ties = np.flatnonzero(values == queries[0])
    if len(ties):
        result[ties] = compare(columns[1:], at[ties], [q[ties] for q in queries[1:]], last)
    return result


def bisect(columns: Sequence[U64], queries: Sequence[U64], low: I64, high: I64, last: Any) -> tuple[I64, int]:
    """For each query the first row in [low, high) that `last` does not put before it, and the number of comparisons."""
    low, high = low.copy(), high.copy()
    seen = 0
    while True:
        narrowing = np.flatnonzero(low < high)
        if len(narrowing) == 0:
            return low, seen
        middle = (low[narrowing] + high[narrowing]) >> 1
        right = compare(columns, middle, [q[narrowing] for q in queries], last)
        low[narrowing[right]] = middle[right] + 1
        high[narrowing[~right]] = middle[~right]
        seen += len(narrowing)


def bound(columns: Sequence[U64], queries: Sequence[U64], last: Any) -> tuple[I64, int]:
    """For each query its place among all rows of in-memory columns, and the number of comparisons."""
    steps = len(queries[0]) * max(1, len(columns[0]).bit_length())
    if len(columns) == 1:
        side: Any = "left" if last is BEFORE else "right"
        return np.searchsorted(columns[0], queries[0], side).astype(np.int64), steps
    low = np.searchsorted(columns[0], queries[0], "left").astype(np.int64)
    high = np.searchsorted(columns[0], queries[0], "right").astype(np.int64)
    found, seen = bisect(columns[1:], queries[1:], low, high, last)
    return found, steps + seen


def spread(first: I64, end: I64) -> tuple[I64, I64]:
    """All rows of several ranges [first, end), and for each row the number of its range."""
    lengths = np.maximum(end - first, 0)
    number = np.repeat(np.arange(len(first)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(number)) - before[number] + first[number], number
