"""From units of work to chunks: what a task reads, in the order in which it is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transform.changed.inputs import TaskInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.lakes import KnownKeys
from floodmark.transform.rows.chunk import Chunk, Side, seed_of
from floodmark.transform.rows.locate import Located, locate
from floodmark.transform.rows.rectangles import blocks, rectangles
from floodmark.transform.rows.units import KeysUnit, RangeUnit

__all__ = ["Chunk", "Side", "read_chunks"]

CHUNK_ROWS = 1 << 20
"""A chunk of so many rows takes no further key; a key that has more alone is a chunk all the same."""

READ_ROWS = 1 << 17
"""How many rows of an input are read at a time for several chunks."""


def read_chunks(
    unit: RangeUnit | KeysUnit,
    shape: Shape,
    inputs: Sequence[TaskInput],
    chunk_size: int,
    known: KnownKeys | None = None,
) -> Iterator[Chunk]:
    """The chunks of a unit, of `chunk_size` keys each; the last may have only keys that are gone.

    `known` leaves out rows of a range that the run which processed their key has seen. Lists of keys are checked when
    they are made.
    """
    if isinstance(unit, RangeUnit):
        return _range_chunks(unit, shape, inputs[0], chunk_size, known)
    return _key_chunks(unit, shape, inputs, chunk_size)


def _range_chunks(
    unit: RangeUnit, shape: Shape, given: TaskInput, chunk_size: int, known: KnownKeys | None
) -> Iterator[Chunk]:
    seed = seed_of(given.dataset_id, 0)
    for rows, offsets, keys, hashes in _range_blocks(unit, shape, given, chunk_size, known):
        for at in range(0, len(offsets), chunk_size):
            some = slice(at, at + chunk_size)
            count = len(offsets[some])
            each = np.arange(count)
            side = Side(rows.slice(at, count), offsets[some], each, each, seed)
            yield Chunk(keys.slice(at, count), hashes.take(some), (side,))


Block = tuple[pa.Table, I64, pa.Table, Hashes]


def _range_blocks(
    unit: RangeUnit, shape: Shape, given: TaskInput, chunk_size: int, known: KnownKeys | None
) -> Iterator[Block]:
    """Rows to be processed, several whole chunks at a time: rows, offsets, keys and their hashes."""
    assert given.layout is not None
    offset, columns = given.layout.vocab.offset, shape.inputs[0].columns
    scan = given.scan(unit.selection, [offset, *columns.names])
    if unit.selection.is_empty:
        return
    held: list[Block] = []
    with given.steady(), scan.readable():
        for batch in scan.batches():
            held.append(_pending(pa.Table.from_batches([batch]), offset, shape, given, known))
            count = sum(len(block[1]) for block in held)
            if count >= max(chunk_size, READ_ROWS):
                whole, rest = _cut(_joined(held), count // chunk_size * chunk_size)
                yield whole
                held = [rest]
    if held:
        yield _joined(held)


def _pending(rows: pa.Table, offset: str, shape: Shape, given: TaskInput, known: KnownKeys | None) -> Block:
    keys = shape.part_of(0, rows)
    hashes = shape.hash_keys(keys)
    offsets = rows.column(offset).to_numpy()
    frame = rows.select(shape.inputs[0].columns.names).cast(shape.inputs[0].columns)
    if known is None:
        return frame, offsets, keys, hashes
    pending = offsets > known.processed_up_to(hashes, [given.dataset_id])[:, 0]
    if pending.all():
        return frame, offsets, keys, hashes
    mask = pa.array(pending)
    return frame.filter(mask), offsets[pending], keys.filter(mask), hashes.take(pending)


def _joined(parts: list[Block]) -> Block:
    return (
        pa.concat_tables([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        pa.concat_tables([part[2] for part in parts]),
        Hashes.joined([part[3] for part in parts]),
    )


def _cut(block: Block, at: int) -> tuple[Block, Block]:
    rows, offsets, keys, hashes = block
    return (
        (rows.slice(0, at), offsets[:at], keys.slice(0, at), hashes.take(slice(0, at))),
        (rows.slice(at), offsets[at:], keys.slice(at), hashes.take(slice(at, None))),
    )


def _key_chunks(unit: KeysUnit, shape: Shape, inputs: Sequence[TaskInput], chunk_size: int) -> Iterator[Chunk]:
    keys = unit.load()
    hashes = shape.hash_keys(keys)
    located = [locate(unit, keys, shape, number, given) for number, given in enumerate(inputs)]
    counts = np.stack([side.counts for side in located], axis=1)
    there = in_universe(shape, counts)
    groups = _groups(shape, located, np.flatnonzero(there), counts.sum(axis=1), chunk_size)
    for piece in _pieces(groups, counts.sum(axis=1)):
        yield from _assembled(piece, keys, hashes, shape, located)
    gone = np.flatnonzero(~there)
    if len(gone):
        nobody = np.empty(0, np.int64)
        [none] = _assembled([nobody], keys, hashes, shape, located)
        yield Chunk(none.keys, none.hashes, none.sides, hashes.take(gone), keys.take(pa.array(gone)), none.is_cross)


def in_universe(shape: Shape, counts: I64) -> Mask:
    """Which keys are to be called, from how many rows each has in each input.

    A row in an input that has all transform keys makes a key; a cross join needs rows on all sides.
    """
    rows = counts > 0
    is_full = np.array([given.is_full for given in shape.inputs])
    required = np.array([given.required or shape.kind == "cross" for given in shape.inputs])
    there: Mask = np.asarray(rows[:, required].all(axis=1))
    return there if shape.kind == "cross" else there & rows[:, is_full].any(axis=1)


def _groups(shape: Shape, located: Sequence[Located], alive: I64, rows: I64, chunk_size: int) -> Iterator[I64]:
    """The keys of each chunk."""
    if shape.kind == "cross":
        for mine in rectangles([side.part[alive] for side in located]) if len(alive) else ():
            yield from _blocks(alive[mine], [side.part for side in located], chunk_size)
        return
    ends = np.cumsum(rows[alive])
    at = 0
    while at < len(alive):
        before = int(ends[at - 1]) if at else 0
        room = int(np.searchsorted(ends, before + CHUNK_ROWS, side="right"))
        end = min(at + chunk_size, max(room, at + 1))
        yield alive[at:end]
        at = end


def _blocks(keys: I64, parts: Sequence[I64], chunk_size: int) -> Iterator[I64]:
    """A rectangle cut into rectangles of at most so many keys."""
    places, sizes = [], []
    for part in parts:
        distinct, place = np.unique(part[keys], return_inverse=True)
        places.append(place)
        sizes.append(len(distinct))
    grid = np.empty(sizes, np.int64)
    grid[tuple(places)] = keys
    for block in blocks(sizes, chunk_size):
        yield grid[block].ravel()


def _pieces(groups: Iterator[I64], rows: I64) -> Iterator[list[I64]]:
    """Chunks whose rows are read together."""
    held: list[I64] = []
    count = 0
    for group in groups:
        mine = int(rows[group].sum())
        if held and count + mine > READ_ROWS:
            yield held
            held, count = [], 0
        held.append(group)
        count += mine
    if held:
        yield held


def _assembled(
    groups: list[I64], keys: pa.Table, hashes: Hashes, shape: Shape, located: Sequence[Located]
) -> Iterator[Chunk]:
    """The chunks of these groups of keys, with their rows."""
    bounds = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    order = np.concatenate(groups)
    mine, my_hashes = keys.take(pa.array(order)), hashes.take(order)
    sides = [_sides(side, order, bounds, shape.ids[number], number) for number, side in enumerate(located)]
    for at in range(len(groups)):
        some = slice(int(bounds[at]), int(bounds[at + 1]))
        yield Chunk(
            mine.slice(some.start, some.stop - some.start),
            my_hashes.take(some),
            tuple(side[at] for side in sides),
            is_cross=shape.kind == "cross",
        )


def _sides(located: Located, order: I64, bounds: I64, dataset_id: str, number: int) -> list[Side]:
    """One input's part of several chunks: each chunk has the rows of its parts once, in offset order."""
    chunks = len(bounds) - 1
    chunk = np.repeat(np.arange(chunks), np.diff(bounds))
    parts = len(located.starts)
    pairs, pair_of_key = np.unique(chunk * parts + located.part[order], return_inverse=True)
    pair_chunk, pair_part = pairs // parts, pairs % parts
    first_pair = np.searchsorted(pair_chunk, np.arange(chunks + 1))
    lengths = located.starts[pair_part + 1] - located.starts[pair_part]
    pair = np.repeat(np.arange(len(pairs)), lengths)
    before = np.cumsum(lengths) - lengths
    row = np.arange(len(pair)) - before[pair] + located.starts[pair_part[pair]]
    by_offset = np.lexsort((located.offsets[row], pair_chunk[pair]))
    row, pair = row[by_offset], pair[by_offset]
    rows, offsets = located.read(row), located.offsets[row]
    owner = pair - first_pair[pair_chunk[pair]]
    part = pair_of_key.reshape(-1) - first_pair[chunk]
    ends = np.searchsorted(pair_chunk[pair], np.arange(chunks + 1))
    seed = seed_of(dataset_id, number)
    made = []
    for at in range(chunks):
        low, high = int(ends[at]), int(ends[at + 1])
        some = slice(int(bounds[at]), int(bounds[at + 1]))
        made.append(Side(rows.slice(low, high - low), offsets[low:high], owner[low:high], part[some], seed))
    return made
