"""The semi-join: all current rows of an input are looked at, and those of wanted keys sorted into files."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from floodmark.engine.rounds import Runner
from floodmark.ledger.selection import Selection
from floodmark.storage.arrays import I64, Hashes, HashIndex
from floodmark.transform.changed.changes import TASK_ROWS, Groups, cut
from floodmark.transform.changed.filters import values_filter
from floodmark.transform.changed.inputs import PinnedInput, TaskInput
from floodmark.transform.changed.shape import Shape
from floodmark.transform.rows.room import FiledTable, Room
from floodmark.transform.rows.units import BUCKETS

_TASK_BYTES = 64 << 20
_TOP = np.uint64(56)


@dataclass(frozen=True)
class SortOut:
    """One task: the rows of a selection."""

    given: TaskInput
    shape: Shape
    number: int
    selection: Selection
    wanted: FiledTable
    room: Room = field(repr=False)


def sort_out(
    pinned: PinnedInput, shape: Shape, number: int, keys: pa.Table, runner: Runner, room: Room
) -> tuple[FiledTable, ...]:
    """The current rows of an input that belong to some of these keys, in files by bucket of the keys' hashes.

    A row of an input with a part of the transform keys only belongs to all keys with that part: it is in all their
    buckets.
    """
    if pinned.layout is None:
        return (room.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)
    wanted = _wanted(shape, number, keys)
    filed = room.put(wanted, [wanted.num_rows])
    selection = pinned.current_rows()
    rows = max(1, min(TASK_ROWS, int(_TASK_BYTES / max(pinned.row_bytes, 1.0))))
    tasks = [SortOut(pinned.for_tasks, shape, number, piece, filed, room) for piece in cut(selection, rows)]
    try:
        found = runner.run_reading(tasks, sort_selection, selection.end - selection.start)
    finally:
        _latest.clear()
    kept = tuple(file for file in found if file is not None)
    return kept or (room.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)


def _wanted(shape: Shape, number: int, keys: pa.Table) -> pa.Table:
    """Each part that the keys have of an input once: its values, its hash, and the buckets in which it is wanted."""
    parts, place = shape.hash_part(number, keys), shape.hash_place(number, keys)
    bucket = (place.high >> _TOP).astype(np.int64)
    groups = Groups.of(parts)
    if len(groups) == len(bucket):  # no two keys share a part: each is wanted in one bucket
        pairs = np.arange(len(groups)) * BUCKETS + bucket[groups.first]
    else:
        pairs = np.unique(groups.number * BUCKETS + bucket)
    ends = np.searchsorted(pairs // BUCKETS, np.arange(len(groups) + 1)).astype(np.int32)
    table = keys.select(list(shape.inputs[number].part)).take(pa.array(groups.first))
    hashes = parts.take(groups.first)
    lists = pa.ListArray.from_arrays(pa.array(ends), pa.array((pairs % BUCKETS).astype(np.uint8)))
    columns = [*table.columns, pa.array(hashes.high), pa.array(hashes.low), lists]
    return pa.Table.from_arrays(columns, names=[*map(str, range(len(columns)))])


def _columns(shape: Shape, number: int) -> pa.Schema:
    own = [pa.field(str(n), f.type) for n, f in enumerate(shape.inputs[number].columns)]
    last = [("offset", pa.int64()), ("high", pa.uint64()), ("low", pa.uint64())]
    return pa.schema([*own, *last])


@dataclass(frozen=True)
class Wanted:
    """The parts that are wanted, ready to be found: their values, and per part the buckets that want it."""

    values: pa.Table
    among: HashIndex
    ends: npt.NDArray[np.int32]
    buckets: npt.NDArray[np.uint8]


_latest: dict[str, Wanted] = {}


def _opened(filed: FiledTable) -> Wanted:
    """What is wanted; tasks of one process that want the same share it, since making it costs more than a task."""
    found = _latest.get(filed.path)
    if found is None:
        *values, high, low, lists = filed.read_all().combine_chunks().columns
        table = pa.Table.from_arrays(values, names=[str(n) for n in range(len(values))])
        of_each = lists.chunk(0)
        among = HashIndex.of(Hashes(high.to_numpy(), low.to_numpy()))
        found = Wanted(table, among, of_each.offsets.to_numpy(), of_each.values.to_numpy())
        _latest.clear()
        _latest[filed.path] = found
    return found


def sort_selection(task: SortOut) -> FiledTable | None:
    """The wanted rows of a selection as a file by bucket; None when there are none."""
    assert task.given.layout is not None
    offset = task.given.layout.vocab.offset
    given = task.shape.inputs[task.number]
    names = list(dict.fromkeys([offset, *given.own, *given.columns.names]))
    wanted = _opened(task.wanted)
    where = values_filter(wanted.values.rename_columns(list(given.own)), task.given.layout.data)
    tables: list[pa.Table] = []
    buckets: list[I64] = []
    scan = task.given.scan(task.selection, names)
    with task.given.steady(), scan.readable():
        for batch in scan.batches(where):
            rows = pa.Table.from_batches([batch])
            hashes = task.shape.hash_part(task.number, task.shape.part_of(task.number, rows))
            at, pair = _pairs(wanted.among.find(hashes), wanted.ends)
            if len(at) == 0:
                continue
            columns = [*rows.select(given.columns.names).columns, rows.column(offset)]
            added = [pa.chunked_array([pa.array(hashes.high)]), pa.chunked_array([pa.array(hashes.low)])]
            schema = _columns(task.shape, task.number)
            tables.append(pa.Table.from_arrays([*columns, *added], schema=schema).take(pa.array(at)))
            buckets.append(wanted.buckets[pair].astype(np.int64))
    return task.room.put_parts(pa.concat_tables(tables), np.concatenate(buckets), BUCKETS) if tables else None


def _pairs(part: I64, ends: npt.NDArray[np.int32]) -> tuple[I64, I64]:
    """Each row with each bucket in which its part is wanted: positions of rows and in the list of buckets."""
    rows = np.flatnonzero(part >= 0)
    first = ends[part[rows]].astype(np.int64)
    lengths = ends[part[rows] + 1] - first
    which = np.repeat(np.arange(len(rows)), lengths)
    before = np.cumsum(lengths) - lengths
    pairs: I64 = np.arange(len(which)) - before[which] + first[which]
    return rows[which], pairs
