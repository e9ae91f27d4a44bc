"""Find the current rows of an input that have given key values: by its key index, or by a scan of the key columns.

A scan decodes only the key columns. The other columns of the matching rows are read from the uncompressed row copies
of a keyed dataset if there are few rows, and otherwise from the files that contain them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.inputs import InputSnapshot, TaskInput
from floodmark.derive.key_shape import KeyShape, cast_with_mask
from floodmark.engine.run import GeneratorThreads
from floodmark.ledger.scan import live_mask
from floodmark.ledger.selection import NO_OFFSETS, Selection
from floodmark.ledger.side_columns import OffsetBatch, Offsets, count_offsets, is_dense
from floodmark.rows import row_hash
from floodmark.rows.key_entries import NO_ROW
from floodmark.rows.key_index import KeyIndex
from floodmark.storage.arrays import I64, U64, Hashes, HashIndex, Mask

READ_BYTES = 64 << 20
"""The bytes of rows that are read at a time with all their columns; unneeded columns are dropped after each part."""

READ_ROWS = 1 << 14
"""The number of rows read by offset per thread."""

SCAN_ROWS = 1 << 19
"""The number of rows scanned per thread."""

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RowSearchResult:
    """Rows in offset order with the requested columns."""

    offsets: I64
    rows: pa.Table


@dataclass(frozen=True)
class SearchLimits:
    """The most rows to return, and the most rows to scan (None: no limit)."""

    rows: int
    scanned_rows: int | None = None


class SearchLimitExceeded(Exception):
    """A limit on the rows to return or to scan was exceeded."""


def find_rows(
    given: InputSnapshot, shape: KeyShape, number: int, keys: pa.Table, columns: Sequence[str], limits: SearchLimits
) -> RowSearchResult:
    """The current rows that have one of these distinct keys; `SearchLimitExceeded` if a limit is exceeded."""
    if keys.num_rows == 0 or given.end == given.purged_before:
        return read_rows(given, np.empty(0, np.int64), columns, given.records(given.end))
    found_by = shape.inputs[number].search_method if given.index is not None else "scan"
    each = estimate_rows_per_key(given, shape, number, keys)
    if choose_search(found_by, keys.num_rows, each, given.live_rows) == "index":
        return _by_index(given, shape, number, keys, columns, limits.rows)
    if limits.scanned_rows is not None and given.live_rows > limits.scanned_rows:
        raise SearchLimitExceeded
    selection = given.current_rows()
    offsets = _matching(given, shape, number, keys, selection, limits.rows)
    return _read_copies(given, offsets, columns) or read_rows(given, offsets, columns, selection)


def _by_index(
    given: InputSnapshot, shape: KeyShape, number: int, keys: pa.Table, columns: Sequence[str], most: int
) -> RowSearchResult:
    _, offsets, hashes = find_by_index(shape, number, keys, given.task_input)
    if len(offsets) > most:
        raise SearchLimitExceeded
    order = np.argsort(offsets)
    offsets, hashes = offsets[order], hashes.take(order)
    stored = given.task_input.rows

    def read(part: slice) -> pa.Table:
        return stored.verified(offsets[part], hashes.take(part)).select(list(columns))

    with given.raise_if_input_moved():
        return RowSearchResult(offsets, pa.concat_tables(_in_threads(read, _pieces(given, len(offsets)))))


def _pieces(given: InputSnapshot, rows: int) -> list[slice]:
    """Cut rows into parts so that every thread has work and all threads together use little memory."""
    most = READ_BYTES / pa.cpu_count() / max(given.row_bytes, 1.0)
    step = max(1, int(min(most, max(READ_ROWS, -(-rows // pa.cpu_count())))))
    return [slice(at, min(at + step, rows)) for at in range(0, max(rows, 1), step)]


def _in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[Result, None, None]:
    """The results in the order of the parts. Reading, hashing and comparing all release the GIL."""
    with GeneratorThreads(max(1, min(pa.cpu_count(), len(parts)))) as threads:
        yield from threads.map(function, parts)


def _matching(
    given: InputSnapshot, shape: KeyShape, number: int, keys: pa.Table, selection: Selection, most: int
) -> I64:
    """The offsets of the rows that have one of the keys."""
    assert given.layout is not None
    own = shape.inputs[number].own
    values, fits = cast_with_mask(keys.columns, [given.layout.data.field(name) for name in own])
    table = pa.table(values, names=list(own)).filter(pa.array(fits))
    search = SearchedKeys.of(table, row_hash.hash_rows(table, own))

    def scan(part: Selection) -> I64:
        matching = [np.empty(0, np.int64)]
        for located in _scan_records(given, part, own):
            rows = search.rows(located.records)
            if len(rows):
                matching.append(_without_dead(_offsets_at(located.offsets, rows), part.dead))
        return np.concatenate(matching)

    matching: list[I64] = [np.empty(0, np.int64)]
    with given.raise_if_input_moved(), closing(_in_threads(scan, _file_groups(selection))) as results:
        for offsets in results:
            matching.append(offsets)
            if sum(map(len, matching)) > most:
                raise SearchLimitExceeded
    return np.concatenate(matching)


def _file_groups(selection: Selection) -> list[Selection]:
    """Cut a selection between its files."""
    ends = np.cumsum([file.rows for file in selection.files])
    firsts = np.flatnonzero(np.diff(ends // SCAN_ROWS, prepend=-1)).tolist()
    return [selection.part(first, last) for first, last in pairwise([*firsts, len(selection.files)])]


def _scan_records(given: InputSnapshot, selection: Selection, columns: Sequence[str]) -> Iterator[OffsetBatch]:
    """All records of a selection's files, dead ones included. Matching rows are few, so the dead are removed later."""
    assert given.layout is not None
    with_dead = replace(selection, dead=NO_OFFSETS, unfolded=None)
    offset = given.layout.vocab.offset
    if is_dense(with_dead):
        scan = given.task_input.scan(with_dead, columns)
        with scan.readable():
            yield from count_offsets(with_dead.start, scan.batches())
    else:
        scan = given.task_input.scan(with_dead, list(dict.fromkeys([offset, *columns])))
        with scan.readable():
            yield from (OffsetBatch(batch.column(offset).to_numpy(), batch) for batch in scan.batches())


