"""Find the rows of keys: by an input's key index, or in files with all rows of the requested keys, sorted by bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.derive.changed_keys import TASK_ROWS, HashGroups, cut_selection
from floodmark.derive.inputs import InputSnapshot, TaskInput
from floodmark.derive.key_shape import KeyShape, cast_exactly
from floodmark.derive.row_search import find_by_index
from floodmark.engine.rounds import TaskRunner
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64, U64, Hashes, HashIndex
from floodmark.storage.scratch import SortedFile
from floodmark.transforms.join_keys import PartsOfKeys, match_numbers
from floodmark.transforms.run_scope import values_filter
from floodmark.transforms.work_units import BUCKETS, KeysUnit, ScratchDir

_TOP = np.uint64(56)

RowReader = Callable[[I64], pa.Table]
"""Reads the rows at these positions, in this order, with the columns that the function gets."""


@dataclass(frozen=True)
class KeyRows:
    """The rows of one input for some keys: sorted by part, then by offset."""

    part: I64  # per key: the number of its part; with `ends`, the numbers of the parts of all keys
    starts: I64  # per part: where its rows begin; after the last part: where they end
    offsets: I64
    read: RowReader
    ends: I64 | None = None  # per key: where its parts end, if a key may have several

    @property
    def counts(self) -> I64:
        """The number of rows of each key."""
        counts: I64 = np.diff(self.starts)[self.part]
        if self.ends is None:
            return counts
        sums: I64 = np.concatenate([[0], np.cumsum(counts)])[np.concatenate([[0], self.ends])]
        per_key: I64 = np.diff(sums)
        return per_key

    def parts_of(self, keys: I64) -> tuple[I64, I64]:
        """The parts of some keys: how many each key has, and their numbers."""
        if self.ends is None:
            return np.ones(len(keys), np.int64), self.part[keys]
        sizes = np.diff(self.ends, prepend=0)[keys]
        before = np.cumsum(sizes) - sizes
        at = np.arange(int(sizes.sum())) - np.repeat(before, sizes) + np.repeat(self.ends[keys] - sizes, sizes)
        return sizes, self.part[at]


def locate_all(unit: KeysUnit, keys: pa.Table, shape: KeyShape, inputs: Sequence[TaskInput]) -> list[KeyRows]:
    """The rows of each input that belong to keys; first of the sources, through whose rows others are looked up."""
    located: dict[int, KeyRows] = {}
    for number in sorted(range(len(inputs)), key=lambda n: bool(shape.inputs[n].through)):
        located[number] = _locate(unit, keys, shape, number, inputs[number], located)
    return [located[number] for number in range(len(inputs))]


def _locate(
    unit: KeysUnit,
    keys: pa.Table,
    shape: KeyShape,
    number: int,
    given: TaskInput,
    sources: Mapping[int, KeyRows],
) -> KeyRows:
    if not shape.inputs[number].through:
        return _rows_of_parts(unit, keys, shape, number, given, *_parts(shape, number, keys))
    of_side, of_link, parts = _linked_parts(shape, number, sources)
    side = sources[shape.inputs[number].through[0]].part  # per key
    of_key, link = match_numbers(side, of_side)
    ends = np.searchsorted(of_key, np.arange(len(side)), side="right").astype(np.int64)
    return replace(_rows_of_parts(unit, keys, shape, number, given, of_link[link], parts), ends=ends)


def _linked_parts(shape: KeyShape, number: int, sources: Mapping[int, KeyRows]) -> tuple[I64, I64, pa.Table]:
    """The links of an input in the rows of its sources: pairs of a part of the source and its own; and its parts."""
    schema, of_side, tables = shape.part_schema(number), [], [shape.part_schema(number).empty_table()]
    for source in shape.inputs[number].through:
        rows, of_source = sources[source], shape.inputs[source]
        known = {**of_source.keys, **of_source.joins}
        table = rows.read(np.arange(len(rows.offsets)))
        values = [cast_exactly(table.column(known[f.name]), f, of_source.name) for f in schema]
        tables.append(pa.table(values, schema=schema))
        of_side.append(np.repeat(np.arange(len(rows.starts) - 1), np.diff(rows.starts)))
    every = pa.concat_tables(tables)
    groups = HashGroups.of(shape.hash_part(number, every))
    count = max(len(groups), 1)
    pairs = np.unique(np.concatenate(of_side) * count + groups.number)
    return pairs // count, pairs % count, every.take(pa.array(groups.first))


def _rows_of_parts(
    unit: KeysUnit, keys: pa.Table, shape: KeyShape, number: int, given: TaskInput, part: I64, parts: pa.Table
) -> KeyRows:
    """The rows of an input that have these distinct parts."""
    files = unit.sides[number]
    if given.layout is None:
        nothing = np.empty(0, np.int64)
        return KeyRows(part, np.zeros(parts.num_rows + 1, np.int64), nothing, lambda at: _nothing(shape, number, at))
    if files is not None:
        table = _bucket_rows(unit, keys, shape, number)
        at = Hashes(*_hashes(table)).positions_in(shape.hash_part(number, parts))
        mine = np.flatnonzero(at >= 0)
        offsets = table.column(table.num_columns - 3).to_numpy()
        if not shape.inputs[number].is_full:
            _, once = np.unique(offsets[mine], return_index=True)  # a row is in every bucket that has a key of it
            mine = mine[once]
        rows = pa.Table.from_arrays(table.columns[:-3], schema=shape.inputs[number].columns)
        return _sort_by_part(part, parts.num_rows, at[mine], offsets[mine], _from_table(rows, mine))
    owner, offsets, hashes = find_by_index(shape, number, parts, given)
    return _sort_by_part(part, parts.num_rows, owner, offsets, _from_slices(shape, number, given, offsets, hashes))


def _nothing(shape: KeyShape, number: int, at: I64) -> pa.Table:
    assert len(at) == 0
    return shape.inputs[number].columns.empty_table()


def _parts(shape: KeyShape, number: int, keys: pa.Table) -> tuple[I64, pa.Table]:
    """The number of each key's part in an input, and one key for each distinct part."""
    if shape.inputs[number].is_full:
        return np.arange(keys.num_rows, dtype=np.int64), keys
    groups = HashGroups.of(shape.hash_part(number, keys))
    return groups.number, keys.take(pa.array(groups.first))


