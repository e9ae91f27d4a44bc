"""The current rows of a source that have some values of T: through its key index, or by looking at these columns alone.

Looking at all rows decodes the columns of T and nothing else. The other columns of the rows that match come from the
uncompressed copies of a keyed dataset when they are few, and else from the files that hold some.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from floodmark.engine.threads import Threads
from floodmark.ledger.beside import Located, Offsets, counted, is_dense
from floodmark.ledger.keys import hashing
from floodmark.ledger.keys.key_index import KeyIndex
from floodmark.ledger.scan import alive
from floodmark.ledger.selection import NOBODY, Selection
from floodmark.storage.arrays import I64
from floodmark.transform.changed.casting import cast_where_it_fits
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.rows.gather import ROW_BY_KEY, cheaper, rows_per_key
from floodmark.transform.rows.locate import by_index
from floodmark.transform.views.reading.matching import Wanted

PIECE_BYTES = 64 << 20
"""Rows that are read with all their columns at a time: whoever wants some columns need not hold the others."""

PIECE_ROWS = 1 << 14
"""So many rows that are read by offset are worth a thread of their own."""

LOOKED_AT = 1 << 19
"""So many rows that are only looked at are."""

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Found:
    """Rows in offset order: the source's own columns that were asked for."""

    offsets: I64
    rows: pa.Table


@dataclass(frozen=True)
class Limits:
    """How many rows are wanted here at most, and among how many they are looked for; None: any number."""

    rows: int
    looked_at: int | None = None


class TooMany(Exception):
    """There are more rows than the caller wants to have or look at here."""


def find_rows(
    given: PinnedInput, shape: Shape, number: int, keys: pa.Table, columns: Sequence[str], limits: Limits
) -> Found:
    """The current rows that have one of the keys, which are all different; `TooMany` when a limit is passed."""
    if keys.num_rows == 0 or given.end == given.purged_before:
        return read_rows(given, np.empty(0, np.int64), columns, given.records(given.end))
    found_by = shape.inputs[number].found_by if given.index is not None else "scan"
    each = rows_per_key(given, shape, number, keys)
    if cheaper(found_by, keys.num_rows, each, given.live_rows) == "index":
        return _by_index(given, shape, number, keys, columns, limits.rows)
    if limits.looked_at is not None and given.live_rows > limits.looked_at:
        raise TooMany
    selection = given.current_rows()
    offsets = _matching(given, shape, number, keys, selection, limits.rows)
    return _copied(given, offsets, columns) or read_rows(given, offsets, columns, selection)


def _by_index(
    given: PinnedInput, shape: Shape, number: int, keys: pa.Table, columns: Sequence[str], most: int
) -> Found:
    _, offsets, hashes = by_index(shape, number, keys, given.for_tasks)
    if len(offsets) > most:
        raise TooMany
    order = np.argsort(offsets)
    offsets, hashes = offsets[order], hashes.take(order)
    everything = given.for_tasks.rows

    def read(some: slice) -> pa.Table:
        return everything.verified(offsets[some], hashes.take(some)).select(list(columns))

    with given.steady():
        return Found(offsets, pa.concat_tables(_in_threads(read, _pieces(given, len(offsets)))))