def _offsets_at(offsets: Offsets, rows: I64) -> I64:
    return rows + offsets.start if isinstance(offsets, range) else offsets[rows]


def _without_dead(offsets: I64, dead: I64) -> I64:
    is_live = live_mask(offsets, dead)
    return offsets if is_live is None else offsets[is_live]


def _read_copies(given: InputSnapshot, offsets: I64, columns: Sequence[str]) -> RowSearchResult | None:
    """Read rows from the row copies; None if that would be slower, or a copy is wrong.

    Each row of a copy is checked: it must have the hash that the key index has for its key.
    """
    index = given.index
    if index is None or not given.snapshot.objects.is_local or len(offsets) * ROW_BY_KEY > given.live_rows:
        return None
    stored = given.task_input.rows

    def read(part: slice) -> pa.Table | None:
        rows = stored.copied(offsets[part])
        return rows.select(list(columns)) if _match_index(given, index, offsets[part], rows) else None

    tables = []
    with given.raise_if_input_moved(), closing(_in_threads(read, _pieces(given, len(offsets)))) as results:
        for table in results:
            if table is None:
                return None
            tables.append(table)
    return RowSearchResult(offsets, pa.concat_tables(tables))


def _match_index(given: InputSnapshot, index: KeyIndex, offsets: I64, rows: pa.Table) -> bool:
    """Whether the key index has exactly these rows at these offsets."""
    assert given.layout is not None
    key, lookup = given.strategy.key, given.strategy.lookup
    prefix = row_hash.hash_rows(rows, lookup) if lookup != key else None
    expected = index.find(row_hash.hash_rows(rows, key), prefix)
    same = expected.row.same(row_hash.hash_rows(rows, given.layout.data.names))
    return bool(((expected.offset == offsets) & same).all())