def _sort_by_part(part: I64, parts: int, owner: I64, offsets: I64, read: RowReader) -> KeyRows:
    order = np.lexsort((offsets, owner))
    starts = np.searchsorted(owner[order], np.arange(parts + 1))
    return KeyRows(part, starts.astype(np.int64), offsets[order], lambda at: read(order[at]))


def _from_slices(shape: KeyShape, number: int, given: TaskInput, offsets: I64, hashes: Hashes) -> RowReader:
    columns = shape.inputs[number].columns

    def read(at: I64) -> pa.Table:
        with given.raise_if_input_moved():
            return given.rows.verified(offsets[at], hashes.take(at)).select(columns.names).cast(columns)

    return read


def _bucket_rows(unit: KeysUnit, keys: pa.Table, shape: KeyShape, number: int) -> pa.Table:
    """The rows of all buckets that may have the unit's keys."""
    files = unit.sides[number]
    assert files
    top = shape.hash_file_order(number, keys).high >> _TOP
    low, high = int(top.min()), int(top.max()) + 1
    return pa.concat_tables([file.read(low, high) for file in files])


def _hashes(table: pa.Table) -> tuple[U64, U64]:
    return table.column(table.num_columns - 2).to_numpy(), table.column(table.num_columns - 1).to_numpy()


def _from_table(rows: pa.Table, positions: I64) -> RowReader:
    return lambda at: rows.take(pa.array(positions[at]))


# Sorting rows into buckets

_TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class SortRowsTask:
    """One task: sort the rows of a selection into a file by bucket."""

    given: TaskInput
    shape: KeyShape
    number: int
    selection: Selection
    sorted_keys: SortedFile
    scratch: ScratchDir = field(repr=False)


def sort_rows_by_bucket(
    input_snapshot: InputSnapshot,
    shape: KeyShape,
    number: int,
    keys: pa.Table,
    mine: PartsOfKeys,
    runner: TaskRunner,
    scratch: ScratchDir,
) -> tuple[SortedFile, ...]:
    """The current rows of an input that belong to some of these keys, in files by bucket of the keys' hashes.

    If an input has only some of the transform keys, a row belongs to all keys with its part: it is in all their
    buckets.
    """
    if input_snapshot.layout is None:
        return (scratch.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)
    if len(mine.hashes) == 0:
        return (scratch.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)
    parts = _distinct_parts(shape, number, keys, mine)
    filed = scratch.put(parts, [parts.num_rows])
    selection = input_snapshot.current_rows()
    rows = max(1, min(TASK_ROWS, int(_TASK_BYTES / max(input_snapshot.row_bytes, 1.0))))
    tasks = [
        SortRowsTask(input_snapshot.task_input, shape, number, piece, filed, scratch)
        for piece in cut_selection(selection, rows)
    ]
    try:
        results = runner.run_reading(tasks, sort_selection, selection.end - selection.start)
    finally:
        _latest_parts.clear()
    files = tuple(file for file in results if file is not None)
    return files or (scratch.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)


