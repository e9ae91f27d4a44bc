"""Arrays of hashes and offsets: sort them, search sorted arrays, and look up many hashes in a large set."""

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
"""With at least one query per this many hashes, lookups use a table. With fewer queries they use bisection."""


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes, as arrays of their high and low halves."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, at: Any) -> Hashes:
        """The hashes at these positions (indices, a mask or a slice)."""
        return Hashes(self.high[at], self.low[at])

    def same(self, other: Hashes) -> Mask:
        """For each position: whether the hashes are equal."""
        result: Mask = (self.high == other.high) & (self.low == other.low)
        return result

    def among(self, others: Hashes) -> Mask:
        """For each hash: whether it is in `others`."""
        return HashIndex.of(others).has(self)

    def positions_in(self, others: Hashes) -> I64:
        """For each hash: its first position in `others`; -1 if it is not in there."""
        return HashIndex.of(others).find(self)

    def first_positions(self) -> I64:
        """The positions of the first occurrence of each hash, ascending."""
        return np.sort(HashIndex.of(self).places)

    def repeated(self) -> I64:
        """The positions of all later occurrences of hashes, ascending."""
        again = np.ones(len(self), np.bool_)
        again[HashIndex.of(self).places] = False
        return np.flatnonzero(again)

    def distinct(self) -> Hashes:
        """The sorted hashes without duplicates."""
        hashes = self if ascends(self.high) else self._sorted()
        first = is_group_start([hashes.high, hashes.low])
        return hashes if first.all() else hashes.take(first)

    def _sorted(self) -> Hashes:
        if len(self) < _MANY:
            return self.take(stable_order([self.high, self.low]))
        # Parts by first byte fit into the processor cache, so sorting each part is faster.
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
    """A lookup from hashes to positions: sorted, distinct hashes and the first position of each."""

    sorted: Hashes
    _places: I64 | None = None  # None: the position in `sorted`

    @staticmethod
    def of(hashes: Hashes) -> HashIndex:
        """Build an index of hashes in any order. A repeated hash has its first position."""
        order = stable_order([hashes.high, hashes.low])
        ordered = hashes.take(order)
        first = is_group_start([ordered.high, ordered.low])
        return HashIndex(ordered, order) if first.all() else HashIndex(ordered.take(first), order[first])

    def __len__(self) -> int:
        return len(self.sorted)

    @property
    def places(self) -> I64:
        """For each of the sorted hashes: its first position."""
        return np.arange(len(self)) if self._places is None else self._places

    def find(self, queries: Hashes) -> I64:
        """For each hash: its first position; -1 if it is not in the index."""
        if len(self) == 0 or len(queries) == 0:
            return np.full(len(queries), -1, np.int64)
        few = len(queries) * _PER_TABLE < len(self)
        at = self._bisect(queries) if few or self._starts is None else self._probe(queries, self._starts)
        if self._places is None:
            return at
        return np.where(at < 0, np.int64(-1), self._places[at])

    def has(self, queries: Hashes) -> Mask:
        """For each hash: whether it is in the index."""
        result: Mask = self.find(queries) >= 0
        return result

    def _bisect(self, queries: Hashes) -> I64:
        at, _ = search_rows([self.sorted.high, self.sorted.low], [queries.high, queries.low], BEFORE)
        inside = np.minimum(at, len(self) - 1)
        is_match = (at < len(self)) & self.sorted.take(inside).same(queries)
        return np.where(is_match, inside, np.int64(-1))

    def _probe(self, queries: Hashes, starts: I64) -> I64:
        """Like `_bisect`, by a table with the start of each group of equal top bits: a few comparisons per query."""
        result = np.full(len(queries), -1, np.int64)
        top = (queries.high >> self._shift).astype(np.int64)
        at, end = starts[top], starts[top + 1]
        rest = np.flatnonzero(at < end)
        at, end = at[rest], end[rest]
        while len(rest):
            same = (self.sorted.high[at] == queries.high[rest]) & (self.sorted.low[at] == queries.low[rest])
            result[rest[same]] = at[same]
            at = at + 1
            has_more = ~same & (at < end)
            rest, at, end = rest[has_more], at[has_more], end[has_more]
        return result

    @cached_property
    def _starts(self) -> I64 | None:
        """The table; None if many hashes share their top bits and bisection is faster."""
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
    """The positions that sort integers; equal values keep their order.

    It sorts by the top two or four bytes that differ, in a third of the time of a comparison sort.
    """
    words = _to_words(values)
    if len(words) == 0:
        return np.empty(0, np.int64)
    differing = int(np.bitwise_or.reduce(words ^ words[0])).bit_length()
    below = max(0, differing - _TOP_BITS)
    top = (words >> np.uint64(below)).astype(np.uint32)  # all values have the same bits above
    # For 16-bit values numpy uses a radix sort.
    order: I64 = np.argsort(top.astype(np.uint16), kind="stable")
    if differing > _TOP_BITS // 2:
        order = order[np.argsort((top >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    return order if below == 0 else _sort_ties(words, top, order)


def _to_words(values: npt.NDArray[Any]) -> U64:
    if values.dtype.kind == "u":
        return values.astype(np.uint64, copy=False)
    return values.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN


def _sort_ties(words: U64, top: npt.NDArray[np.uint32], order: I64) -> I64:
    """Sort values that share their top bits by all bits."""
    ordered = top[order]
    same = ordered[1:] == ordered[:-1]
    shares = np.zeros(len(order), np.bool_)
    shares[1:] |= same
    shares[:-1] |= same
    tied = np.flatnonzero(shares)
    order[tied] = order[tied][np.argsort(words[order[tied]], kind="stable")]
    return order


def stable_order(columns: Sequence[U64]) -> I64:
    """The positions that sort hashes by these columns (high and low halves in turn); equal hashes keep their order."""
    high = columns[::2]
    # High halves are equal for one pair in 2^64 only, so sorting by fewer columns is nearly always enough.
    order = integer_order(high[0]) if len(high) == 1 else np.lexsort((high[1], high[0]))
    if _in_order([c[order] for c in columns]):
        return order
    return np.lexsort(list(columns)[::-1])


def _in_order(columns: Sequence[U64]) -> bool:
    ties = np.flatnonzero(columns[0][1:] == columns[0][:-1])
    if len(columns) == 1 or len(ties) == 0:
        return True
    later = [c[ties + 1] for c in columns[1:]]
    return not bool(rows_before(later, np.arange(len(ties)), [c[ties] for c in columns[1:]], np.less).any())


def ascends(high: U64) -> bool:
    """Whether hashes are sorted and distinct, according to their high halves."""
    return bool((high[1:] > high[:-1]).all())


def is_group_start(columns: Sequence[U64]) -> Mask:
    """For each row of sorted columns: whether it differs from the previous row."""
    first = np.ones(len(columns[0]), np.bool_)
    if len(first) > 1:
        first[1:] = columns[0][1:] != columns[0][:-1]
        for column in columns[1:]:
            first[1:] |= column[1:] != column[:-1]
    return first


# Searching


def rows_before(columns: Sequence[U64], at: I64, queries: Sequence[U64], last: Any) -> Mask:
    """For each position: whether the row there is less than the query, compared column by column.

    If all columns before the last are equal, `last` compares the last column: `BEFORE` or `UP_TO`.
    """
    values = columns[0][at]
    if len(columns) == 1:
        is_less: Mask = last(values, queries[0])
        return is_less
    result: Mask = values < queries[0]
    ties = np.flatnonzero(values == queries[0])
    if len(ties):
        result[ties] = rows_before(columns[1:], at[ties], [q[ties] for q in queries[1:]], last)
    return result


def bisect(columns: Sequence[U64], queries: Sequence[U64], low: I64, high: I64, last: Any) -> tuple[I64, int]:
    """For each query: the first row in [low, high) that is not before it by `last`. Also the number of comparisons."""
    low, high = low.copy(), high.copy()
    comparisons = 0
    while True:
        narrowing = np.flatnonzero(low < high)
        if len(narrowing) == 0:
            return low, comparisons
        middle = (low[narrowing] + high[narrowing]) >> 1
        right = rows_before(columns, middle, [q[narrowing] for q in queries], last)
        low[narrowing[right]] = middle[right] + 1
        high[narrowing[~right]] = middle[~right]
        comparisons += len(narrowing)


def search_rows(columns: Sequence[U64], queries: Sequence[U64], last: Any) -> tuple[I64, int]:
    """Like `bisect`, over all rows of columns in memory."""
    steps = len(queries[0]) * max(1, len(columns[0]).bit_length())
    if len(columns) == 1:
        side: Any = "left" if last is BEFORE else "right"
        return np.searchsorted(columns[0], queries[0], side).astype(np.int64), steps
    low = np.searchsorted(columns[0], queries[0], "left").astype(np.int64)
    high = np.searchsorted(columns[0], queries[0], "right").astype(np.int64)
    rows, comparisons = bisect(columns[1:], queries[1:], low, high, last)
    return rows, steps + comparisons


def expand_ranges(first: I64, end: I64) -> tuple[I64, I64]:
    """All rows of several ranges [first, end), and the number of the range of each row."""
    lengths = np.maximum(end - first, 0)
    number = np.repeat(np.arange(len(first)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(number)) - before[number] + first[number], number