def _pieces(given: PinnedInput, rows: int) -> list[slice]:
    """Rows in pieces, so that all threads have something to do and together they hold little."""
    most = PIECE_BYTES / pa.cpu_count() / max(given.row_bytes, 1.0)
    step = max(1, int(min(most, max(PIECE_ROWS, -(-rows // pa.cpu_count())))))
    return [slice(at, min(at + step, rows)) for at in range(0, max(rows, 1), step)]


def _in_threads(function: Callable[[Part], Result], parts: Sequence[Part]) -> Generator[Result, None, None]:
    """The results in the order of the parts. Reading, hashing and comparing all let other threads go on."""
    with Threads(max(1, min(pa.cpu_count(), len(parts)))) as threads:
        yield from threads.map(function, parts)


def _matching(given: PinnedInput, shape: Shape, number: int, keys: pa.Table, selection: Selection, most: int) -> I64:
    """The offsets of the rows that have one of the keys."""
    assert given.layout is not None
    own = shape.inputs[number].own
    values, fits = cast_where_it_fits(keys.columns, [given.layout.data.field(name) for name in own])
    table = pa.table(values, names=list(own)).filter(pa.array(fits))
    wanted = Wanted.of(table, hashing.hash_rows(table, own))

    def look(piece: Selection) -> I64:
        found = [np.empty(0, np.int64)]
        for located in _located(given, piece, own):
            rows = wanted.rows(located.records)
            if len(rows):
                found.append(_living(_at(located.offsets, rows), piece.dead))
        return np.concatenate(found)

    found: list[I64] = [np.empty(0, np.int64)]
    with given.steady(), closing(_in_threads(look, _stretches(selection))) as results:
        for offsets in results:
            found.append(offsets)
            if sum(map(len, found)) > most:
                raise TooMany
    return np.concatenate(found)


def _stretches(selection: Selection) -> list[Selection]:
    """A selection cut between its files."""
    ends = np.cumsum([file.rows for file in selection.files])
    firsts = np.flatnonzero(np.diff(ends // LOOKED_AT, prepend=-1)).tolist()
    return [selection.part(first, last) for first, last in pairwise([*firsts, len(selection.files)])]


def _located(given: PinnedInput, selection: Selection, columns: Sequence[str]) -> Iterator[Located]:
    """All records of a selection's files, the dead too: those that match are few, and told apart afterwards."""
    assert given.layout is not None
    everyone = replace(selection, dead=NOBODY, unfolded=None)
    offset = given.layout.vocab.offset
    if is_dense(everyone):
        scan = given.for_tasks.scan(everyone, columns)
        with scan.readable():
            yield from counted(everyone.start, scan.batches())
    else:
        scan = given.for_tasks.scan(everyone, list(dict.fromkeys([offset, *columns])))
        with scan.readable():
            yield from (Located(batch.column(offset).to_numpy(), batch) for batch in scan.batches())


def _at(offsets: Offsets, rows: I64) -> I64:
    return rows + offsets.start if isinstance(offsets, range) else offsets[rows]


def _living(offsets: I64, dead: I64) -> I64:
    kept = alive(offsets, dead)
    return offsets if kept is None else offsets[kept]


def _copied(given: PinnedInput, offsets: I64, columns: Sequence[str]) -> Found | None:
    """The rows from the copies beside the slices, where that is quicker; None too when some are not as they should be.

    A copy is not believed alone: each row must have the hash that the key index has for its key.
    """
    index = given.index
    if index is None or not given.snapshot.objects.is_local or len(offsets) * ROW_BY_KEY > given.live_rows:
        return None
    everything = given.for_tasks.rows

    def read(some: slice) -> pa.Table | None:
        rows = everything.copied(offsets[some])
        return rows.select(list(columns)) if _are_right(given, index, offsets[some], rows) else None

    tables = []
    with given.steady(), closing(_in_threads(read, _pieces(given, len(offsets)))) as results:
        for table in results:
            if table is None:
                return None
            tables.append(table)
    return Found(offsets, pa.concat_tables(tables))


def _are_right(given: PinnedInput, index: KeyIndex, offsets: I64, rows: pa.Table) -> bool:
    """Whether the key index has these very rows at these offsets."""
    assert given.layout is not None
    key, lookup = given.strategy.key, given.strategy.lookup
    prefix = hashing.hash_rows(rows, lookup) if lookup != key else None
    expected = index.find(hashing.hash_rows(rows, key), prefix)
    same = expected.row.same(hashing.hash_rows(rows, given.layout.data.names))
    return bool(((expected.offset == offsets) & same).all())


def read_rows(given: PinnedInput, offsets: I64, columns: Sequence[str], selection: Selection) -> Found:
    """The current rows at these offsets, which are sorted, from the files that hold some of them."""
    assert given.layout is not None
    offset = given.layout.vocab.offset
    scan = given.for_tasks.scan(_narrowed(selection, offsets), list(dict.fromkeys([offset, *columns])))
    tables = [scan.schema.empty_table()]
    if len(offsets):
        with given.steady(), scan.readable():
            tables += [_those(batch, batch.column(offset).to_numpy(), offsets) for batch in scan.batches()]
    return Found(offsets, pa.concat_tables(tables).select(list(columns)))


def _narrowed(selection: Selection, offsets: I64) -> Selection:
    """The files that hold some of these offsets."""
    if len(offsets) == 0:
        return selection
    starts, ends = (np.array([getattr(f, side) for f in selection.files], np.int64) for side in ("start", "end"))
    has_some = np.searchsorted(offsets, starts) < np.searchsorted(offsets, ends)
    files = tuple(f for f, some in zip(selection.files, has_some.tolist(), strict=True) if some)
    return selection.of(files, int(offsets[0]), int(offsets[-1]) + 1)


def _those(batch: pa.RecordBatch, present: I64, offsets: I64) -> pa.Table:
    """The rows of a batch whose offsets are among these; both are sorted."""
    table = pa.Table.from_batches([batch])
    if len(present) == 0:
        return table
    low, high = np.searchsorted(offsets, [present[0], present[-1] + 1])
    return table.take(pa.array(np.searchsorted(present, offsets[low:high])))
