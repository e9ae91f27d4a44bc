"""Assemble: checkpoints in any order become one file whose rows lie where their offsets say.

Overlaps are trimmed, dead and filtered rows are null, older values stay where nothing newer was computed, and a gap is
refused: what should be in a checkpoint and is not must never turn into a null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses, row_errors
from floodmark.compute.batches import Source
from floodmark.compute.catalog import FIELD_ID
from floodmark.compute.column_file import looks_whole, raw_values, read_values, write_segment
from floodmark.compute.errors import CheckpointCoverageError
from floodmark.compute.found import DataCheckpoint, data_batch, find_data, find_ranges
from floodmark.compute.keys import data_key
from floodmark.compute.manifest import Segment
from floodmark.compute.plan import Target
from floodmark.compute.work import Work, Written
from floodmark.ledger.keys.hashing import hash_rows
from floodmark.storage.slices import ROW_GROUP_ROWS


class Values(Protocol):
    """Values of some offsets that can be read piece by piece."""

    def within(self, start: int, end: int) -> Source:
        """Those with offsets in [start, end), in order."""
        ...


@dataclass(frozen=True)
class AssembleTask:
    """One file to write: the `rows` (addresses) are taken from checkpoints, all others from the segments replaced."""

    fragment: int
    target: Target
    rows: BitMap
    done: BitMap  # of the rows that stay as they are, those that belong to this computation
    live: BitMap  # the rows of the file that anybody can read
    visible: BitMap  # the rows that had a value readers saw


@dataclass(frozen=True)
class Assembled:
    """A file that holds `rows` and is not yet committed, and those of them whose value readers will see change."""

    target: Target
    written: Written
    rows: BitMap
    changed: BitMap


def assemble(work: Work, task: AssembleTask) -> Assembled:
    """Write the file of a target and note it in a data checkpoint."""
    base = task.fragment * work.fragment_rows
    finished = [d for d in find_data(work.objects.checkpoints, work.prefix, task.fragment) if _is_usable(work, d)]
    for data in finished:
        if _is_the_file(work, task, data, base):
            return Assembled(task.target, Written(_segment(data), data.errors or row_errors.EMPTY), task.rows, BitMap())
    fresh = _fresh(work, task, finished, base)
    old = [_Stored(work, segment) for segment in task.target.replaced]
    sources: list[Values] = [*old, *_in_order(fresh)]
    changed = BitMap()

    def chunks() -> Iterator[pa.Array]:
        for start, values in _pieces(task.target.start, task.target.end, sources, work.column.type):
            yield values
            rewritten = task.rows & task.visible & addresses.span(start - base, start - base + len(values))
            if rewritten:
                changed.update(_differing(work, old, start, values, rewritten, base))

    errors = _errors(fresh)
    segment = _write(work, task.fragment, task.target.start, chunks(), task.rows | task.done, errors)
    return Assembled(task.target, Written(segment, errors), task.rows, changed)


def store_segment(work: Work, fragment: int, start: int, end: int, fresh: Source) -> Written:
    """Write a file that needs no older values, straight from what was computed, and note it in a data checkpoint."""
    values = (values for _, values in _pieces(start, end, [fresh], work.column.type))
    rows = addresses.from_array(fresh.offsets - fragment * work.fragment_rows)
    errors = _errors([fresh])
    return Written(_write(work, fragment, start, values, rows, errors), errors)


def _write(
    work: Work, fragment: int, start: int, values: Iterator[pa.Array], done: BitMap, errors: pa.Table
) -> Segment:
    """A new file, and a data checkpoint, so that a run that ends before the commit need not write it again."""
    segment = write_segment(work.objects, _field(work), start, values, work.objects.store.staging())
    base = fragment * work.fragment_rows
    key = data_key(work.prefix.text, fragment, segment.start - base, segment.end - base)
    batch = data_batch(
        file=segment.key(work.objects),
        sources=work.sources,
        field_ids=[work.field_id],
        segment=segment.to_json(),
        done=done,
        errors=errors,
    )
    work.objects.checkpoints.put(key, batch)
    return segment


def _segment(data: DataCheckpoint) -> Segment:
    return Segment.from_json(data.segment)


def _is_usable(work: Work, data: DataCheckpoint) -> bool:
    return looks_whole(work.objects, _segment(data))


def _is_the_file(work: Work, task: AssembleTask, data: DataCheckpoint, base: int) -> bool:
    """Whether a finished file is what this task would write: a run that was killed before its commit left it."""
    return (
        not task.target.replaced
        and data.field_ids == (work.field_id,)
        and (data.start + base, data.end + base) == (task.target.start, task.target.end)
        and data.done & task.live == task.rows  # a row that was not asked for must not become visible
    )


def _field(work: Work) -> pa.Field:
    return work.column.with_metadata({FIELD_ID: str(work.field_id).encode()})


def _fresh(work: Work, task: AssembleTask, finished: Sequence[DataCheckpoint], base: int) -> list[Source]:
    """The rows of the task from checkpoints and from finished files, some of them possibly more than once."""
    start, end = task.target.start - base, task.target.end - base
    store = work.objects.checkpoints
    found, covered = [], BitMap()
    for checkpoint in find_ranges(store, work.prefix, task.fragment, work.column, (start, end)):
        if wanted := checkpoint.rows & task.rows:
            found.append(Source.of(store.get(checkpoint.key), base).only(wanted, base))
            covered |= wanted
    for data in finished:
        if wanted := data.done & task.rows:
            found.append(_of_file(work, data, wanted, base))
            covered |= wanted
    if lost := task.rows - covered:
        raise CheckpointCoverageError(
            f"{len(lost)} rows of column {work.column.name!r} between records {lost.min() + base} and "
            f"{lost.max() + base} are in no checkpoint",
            hint="run the backfill again: it computes what is missing",
            column=work.column.name,
        )
    return found


def _of_file(work: Work, data: DataCheckpoint, wanted: BitMap, base: int) -> Source:
    segment = _segment(data)
    values = raw_values(work.objects, segment, work.column, segment.start, segment.end)
    offsets = np.arange(segment.start, segment.end)
    return Source(offsets, values, data.error_column(offsets)).only(wanted, base)


def _in_order(fresh: Sequence[Source]) -> list[Values]:
    """Rows that were skipped first: a value found elsewhere, by a later try, wins over them."""
    failed = [s.where(s.failed) for s in fresh if s.failed.any()]
    return [*failed, *[s.where(~s.failed) if s.failed.any() else s for s in fresh]]


def _errors(fresh: Sequence[Source]) -> pa.Table:
    """The rows that were skipped in every source that has them."""
    if not any(s.failed.any() for s in fresh):
        return row_errors.EMPTY
    fine = np.concatenate([s.offsets[~s.failed] for s in fresh])
    tables = []
    for source in fresh:
        kept = source.failed & ~np.isin(source.offsets, fine)
        if kept.any():
            chosen = source.where(kept)
            tables.append(row_errors.table(chosen.offsets, chosen.errors))
    return row_errors.merged(tables)


@dataclass(frozen=True)
class _Stored:
    """The values of a committed segment, read as far as they are asked for."""

    work: Work
    segment: Segment

    def within(self, start: int, end: int) -> Source:
        low, high = max(start, self.segment.start), min(end, self.segment.end)
        if low >= high:
            return Source(np.empty(0, np.int64), pa.array([], self.work.column.type))
        values = read_values(self.work.objects, self.segment, _field(self.work), low, high)
        return Source(np.arange(low, high), values)


def _pieces(start: int, end: int, sources: Sequence[Values], kind: pa.DataType) -> Iterator[tuple[int, pa.Array]]:
    """The values of all offsets in [start, end), a row group at a time; later sources win, what nobody has is null."""
    for low in range(start, end, ROW_GROUP_ROWS):
        high = min(low + ROW_GROUP_ROWS, end)
        parts = [part for source in sources if len((part := source.within(low, high)).offsets)]
        if not parts:
            yield low, pa.nulls(high - low, kind)
            continue
        pool = pa.concat_arrays([chunk for part in parts for chunk in _chunks(part.values)])
        places = np.full(high - low, -1, np.int64)
        first = 0
        for part in parts:
            places[part.offsets - low] = np.arange(first, first + len(part.offsets))
            first += len(part.offsets)
        in_place = len(pool) == high - low and bool((places == np.arange(high - low)).all())
        yield low, pool if in_place else pool.take(pa.array(places, mask=places < 0))


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def _differing(work: Work, old: Sequence[Values], start: int, values: pa.Array, rows: BitMap, base: int) -> BitMap:
    """Which of these addresses have another value now than before."""
    [(_, before)] = _pieces(start, start + len(values), old, work.column.type)
    at = pa.array(addresses.to_array(rows) + base - start)
    one, two = (pa.table({"value": v.take(at)}) for v in (before, values))
    same = hash_rows(one, ["value"]).same(hash_rows(two, ["value"]))
    return addresses.from_array(addresses.to_array(rows)[~same])