def _distinct_parts(shape: KeyShape, number: int, keys: pa.Table, mine: PartsOfKeys) -> pa.Table:
    """The distinct parts that the keys have in an input: their values, their hashes, and the buckets of their keys."""
    parts, target = mine.hashes, shape.hash_file_order(number, keys).take(mine.keys)
    bucket = (target.high >> _TOP).astype(np.int64)
    groups = HashGroups.of(parts)
    if len(groups) == len(bucket):  # no two keys share a part, so each part has one bucket
        pairs = np.arange(len(groups)) * BUCKETS + bucket[groups.first]
    else:
        pairs = np.unique(groups.number * BUCKETS + bucket)
    ends = np.searchsorted(pairs // BUCKETS, np.arange(len(groups) + 1)).astype(np.int32)
    table = mine.table.select(list(shape.inputs[number].part)).take(pa.array(groups.first))
    hashes = parts.take(groups.first)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array((pairs % BUCKETS).astype(np.uint8)))
    columns = [*table.columns, pa.array(hashes.high), pa.array(hashes.low), lists]
    return pa.Table.from_arrays(columns, names=[*map(str, range(len(columns)))])


def _columns(shape: KeyShape, number: int) -> pa.Schema:
    own = [pa.field(str(n), f.type) for n, f in enumerate(shape.inputs[number].columns)]
    last = [("offset", pa.int64()), ("high", pa.uint64()), ("low", pa.uint64())]
    return pa.schema([*own, *last])


@dataclass(frozen=True)
class RequestedParts:
    """The requested parts with an index, and the buckets of each part."""

    values: pa.Table
    among: HashIndex
    ends: npt.NDArray[np.int32]  # per part: where its buckets begin; after the last part: where they end
    buckets: npt.NDArray[np.uint8]


_latest_parts: dict[str, RequestedParts] = {}


def _open_parts(filed: SortedFile) -> RequestedParts:
    """The requested parts of a file. Tasks of one process share them: to build the index takes longer than a task."""
    opened = _latest_parts.get(filed.path)
    if opened is None:
        *values, high, low, lists = filed.read_all().combine_chunks().columns
        table = pa.Table.from_arrays(values, names=[str(n) for n in range(len(values))])
        of_each = lists.chunk(0)
        among = HashIndex.of(Hashes(high.to_numpy(), low.to_numpy()))
        opened = RequestedParts(table, among, of_each.offsets.to_numpy(), of_each.values.to_numpy())
        _latest_parts.clear()
        _latest_parts[filed.path] = opened
    return opened


def sort_selection(task: SortRowsTask) -> SortedFile | None:
    """The requested rows of a selection, as a file by bucket; None if there are none."""
    assert task.given.layout is not None
    offset = task.given.layout.vocab.offset
    given = task.shape.inputs[task.number]
    names = list(dict.fromkeys([offset, *given.own, *given.columns.names]))
    sorted_keys = _open_parts(task.sorted_keys)
    where = values_filter(sorted_keys.values.rename_columns(list(given.own)), task.given.layout.data)
    tables: list[pa.Table] = []
    buckets: list[I64] = []
    scan = task.given.scan(task.selection, names)
    with task.given.raise_if_input_moved(), scan.readable():
        for batch in scan.batches(where):
            rows = pa.Table.from_batches([batch])
            hashes = task.shape.hash_part(task.number, task.shape.part_of(task.number, rows))
            at, pair = _rows_and_buckets(sorted_keys.among.find(hashes), sorted_keys.ends)
            if len(at) == 0:
                continue
            columns = [*rows.select(given.columns.names).columns, rows.column(offset)]
            added = [pa.chunked_array([pa.array(hashes.high)]), pa.chunked_array([pa.array(hashes.low)])]
            schema = _columns(task.shape, task.number)
            tables.append(pa.Table.from_arrays([*columns, *added], schema=schema).take(pa.array(at)))
            buckets.append(sorted_keys.buckets[pair].astype(np.int64))
    return task.scratch.put_parts(pa.concat_tables(tables), np.concatenate(buckets), BUCKETS) if tables else None


def _rows_and_buckets(part: I64, ends: npt.NDArray[np.int32]) -> tuple[I64, I64]:
    """Each row with each bucket of its part: positions of rows, and positions in the list of buckets."""
    rows = np.flatnonzero(part >= 0)
    first = ends[part[rows]].astype(np.int64)
    lengths = ends[part[rows] + 1] - first
    which = np.repeat(np.arange(len(rows)), lengths)
    before = np.cumsum(lengths) - lengths
    pairs: I64 = np.arange(len(which)) - before[which] + first[which]
    return rows[which], pairs
