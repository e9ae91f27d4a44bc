"""The semi-join: all current rows of an input are looked at, and those of wanted keys sorted into files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from floodmark.compute.runner import Runner
from floodmark.ledger.keys.entries import starts_of_groups
from floodmark.ledger.keys.records import I64, U64, Hashes
from floodmark.ledger.keys.search import BEFORE, UP_TO, bound
from floodmark.ledger.selection import Selection
from floodmark.transform.changes import TASK_ROWS, cut, run_reading
from floodmark.transform.inputs import PinnedInput, TaskInput
from floodmark.transform.room import FiledTable, Room
from floodmark.transform.shape import Shape
from floodmark.transform.units import BUCKETS

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
    wanted = _wanted(shape.hash_part(number, keys), shape.hash_place(number, keys))
    filed = room.put(wanted, [wanted.num_rows])
    selection = pinned.current_rows()
    rows = max(1, min(TASK_ROWS, int(_TASK_BYTES / max(pinned.row_bytes, 1.0))))
    tasks = [SortOut(pinned.for_tasks, shape, number, piece, filed, room) for piece in cut(selection, rows)]
    found = run_reading(runner, tasks, sort_selection, selection.end - selection.start)
    kept = tuple(file for file in found if file is not None)
    return kept or (room.put(_columns(shape, number).empty_table(), [0] * BUCKETS),)


def _wanted(parts: Hashes, place: Hashes) -> pa.Table:
    """Which parts are in which buckets, sorted: each pair once."""
    bucket = place.high >> _TOP
    order = np.lexsort((bucket, parts.low, parts.high))
    columns = [parts.high[order], parts.low[order], bucket[order]]
    once = starts_of_groups(columns)
    return pa.table([pa.array(c[once]) for c in columns], names=["high", "low", "bucket"])


def _columns(shape: Shape, number: int) -> pa.Schema:
    own = [pa.field(str(n), f.type) for n, f in enumerate(shape.inputs[number].columns)]
    last = [("offset", pa.int64()), ("high", pa.uint64()), ("low", pa.uint64())]
    return pa.schema([*own, *last])


def sort_selection(task: SortOut) -> FiledTable | None:
    """The wanted rows of a selection as a file by bucket; None when there are none."""
    assert task.given.layout is not None
    offset = task.given.layout.vocab.offset
    given = task.shape.inputs[task.number]
    names = list(dict.fromkeys([offset, *given.own, *given.columns.names]))
    wanted = task.wanted.read_all()
    high, low, bucket = (wanted.column(n).to_numpy() for n in ("high", "low", "bucket"))
    tables: list[pa.Table] = []
    buckets: list[I64] = []
    scan = task.given.scan(task.selection, names)
    with task.given.steady(), scan.readable():
        for batch in scan.batches():
            rows = pa.Table.from_batches([batch])
            hashes = task.shape.hash_part(task.number, task.shape.part_of(task.number, rows))
            at, pair = _pairs([high, low], hashes)
            if len(at) == 0:
                continue
            columns = [*rows.select(given.columns.names).columns, rows.column(offset)]
            added = [pa.chunked_array([pa.array(hashes.high)]), pa.chunked_array([pa.array(hashes.low)])]
            schema = _columns(task.shape, task.number)
            tables.append(pa.Table.from_arrays([*columns, *added], schema=schema).take(pa.array(at)))
            buckets.append(bucket[pair].astype(np.int64))
    return task.room.put_parts(pa.concat_tables(tables), np.concatenate(buckets), BUCKETS) if tables else None


def _pairs(wanted: Sequence[U64], hashes: Hashes) -> tuple[I64, I64]:
    """Each row with each bucket in which it is wanted: positions of rows and of wanted pairs."""
    queries = [hashes.high, hashes.low]
    first, _ = bound(wanted, queries, BEFORE)
    end, _ = bound(wanted, queries, UP_TO)
    lengths = np.maximum(end - first, 0)
    rows = np.repeat(np.arange(len(hashes)), lengths)
    before = np.cumsum(lengths) - lengths
    pairs: I64 = np.arange(len(rows)) - before[rows] + first[rows]
    return rows, pairs