def read_rows(given: InputSnapshot, offsets: I64, columns: Sequence[str], selection: Selection) -> RowSearchResult:
    """Read the current rows at these sorted offsets from the files that contain them."""
    assert given.layout is not None
    offset = given.layout.vocab.offset
    scan = given.task_input.scan(_files_with(selection, offsets), list(dict.fromkeys([offset, *columns])))
    tables = [scan.schema.empty_table()]
    if len(offsets):
        with given.raise_if_input_moved(), scan.readable():
            tables += [_rows_at(batch, batch.column(offset).to_numpy(), offsets) for batch in scan.batches()]
    return RowSearchResult(offsets, pa.concat_tables(tables).select(list(columns)))


def _files_with(selection: Selection, offsets: I64) -> Selection:
    """Keep the files that contain some of these offsets."""
    if len(offsets) == 0:
        return selection
    starts, ends = (np.array([getattr(f, side) for f in selection.files], np.int64) for side in ("start", "end"))
    has_some = np.searchsorted(offsets, starts) < np.searchsorted(offsets, ends)
    files = tuple(f for f, some in zip(selection.files, has_some.tolist(), strict=True) if some)
    return selection.of(files, int(offsets[0]), int(offsets[-1]) + 1)


def _rows_at(batch: pa.RecordBatch, present: I64, offsets: I64) -> pa.Table:
    """The rows of a batch at these offsets. `present` has the offsets of the batch; both are sorted."""
    table = pa.Table.from_batches([batch])
    if len(present) == 0:
        return table
    low, high = np.searchsorted(offsets, [present[0], present[-1] + 1])
    return table.take(pa.array(np.searchsorted(present, offsets[low:high])))


# Matching values

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FEWEST_BITS, _MOST_BITS = 16, 24
_SPARSE = 4
"""Extra bits beyond the count of the searched values, so that at most one other row in sixteen passes the sieve."""


@dataclass(frozen=True)
class ValueSieve:
    """A bit table with one hashed bit per searched value. It filters out most other values."""

    seen: Mask
    shift: np.uint64

    @staticmethod
    def of(words: U64) -> ValueSieve:
        bits = min(_MOST_BITS, max(_FEWEST_BITS, len(words).bit_length() + _SPARSE))
        sieve = ValueSieve(np.zeros(1 << bits, np.bool_), np.uint64(64 - bits))
        sieve.seen[sieve._slots(words)] = True
        return sieve

    def likely(self, words: U64) -> I64:
        """The positions of words that may be searched values."""
        return np.flatnonzero(self.seen[self._slots(words)])

    def _slots(self, words: U64) -> U64:
        slots: U64 = (words * _SPREAD) >> self.shift
        return slots


@dataclass(frozen=True)
class SearchedNumbers:
    """Searched integers, dates or times."""

    words: U64  # sorted
    sieve: ValueSieve
    wants_null: bool

    @staticmethod
    def of(column: pa.ChunkedArray) -> SearchedNumbers:
        words = np.unique(_number_words(column.drop_null().combine_chunks()))
        return SearchedNumbers(words, ValueSieve.of(words), column.null_count > 0)

    def rows(self, column: pa.Array) -> I64:
        """The ascending positions of the rows that have a searched value."""
        words = _number_words(column)
        likely = self.sieve.likely(words)
        if len(self.words):
            at = np.minimum(np.searchsorted(self.words, words[likely]), len(self.words) - 1)
            likely = likely[self.words[at] == words[likely]]
        return _with_nulls(likely, column, self.wants_null)


