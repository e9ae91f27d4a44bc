"""Reads the chunks of a unit of work: rows of a range of records, or rows of some keys, cut into calls.

Products of keys are cut into rectangles, so that few rows of each side are read for many keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from floodmark.derive.inputs import KnownKeys, TaskInput
from floodmark.derive.key_shape import KeyShape
from floodmark.storage.arrays import I64, Hashes, Mask
from floodmark.transforms.chunks import (
    Chunk,
    LinkedSide,
    Side,
    cut_product,
    rectangles,
    signature_seed,
)
from floodmark.transforms.key_rows import KeyRows, locate_all
from floodmark.transforms.work_units import KeysUnit, RangeUnit

CHUNK_ROWS = 1 << 20
"""The most rows of a chunk, unless a single key has more."""

READ_ROWS = 1 << 17
"""How many rows are read at once for several chunks."""


def read_chunks(
    unit: RangeUnit | KeysUnit,
    shape: KeyShape,
    inputs: Sequence[TaskInput],
    chunk_size: int,
    known: KnownKeys | None = None,
) -> Iterator[Chunk]:
    """The chunks of a unit, with at most `chunk_size` keys each; the last one may have gone keys only.

    In a range of records, rows that were seen when their key was processed are left out by `known`. Lists of keys are
    already checked.
    """
    if isinstance(unit, RangeUnit):
        return _range_chunks(unit, shape, inputs[0], chunk_size, known)
    return _key_chunks(unit, shape, inputs, chunk_size)


def _range_chunks(
    unit: RangeUnit, shape: KeyShape, given: TaskInput, chunk_size: int, known: KnownKeys | None
) -> Iterator[Chunk]:
    seed = signature_seed(given.dataset_id, 0)
    for rows, offsets, keys, hashes in _range_blocks(unit, shape, given, chunk_size, known):
        for at in range(0, len(offsets), chunk_size):
            some = slice(at, at + chunk_size)
            count = len(offsets[some])
            each = np.arange(count)
            side = Side(rows.slice(at, count), offsets[some], each, each, seed)
            yield Chunk(keys.slice(at, count), hashes.take(some), (side,))


RowBatch = tuple[pa.Table, I64, pa.Table, Hashes]


def _range_blocks(
    unit: RangeUnit, shape: KeyShape, given: TaskInput, chunk_size: int, known: KnownKeys | None
) -> Iterator[RowBatch]:
    """The rows to process with their offsets, keys and hashes; each block has several whole chunks."""
    assert given.layout is not None
    offset, columns = given.layout.vocab.offset, shape.inputs[0].columns
    scan = given.scan(unit.selection, [offset, *columns.names])
    if unit.selection.is_empty:
        return
    waiting: list[RowBatch] = []
    with given.raise_if_input_moved(), scan.readable():
        for batch in scan.batches():
            waiting.append(_pending(pa.Table.from_batches([batch]), offset, shape, given, known))
            count = sum(len(block[1]) for block in waiting)
            if count >= max(chunk_size, READ_ROWS):
                whole, rest = _cut(_join(waiting), count // chunk_size * chunk_size)
                yield whole
                waiting = [rest]
    if waiting:
        yield _join(waiting)


def _pending(rows: pa.Table, offset: str, shape: KeyShape, given: TaskInput, known: KnownKeys | None) -> RowBatch:
    keys = shape.part_of(0, rows)
    hashes = shape.hash_keys(keys)
    offsets = rows.column(offset).to_numpy()
    frame = rows.select(shape.inputs[0].columns.names).cast(shape.inputs[0].columns)
    if known is None:
        return frame, offsets, keys, hashes
    pending = given.seen_at(offsets) > known.processed_up_to(hashes, [given.dataset_id])[:, 0]
    if pending.all():
        return frame, offsets, keys, hashes
    mask = pa.array(pending)
    return frame.filter(mask), offsets[pending], keys.filter(mask), hashes.take(pending)


def _join(parts: list[RowBatch]) -> RowBatch:
    return (
        pa.concat_tables([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        pa.concat_tables([part[2] for part in parts]),
        Hashes.joined([part[3] for part in parts]),
    )


def _cut(block: RowBatch, at: int) -> tuple[RowBatch, RowBatch]:
    rows, offsets, keys, hashes = block
    return (
        (rows.slice(0, at), offsets[:at], keys.slice(0, at), hashes.take(slice(0, at))),
        (rows.slice(at), offsets[at:], keys.slice(at), hashes.take(slice(at, None))),
    )


def _key_chunks(unit: KeysUnit, shape: KeyShape, inputs: Sequence[TaskInput], chunk_size: int) -> Iterator[Chunk]:
    keys = unit.load()
    hashes = shape.hash_keys(keys)
    located = locate_all(unit, keys, shape, inputs)
    counts = np.stack([side.counts for side in located], axis=1)
    exists = mask_existing(shape, counts)
    is_shared = np.array([not given.part for given in shape.inputs])  # every key has all rows of these inputs
    rows, shared = counts[:, ~is_shared].sum(axis=1), int(counts[:1, is_shared].sum())
    groups = _groups(shape, located, np.flatnonzero(exists), rows, chunk_size)
    for groups_read in _reads(groups, rows, shared):
        yield from _assemble(groups_read, keys, hashes, shape, located)
    gone = np.flatnonzero(~exists)
    if len(gone):
        no_keys = np.empty(0, np.int64)
        [empty] = _assemble([no_keys], keys, hashes, shape, located)
        yield Chunk(empty.keys, empty.hashes, empty.sides, hashes.take(gone), keys.take(pa.array(gone)), empty.axes)


def mask_existing(shape: KeyShape, counts: I64) -> Mask:
    """Which keys exist, so that the function is called with them, from their row counts in each input.

    A key exists if each side has a row of it in one of its inputs, and every required input, too.
    """
    rows = counts > 0
    required = np.array([given.required for given in shape.inputs])
    exists: Mask = np.asarray(rows[:, required].all(axis=1))
    for side in shape.sides:
        exists = exists & rows[:, list(side)].any(axis=1)
    return exists


def _groups(shape: KeyShape, located: Sequence[KeyRows], existing: I64, rows: I64, chunk_size: int) -> Iterator[I64]:
    """The keys of each chunk."""
    if shape.kind == "cross":
        parts = [located[number].part for number in _axes(shape)]
        for mine in rectangles([part[existing] for part in parts]) if len(existing) else ():
            yield from _blocks(existing[mine], parts, chunk_size)
        return
    ends = np.cumsum(rows[existing])
    at = 0
    while at < len(existing):
        before = int(ends[at - 1]) if at else 0
        limit = int(np.searchsorted(ends, before + CHUNK_ROWS, side="right"))
        end = min(at + chunk_size, max(limit, at + 1))
        yield existing[at:end]
        at = end


def _axes(shape: KeyShape) -> tuple[int, ...]:
    """One input of each side of a cross join."""
    return tuple(side[0] for side in shape.sides) if shape.kind == "cross" else ()


def _blocks(keys: I64, parts: Sequence[I64], chunk_size: int) -> Iterator[I64]:
    """A rectangle cut into rectangles of at most `chunk_size` keys."""
    coordinates, sizes = [], []
    for part in parts:
        distinct, coordinate = np.unique(part[keys], return_inverse=True)
        coordinates.append(coordinate)
        sizes.append(len(distinct))
    grid = np.empty(sizes, np.int64)
    grid[tuple(coordinates)] = keys
    for block in cut_product(sizes, chunk_size):
        yield grid[block].ravel()


def _reads(groups: Iterator[I64], rows: I64, shared: int) -> Iterator[list[I64]]:
    """The keys of chunks whose rows are read together. Each chunk also has the `shared` rows."""
    together: list[I64] = []
    count = 0
    for group in groups:
        mine = int(rows[group].sum()) + shared
        if together and count + mine > READ_ROWS:
            yield together
            together, count = [], 0
        together.append(group)
        count += mine
    if together:
        yield together


def _assemble(
    groups: list[I64], keys: pa.Table, hashes: Hashes, shape: KeyShape, located: Sequence[KeyRows]
) -> Iterator[Chunk]:
    """One chunk with its rows for each of these groups of keys."""
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
            axes=_axes(shape),
        )


def _sides(located: KeyRows, order: I64, bounds: I64, dataset_id: str, number: int) -> list[Side]:
    """The sides of one input for several chunks. Each chunk has the rows of its parts once, in offset order."""
    chunks = len(bounds) - 1
    parts = len(located.starts)
    sizes, mine = located.parts_of(order)
    links = np.concatenate([[0], np.cumsum(sizes)])  # per key: where its parts begin
    chunk = np.repeat(np.repeat(np.arange(chunks), np.diff(bounds)), sizes)
    pairs, pair_of_key = np.unique(chunk * parts + mine, return_inverse=True)
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
    seed = signature_seed(dataset_id, number)
    sides = []
    for at in range(chunks):
        low, high = int(ends[at]), int(ends[at + 1])
        first, last = int(bounds[at]), int(bounds[at + 1])
        found = rows.slice(low, high - low), offsets[low:high], owner[low:high], part[links[first] : links[last]], seed
        if located.ends is None:
            sides.append(Side(*found))
        else:
            sides.append(LinkedSide(*found, links[first + 1 : last + 1] - links[first]))
    return sides
