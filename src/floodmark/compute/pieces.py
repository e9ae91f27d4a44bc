"""Pieces of a file in the making: every row in its place, with the value of the source that counts, or null.

A piece is cut by its rows and by its bytes, so that it fits into memory and into one Arrow array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import sources
from floodmark.compute.checkpoints.batches import Source
from floodmark.compute.sources import Values
from floodmark.compute.stored import row_errors
from floodmark.engine.rounds import most_rows
from floodmark.storage.arrays import I64
from floodmark.storage.slices import ROW_GROUP_ROWS


@dataclass(frozen=True)
class Piece:
    """The offsets [start, end): their new values, the errors among them, and what older files have for them."""

    start: int
    end: int
    values: pa.Array
    errors: tuple[pa.Table, ...]
    old: Sequence[Source]

    @property
    def before(self) -> pa.Array:
        """The values as older files have them."""
        return _placed(self.start, self.end, self.old, _owners(self.start, self.end, self.old), self.values.type)


def pieces(
    start: int,
    end: int,
    kind: pa.DataType,
    old: Sequence[Values],
    fresh: Sequence[Values],
    again: BitMap | None = None,
    base: int = 0,
) -> Iterator[Piece]:
    """All of [start, end), in order. What is fresh counts more than what is old.

    Of fresh sources that have the same row, one with a value counts more than one where it failed, and then the newer
    one. For rows that are tried `again` (addresses, from `base` on) only the newest counts.
    """
    low = start
    while low < end:
        high = min(low + ROW_GROUP_ROWS, end)
        for values in (*old, *fresh):
            high = values.reach(low, high)
        before = [part for values in old for part in values.within(low, high)]
        newer = sorted((part for values in fresh for part in values.within(low, high)), key=lambda part: part.made)
        parts = [*before, *newer]
        rows = most_rows(high - low, sources.PIECE_BYTES, partial(_bytes, parts, low))
        if rows < high - low:
            high = low + rows
            before, newer = ([part.within(low, high) for part in group] for group in (before, newer))
            parts = [*before, *newer]
        owners = _owners(low, high, before)
        _give(owners, low, newer, len(before), again, base)
        made = _placed(low, high, parts, owners, kind)
        yield Piece(low, high, made, _errors(owners, low, newer, len(before)), before)
        low = high


def _bytes(parts: Sequence[Source], low: int, rows: int) -> int:
    return sum(int(part.within(low, low + rows).values.nbytes) for part in parts)


def _owners(low: int, high: int, parts: Sequence[Source]) -> I64:
    """For each row the number of the last part that has it, or -1."""
    owners = np.full(high - low, -1, np.int64)
    for number, part in enumerate(parts):
        owners[part.offsets - low] = number
    return owners


def _give(owners: I64, low: int, fresh: Sequence[Source], first: int, again: BitMap | None, base: int) -> None:
    """Give rows to fresh parts, which come in the order of their age and have the numbers from `first` on."""
    numbered = list(enumerate(fresh, first))
    failing = [(number, part) for number, part in numbered if part.failed.any()]
    for number, part in failing:
        owners[part.offsets[part.failed] - low] = number
    for number, part in numbered:
        owners[(part.offsets[~part.failed] if part.failed.any() else part.offsets) - low] = number
    if failing and again:
        for number, part in numbered:
            owners[part.only(again, base).offsets - low] = number


def _errors(owners: I64, low: int, fresh: Sequence[Source], first: int) -> tuple[pa.Table, ...]:
    found = []
    for number, part in enumerate(fresh, first):
        if part.failed.any():
            chosen = part.where(part.failed & (owners[part.offsets - low] == number))
            found.append(row_errors.table(chosen.offsets, chosen.errors))
    return tuple(table for table in found if table.num_rows)


def _placed(low: int, high: int, parts: Sequence[Source], owners: I64, kind: pa.DataType) -> pa.Array:
    """The values of [low, high), each from its owner; nothing else is copied."""
    arrays: list[pa.Array] = []
    places = np.full(high - low, -1, np.int64)
    rows = 0
    for number, part in enumerate(parts):
        own = part.where(owners[part.offsets - low] == number)
        places[own.offsets - low] = np.arange(rows, rows + len(own.offsets))
        rows += len(own.offsets)
        arrays += own.values.chunks if isinstance(own.values, pa.ChunkedArray) else [own.values]
    if not rows:
        return pa.nulls(high - low, kind)
    pool = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    in_place = rows == high - low and bool((places == np.arange(rows)).all())
    return pool if in_place else pool.take(pa.array(places, mask=places < 0))