@dataclass(frozen=True)
class SearchedValues:
    """Searched values of any other type."""

    values: pa.Array

    @staticmethod
    def of(column: pa.ChunkedArray) -> SearchedValues:
        return SearchedValues(column.unique())

    def rows(self, column: pa.Array) -> I64:
        is_match = pc.is_in(column, value_set=self.values)  # a null among the values matches nulls
        return np.flatnonzero(is_match.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class SearchedKeys:
    """Searched tuples of values, with the names of their columns."""

    names: tuple[str, ...]
    columns: tuple[SearchedNumbers | SearchedValues, ...]
    among: HashIndex

    @staticmethod
    def of(values: pa.Table, hashes: Hashes) -> SearchedKeys:
        """`values` are distinct tuples, and `hashes` are their hashes."""
        return SearchedKeys(
            tuple(values.column_names), tuple(map(_column_matcher, values.columns)), HashIndex.of(hashes)
        )

    def rows(self, batch: pa.RecordBatch) -> I64:
        """The ascending positions of the rows that have one of the tuples; the batch has these columns and types."""
        rows: I64 | None = None
        for name, column in zip(self.names, self.columns, strict=True):
            values = batch.column(name)
            if rows is None:
                rows = column.rows(values)
            elif len(rows):
                rows = rows[column.rows(values.take(pa.array(rows)))]
        assert rows is not None
        if len(self.names) == 1 or len(rows) == 0:
            return rows
        likely = batch.select(list(self.names)).take(pa.array(rows))
        return rows[self.among.has(row_hash.hash_rows(likely, self.names))]


def _column_matcher(column: pa.ChunkedArray) -> SearchedNumbers | SearchedValues:
    kind = column.type
    if pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return SearchedNumbers.of(column)
    return SearchedValues.of(column)


def _with_nulls(rows: I64, column: pa.Array, wants_null: bool) -> I64:
    """Remove rows that are null, whose words are arbitrary, from the matches; add them back if null is searched for."""
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


# Search by the key index


def find_by_index(shape: KeyShape, number: int, parts: pa.Table, given: TaskInput) -> tuple[I64, I64, Hashes]:
    """Find rows by the key index: for each row the number of its part, its offset and its hash."""
    assert given.layout is not None
    assert given.index is not None
    whole, prefix, fits = shape.own_hashes(number, parts, given.layout.data)
    can_be = np.flatnonzero(fits)
    whole = whole.take(can_be)
    with given.raise_if_input_moved():
        if shape.inputs[number].search_method == "key":
            found = given.index.find(whole, None if prefix is None else prefix.take(can_be))
            which, offsets, rows = np.arange(len(can_be)), found.offset, found.row
        else:
            which, entries = given.index.find_prefix(whole)
            offsets, rows = entries.offset, entries.row
    exists = np.flatnonzero((offsets != NO_ROW) & (offsets >= given.purged_before))
    return can_be[which[exists]], offsets[exists], rows.take(exists)


# Index or scan

ROW_BY_KEY = 8.0
"""The cost of finding a row by its key, in rows of a full scan."""

FEW_ROWS = 1 << 10
"""Inputs with up to this many rows always use the index if there is one."""

_SAMPLE = 256

SearchMethod = Literal["index", "scan"]


def choose_search(found_by: str, keys: int, rows_each: float, live_rows: int) -> SearchMethod:
    """Choose how to find the rows of keys: one by one in the key index, or by a scan of all rows of the input."""
    if found_by == "scan":
        return "scan"
    if live_rows <= FEW_ROWS:
        return "index"
    return "index" if keys * max(rows_each, 1.0) * ROW_BY_KEY <= live_rows else "scan"


def estimate_rows_per_key(given: InputSnapshot, shape: KeyShape, number: int, keys: pa.Table) -> float:
    """Estimate the number of rows per key, or per part that the input has of it, from a sample."""
    is_prefix = shape.inputs[number].search_method == "prefix"
    if not is_prefix or given.layout is None or given.index is None or keys.num_rows == 0:
        return 1.0
    sample = keys.take(pa.array(np.linspace(0, keys.num_rows - 1, min(_SAMPLE, keys.num_rows)).astype(np.int64)))
    prefixes, _, _ = shape.own_hashes(number, sample, given.layout.data)
    with given.raise_if_input_moved():
        which, _ = given.index.find_prefix(prefixes)
    return float(len(which) / sample.num_rows)
