"""Assemble one column file, in offset order, from checkpoints in any order and from older files.

Where checkpoints overlap, one value is chosen. Dead and filtered rows are null. Older values stay where nothing newer
was computed. A gap is an error: a row that should be in a checkpoint and is not must never become a null.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from floodmark.columns import row_errors, value_sources
from floodmark.columns.catalog import FIELD_ID
from floodmark.columns.checkpoint_batch import OffsetValues
from floodmark.columns.checkpoints import DataCheckpoint, encode_data_checkpoint, find_data, find_ranges
from floodmark.columns.column_file import has_valid_hash, open_segment, write_segment
from floodmark.columns.manifest import ColumnSegment
from floodmark.columns.plan import TargetFile
from floodmark.columns.value_sources import (
    CheckpointReader,
    CheckpointValues,
    FileValues,
    FinishedFileValues,
    MemoryValues,
    ValueSource,
    discard,
    lost_rows_error,
    read_stored_time,
)
from floodmark.columns.work import ColumnJob, WrittenSegment
from floodmark.derive.checkpoint_key import data_key
from floodmark.engine.rounds import most_rows_that_fit
from floodmark.errors import UnreadableColumn
from floodmark.rows.row_hash import hash_rows
from floodmark.storage import row_sets
from floodmark.storage.arrays import I64
from floodmark.storage.parquet import ROW_GROUP_ROWS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AssembleTask:
    """One file to write. Its `rows` (addresses) come from checkpoints, all others from the segments it replaces."""

    fragment: int
    target: TargetFile
    rows: BitMap
    done: BitMap  # unchanged rows that this computation computed
    live: BitMap  # the live rows of the file
    visible: BitMap  # the rows whose value readers saw
    errors: str | None = None  # digest of the previous errors of the fragment
    again: BitMap = field(default_factory=BitMap)  # rows that failed before: only their newest stored result counts

    def __str__(self) -> str:
        return f"to assemble the values of records {self.target.start} to {self.target.end - 1}"


@dataclass(frozen=True)
class AssembledFile:
    """A file with `rows` that is not yet committed. `changed` are those whose visible value it changes."""

    target: TargetFile
    written: WrittenSegment
    rows: BitMap
    changed: BitMap


def assemble(work: ColumnJob, task: AssembleTask) -> AssembledFile:
    """Write the file of a target and record it in a data checkpoint."""
    base = task.fragment * work.fragment_rows
    finished = _finished_files(work, task)
    for data in finished:
        if _is_the_file(work, task, data, base):
            errors = row_errors.only(data.errors or row_errors.EMPTY, task.rows, base)
            return AssembledFile(task.target, WrittenSegment(_segment(data), errors), data.done, BitMap())
    fresh = _open_sources(work, task, finished, base)
    old = [FileValues(s, partial(open_segment, work.objects, s, _field(work))) for s in task.target.replaced]
    changed, errors = BitMap(), [row_errors.EMPTY]

    def chunks() -> Iterator[pa.Array]:
        for piece in assemble_ranges(
            task.target.start, task.target.end, work.column.type, old, fresh, task.again, base
        ):
            yield piece.values
            changed.update(_changed(task, piece, base))
            errors.extend(piece.errors)

    segment = write_segment(work.objects, _field(work), task.target.start, chunks(), work.objects.store.staging())
    found = row_errors.merge_errors(errors)
    done, known = _unchanged_rows(work, task, base)
    _note(work, task.fragment, segment, task.rows | done, row_errors.merge_errors([known, found]))
    return AssembledFile(task.target, WrittenSegment(segment, found), task.rows, changed)


def store_segment(work: ColumnJob, fragment: int, start: int, end: int, fresh: OffsetValues) -> WrittenSegment:
    """Write a file directly from computed values, without older values, and record it in a data checkpoint."""
    errors = [row_errors.EMPTY]

    def chunks() -> Iterator[pa.Array]:
        for piece in assemble_ranges(start, end, work.column.type, (), [MemoryValues(fresh)]):
            yield piece.values
            errors.extend(piece.errors)

    segment = write_segment(work.objects, _field(work), start, chunks(), work.objects.store.staging())
    rows = row_sets.from_array(fresh.offsets - fragment * work.fragment_rows)
    found = row_errors.merge_errors(errors)
    _note(work, fragment, segment, rows, found)
    return WrittenSegment(segment, found)


def _note(work: ColumnJob, fragment: int, segment: ColumnSegment, done: BitMap, errors: pa.Table) -> None:
    """Store a data checkpoint: if the run ends before its commit, the next run uses the file.

    It has the errors of all rows that it marks as done: a null without an error is a result.
    """
    base = fragment * work.fragment_rows
    key = data_key(work.prefix.text, fragment, segment.start - base, segment.end - base)
    batch = encode_data_checkpoint(
        file=segment.key(work.objects),
        sources=work.sources,
        field_ids=[work.field_id],
        segment=segment.to_json(),
        done=done,
        errors=errors,
    )
    work.checkpoints.put(key, batch)


def _unchanged_rows(work: ColumnJob, task: AssembleTask, base: int) -> tuple[BitMap, pa.Table]:
    """The unchanged rows of this computation, and their errors. No rows when the errors cannot be read."""
    try:
        return task.done, row_errors.only(row_errors.load(work.objects, task.errors), task.done, base)
    except UnreadableColumn as error:
        _log.warning("%s; only rows that this run computed are recorded as finished", error.message)
        return BitMap(), row_errors.EMPTY


def _segment(data: DataCheckpoint) -> ColumnSegment:
    return ColumnSegment.from_json(data.segment)


def _finished_files(work: ColumnJob, task: AssembleTask) -> list[DataCheckpoint]:
    """The finished files that have rows of the task. Every byte is checked, since their content will be committed."""
    found = []
    for data in find_data(work.checkpoints, work.prefix, task.fragment):
        if data.done & task.rows:
            if has_valid_hash(work.objects, _segment(data)):
                found.append(data)
            elif _segment(data) in task.target.replaced:  # it is committed, and other values of it may be readable
                work.checkpoints.delete(data.key)
            else:
                discard(work.objects, data, "it is missing, changed or damaged")
    return found


def _is_the_file(work: ColumnJob, task: AssembleTask, data: DataCheckpoint, base: int) -> bool:
    """Whether a finished file is what this task would write: a run that ended before its commit left it."""
    return (
        not task.target.replaced
        and not task.again & task.rows
        and data.field_ids == (work.field_id,)
        and (data.start + base, data.end + base) == (task.target.start, task.target.end)
        and data.done & task.live == task.rows  # a row outside the task must not become visible
    )


def _field(work: ColumnJob) -> pa.Field:
    return work.column.with_metadata({FIELD_ID: str(work.field_id).encode()})


def _open_sources(
    work: ColumnJob, task: AssembleTask, finished: Sequence[DataCheckpoint], base: int
) -> list[ValueSource]:
    """The rows of the task from checkpoints and from finished files. A row may be in several of them."""
    start, end = task.target.start - base, task.target.end - base
    store = work.checkpoints
    files = [(data, data.done & task.rows) for data in finished]
    ranges = [
        (c, c.rows & task.rows) for c in find_ranges(store, work.prefix, task.fragment, work.column, (start, end))
    ]
    ranges = [(checkpoint, wanted) for checkpoint, wanted in ranges if wanted]
    everything = [wanted for _, wanted in (*files, *ranges)]
    covered = BitMap.union(*everything, BitMap(), BitMap())
    if lost := task.rows - covered:
        raise lost_rows_error(work.column, lost, base)
    twice = sum(len(wanted) for wanted in everything) > len(covered)  # only then the age of each one matters

    def made(key: str) -> float:
        return read_stored_time(store, key) if twice else 0.0

    return [
        *[FinishedFileValues(work.objects, work.column, data, wanted, base, made(data.key)) for data, wanted in files],
        CheckpointValues(
            [CheckpointReader(store, work.column, c, wanted, base, made(c.key), work.run) for c, wanted in ranges]
        ),
    ]


def _changed(task: AssembleTask, piece: ValueRange, base: int) -> BitMap:
    """The rows of a piece whose visible value changes."""
    rewritten = task.rows & task.visible & row_sets.span(piece.start - base, piece.end - base)
    if not rewritten:
        return rewritten
    rows = row_sets.to_array(rewritten)
    at = pa.array(rows + base - piece.start)
    return row_sets.from_array(rows[diff_values(piece.before.take(at), piece.values.take(at))])


# Pieces


@dataclass(frozen=True)
class ValueRange:
    """The offsets [start, end): their new values and errors, and their values in older files."""

    start: int
    end: int
    values: pa.Array
    errors: tuple[pa.Table, ...]
    old: Sequence[OffsetValues]

    @property
    def before(self) -> pa.Array:
        """The values in older files."""
        return _take_owned(self.start, self.end, self.old, _owners(self.start, self.end, self.old), self.values.type)


def assemble_ranges(
    start: int,
    end: int,
    kind: pa.DataType,
    old: Sequence[ValueSource],
    fresh: Sequence[ValueSource],
    again: BitMap | None = None,
    base: int = 0,
) -> Iterator[ValueRange]:
    """All of [start, end), in order. Fresh values take precedence over old ones.

    If several fresh sources have the same row, a value takes precedence over an error, then a newer source over an
    older one. For rows in `again` (addresses relative to `base`), only the newest source counts.
    """
    low = start
    while low < end:
        high = min(low + ROW_GROUP_ROWS, end)
        for values in (*old, *fresh):
            high = values.reach(low, high)
        before = [part for values in old for part in values.within(low, high)]
        newer = sorted((part for values in fresh for part in values.within(low, high)), key=lambda part: part.made)
        parts = [*before, *newer]
        rows = most_rows_that_fit(high - low, value_sources.PIECE_BYTES, partial(_size_of, parts, low))
        if rows < high - low:
            high = low + rows
            before, newer = ([part.within(low, high) for part in group] for group in (before, newer))
            parts = [*before, *newer]
        owners = _owners(low, high, before)
        _assign_owners(owners, low, newer, len(before), again, base)
        made = _take_owned(low, high, parts, owners, kind)
        yield ValueRange(low, high, made, _errors(owners, low, newer, len(before)), before)
        low = high


def _size_of(parts: Sequence[OffsetValues], low: int, rows: int) -> int:
    return sum(int(part.within(low, low + rows).values.nbytes) for part in parts)


def _owners(low: int, high: int, parts: Sequence[OffsetValues]) -> I64:
    """For each row, the number of the last part that has it, or -1."""
    owners = np.full(high - low, -1, np.int64)
    for number, part in enumerate(parts):
        owners[part.offsets - low] = number
    return owners


def _assign_owners(
    owners: I64, low: int, fresh: Sequence[OffsetValues], first: int, again: BitMap | None, base: int
) -> None:
    """Assign rows to fresh parts, which are ordered from oldest to newest and numbered from `first` on."""
    numbered = list(enumerate(fresh, first))
    failing = [(number, part) for number, part in numbered if part.failed.any()]
    for number, part in failing:
        owners[part.offsets[part.failed] - low] = number
    for number, part in numbered:
        owners[(part.offsets[~part.failed] if part.failed.any() else part.offsets) - low] = number
    if failing and again:
        for number, part in numbered:
            owners[part.only(again, base).offsets - low] = number


def _errors(owners: I64, low: int, fresh: Sequence[OffsetValues], first: int) -> tuple[pa.Table, ...]:
    found = []
    for number, part in enumerate(fresh, first):
        if part.failed.any():
            chosen = part.where(part.failed & (owners[part.offsets - low] == number))
            found.append(row_errors.error_table(chosen.offsets, chosen.errors))
    return tuple(table for table in found if table.num_rows)


def _take_owned(low: int, high: int, parts: Sequence[OffsetValues], owners: I64, kind: pa.DataType) -> pa.Array:
    """The values of [low, high), each from the part that owns it. No other value is copied."""
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


# Compare values

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def diff_values(before: pa.Array, after: pa.Array) -> npt.NDArray[np.bool_]:
    """Where two arrays of one type and length differ. A null equals only a null; all NaNs are equal."""
    one, two = (hash_rows(pa.table({"value": _exact(values)}), ["value"]) for values in (before, after))
    different: npt.NDArray[np.bool_] = ~one.same(two)
    return different


def _exact(values: Any) -> pa.Array:
    """The values with each float as the integer of its bits, since the row hash treats 0.0 and -0.0 as equal."""
    kind = values.type
    if kind in _BITS:
        floats = values.fill_null(0).to_numpy()
        bits = np.where(np.isnan(floats), np.array(np.nan, floats.dtype), floats).view(f"i{floats.dtype.itemsize}")
        return pa.array(bits, _BITS[kind], mask=values.is_null().to_numpy(zero_copy_only=False))
    if not _has_floats(kind):
        return values
    if pa.types.is_struct(kind):
        members = [_exact(values.field(i)) for i in range(kind.num_fields)]
        fields = [pa.field(f.name, m.type) for f, m in zip(kind, members, strict=True)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=values.is_null())
    items = _exact(values.values)
    own = 1 if pa.types.is_fixed_size_list(kind) else 2  # buffers: validity, and the offsets of the lists
    return pa.Array.from_buffers(
        _list_of(kind, items.type), len(values), values.buffers()[:own], offset=values.offset, children=[items]
    )


def _has_floats(kind: Any) -> bool:
    return kind in _BITS or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _list_of(kind: Any, items: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(items, kind.list_size)
    return pa.large_list(items) if pa.types.is_large_list(kind) else pa.list_(items)
