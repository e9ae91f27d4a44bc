"""Which of many rows have one of some wanted tuples of values, without hashing them all.

Most rows are ruled out column by column: numbers by a table of a few bits of each, other values by Arrow. What is left
of several columns together is compared by hash, as everywhere. Null is a value like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.ledger.keys import hashing
from floodmark.storage.arrays import I64, U64, Hashes, HashIndex, Mask

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FEWEST_BITS, _MOST_BITS = 16, 24
_SPARSE = 4
"""Bits more than it takes to count the wanted values, so that at most one other row in sixteen gets by."""


@dataclass(frozen=True)
class Sieve:
    """A mark for each wanted value at a place that its word is spread to; others fall through, most of them."""

    seen: Mask
    shift: np.uint64

    @staticmethod
    def of(words: U64) -> Sieve:
        bits = min(_MOST_BITS, max(_FEWEST_BITS, len(words).bit_length() + _SPARSE))
        sieve = Sieve(np.zeros(1 << bits, np.bool_), np.uint64(64 - bits))
        sieve.seen[sieve._places(words)] = True
        return sieve

    def likely(self, words: U64) -> I64:
        """The positions of words that may be wanted."""
        return np.flatnonzero(self.seen[self._places(words)])

    def _places(self, words: U64) -> U64:
        places: U64 = (words * _SPREAD) >> self.shift
        return places


@dataclass(frozen=True)
class Numbers:
    """Wanted integers, dates or times."""

    words: U64  # sorted
    sieve: Sieve
    wants_null: bool

    @staticmethod
    def of(column: pa.ChunkedArray) -> Numbers:
        words = np.unique(_number_words(column.drop_null().combine_chunks()))
        return Numbers(words, Sieve.of(words), column.null_count > 0)

    def rows(self, column: pa.Array) -> I64:
        """The positions of the rows that have a wanted value, ascending."""
        words = _number_words(column)
        likely = self.sieve.likely(words)
        if len(self.words):
            at = np.minimum(np.searchsorted(self.words, words[likely]), len(self.words) - 1)
            likely = likely[self.words[at] == words[likely]]
        return _with_nulls(likely, column, self.wants_null)


@dataclass(frozen=True)
class Others:
    """Wanted values of any other type."""

    values: pa.Array

    @staticmethod
    def of(column: pa.ChunkedArray) -> Others:
        return Others(column.unique())

    def rows(self, column: pa.Array) -> I64:
        found = pc.is_in(column, value_set=self.values)  # null among the values finds nulls
        return np.flatnonzero(found.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class Wanted:
    """Tuples of values that are looked for, under the names of the columns in which they are."""

    names: tuple[str, ...]
    columns: tuple[Numbers | Others, ...]
    among: HashIndex

    @staticmethod
    def of(values: pa.Table, hashes: Hashes) -> Wanted:
        """`values` are all different, and `hashes` theirs."""
        return Wanted(tuple(values.column_names), tuple(map(_sought, values.columns)), HashIndex.of(hashes))

    def rows(self, batch: pa.RecordBatch) -> I64:
        """The positions of the rows that have one of the tuples, ascending; the batch has these columns and types."""
        found: I64 | None = None
        for name, column in zip(self.names, self.columns, strict=True):
            values = batch.column(name)
            if found is None:
                found = column.rows(values)
            elif len(found):
                found = found[column.rows(values.take(pa.array(found)))]
        assert found is not None
        if len(self.names) == 1 or len(found) == 0:
            return found
        some = batch.select(list(self.names)).take(pa.array(found))
        return found[self.among.has(hashing.hash_rows(some, self.names))]


def _sought(column: pa.ChunkedArray) -> Numbers | Others:
    kind = column.type
    if pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return Numbers.of(column)
    return Others.of(column)


def _with_nulls(rows: I64, column: pa.Array, wants_null: bool) -> I64:
    """Rows that were found by the words of values, of which a null has any, and those with null if that is wanted."""
    if column.null_count == 0:
        return rows
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    rows = rows[~is_null[rows]]
    return np.union1d(rows, np.flatnonzero(is_null)) if wants_null else rows


def _number_words(column: Any) -> U64:
    """Each value in 64 bits."""
    width = column.type.bit_width
    kind = "u" if pa.types.is_unsigned_integer(column.type) else "i"
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), np.uint64)
    values = np.frombuffer(buffer, f"<{kind}{width // 8}", len(column) + column.offset)[column.offset :]
    return values.view(np.uint64) if width == 64 else values.astype(np.int64).view(np.uint64)
