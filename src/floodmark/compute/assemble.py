"""Assemble: checkpoints in any order become one file whose rows lie where their offsets say.

Overlaps are trimmed, dead and filtered rows are null, older values stay where nothing newer was computed, and a gap is
refused: what should be in a checkpoint and is not must never turn into a null.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyroaring import BitMap

from floodmark.compute import addresses
from floodmark.compute.checkpoints.batches import Source
from floodmark.compute.checkpoints.found import DataCheckpoint, data_batch, find_data, find_ranges
from floodmark.compute.checkpoints.keys import data_key
from floodmark.compute.differing import differing
from floodmark.compute.errors import BadRowErrors
from floodmark.compute.pieces import Piece, pieces
from floodmark.compute.plan import Target
from floodmark.compute.sources import (
    Checkpoint,
    Checkpoints,
    FileValues,
    FinishedFile,
    Given,
    Values,
    discard,
    lost_rows,
    made_at,
)
from floodmark.compute.stored import row_errors
from floodmark.compute.stored.catalog import FIELD_ID
from floodmark.compute.stored.column_file import is_whole, open_segment, write_segment
from floodmark.compute.stored.manifest import Segment
from floodmark.compute.work import Work, Written

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AssembleTask:
    """One file to write: the `rows` (addresses) are taken from checkpoints, all others from the segments replaced."""

    fragment: int
    target: Target
    rows: BitMap
    done: BitMap  # of the rows that stay as they are, those that belong to this computation
    live: BitMap  # the rows of the file that anybody can read
    visible: BitMap  # the rows that had a value readers saw
    errors: str | None = None  # where the errors of the fragment are, as of before
    again: BitMap = field(default_factory=BitMap)  # rows that had failed: only the newest that is stored of them counts

    def __str__(self) -> str:
        return f"to put together the values of records {self.target.start} to {self.target.end - 1}"


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
    finished = _finished(work, task)
    for data in finished:
        if _is_the_file(work, task, data, base):
            errors = row_errors.only(data.errors or row_errors.EMPTY, task.rows, base)
            return Assembled(task.target, Written(_segment(data), errors), data.done, BitMap())
    fresh = _fresh(work, task, finished, base)
    old = [FileValues(s, partial(open_segment, work.objects, s, _field(work))) for s in task.target.replaced]
    changed, errors = BitMap(), [row_errors.EMPTY]

    def chunks() -> Iterator[pa.Array]:
        for piece in pieces(task.target.start, task.target.end, work.column.type, old, fresh, task.again, base):
            yield piece.values
            changed.update(_changed(task, piece, base))
            errors.extend(piece.errors)

    segment = write_segment(work.objects, _field(work), task.target.start, chunks(), work.objects.store.staging())
    found = row_errors.merged(errors)
    done, known = _stays(work, task, base)
    _note(work, task.fragment, segment, task.rows | done, row_errors.merged([known, found]))
    return Assembled(task.target, Written(segment, found), task.rows, changed)


def store_segment(work: Work, fragment: int, start: int, end: int, fresh: Source) -> Written:
    """Write a file that needs no older values, straight from what was computed, and note it in a data checkpoint."""
    errors = [row_errors.EMPTY]

    def chunks() -> Iterator[pa.Array]:
        for piece in pieces(start, end, work.column.type, (), [Given(fresh)]):
            yield piece.values
            errors.extend(piece.errors)

    segment = write_segment(work.objects, _field(work), start, chunks(), work.objects.store.staging())
    rows = addresses.from_array(fresh.offsets - fragment * work.fragment_rows)
    found = row_errors.merged(errors)
    _note(work, fragment, segment, rows, found)
    return Written(segment, found)


def _note(work: Work, fragment: int, segment: Segment, done: BitMap, errors: pa.Table) -> None:
    """Put a data checkpoint, so that a run that ends before the commit need not write the file again.

    It has the errors of all rows that it calls done: a null without one is a result.
    """
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


def _stays(work: Work, task: AssembleTask, base: int) -> tuple[BitMap, pa.Table]:
    """The rows of this computation that stay as they are, and their errors; no rows when nobody knows those."""
    try:
        return task.done, row_errors.only(row_errors.load(work.objects, task.errors), task.done, base)
    except BadRowErrors as error:
        _log.warning("%s; only rows that were computed now are noted as finished", error.message)
        return BitMap(), row_errors.EMPTY


def _segment(data: DataCheckpoint) -> Segment:
    return Segment.from_json(data.segment)


def _finished(work: Work, task: AssembleTask) -> list[DataCheckpoint]:
    """The finished files that have rows of the task. Every byte is read: what they hold is about to be committed."""
    found = []
    for data in find_data(work.objects.checkpoints, work.prefix, task.fragment):
        if data.done & task.rows:
            if is_whole(work.objects, _segment(data)):
                found.append(data)
            elif _segment(data) in task.target.replaced:  # a committed file may have other values that can be read
                work.objects.checkpoints.delete(data.key)
            else:
                discard(work.objects, data, "it is gone, or was changed or damaged")
    return found


def _is_the_file(work: Work, task: AssembleTask, data: DataCheckpoint, base: int) -> bool:
    """Whether a finished file is what this task would write: a run that was killed before its commit left it."""
    return (
        not task.target.replaced
        and not task.again & task.rows
        and data.field_ids == (work.field_id,)
        and (data.start + base, data.end + base) == (task.target.start, task.target.end)
        and data.done & task.live == task.rows  # a row that was not asked for must not become visible
    )


def _field(work: Work) -> pa.Field:
    return work.column.with_metadata({FIELD_ID: str(work.field_id).encode()})


def _fresh(work: Work, task: AssembleTask, finished: Sequence[DataCheckpoint], base: int) -> list[Values]:
    """The rows of the task from checkpoints and from finished files, some of them possibly more than once."""
    start, end = task.target.start - base, task.target.end - base
    store = work.objects.checkpoints
    files = [(data, data.done & task.rows) for data in finished]
    ranges = [
        (c, c.rows & task.rows) for c in find_ranges(store, work.prefix, task.fragment, work.column, (start, end))
    ]
    ranges = [(checkpoint, wanted) for checkpoint, wanted in ranges if wanted]
    everything = [wanted for _, wanted in (*files, *ranges)]
    covered = BitMap.union(*everything, BitMap(), BitMap())
    if lost := task.rows - covered:
        raise lost_rows(work.column, lost, base)
    twice = sum(len(wanted) for wanted in everything) > len(covered)  # only then it matters which is newer

    def made(key: str) -> float:
        return made_at(store, key) if twice else 0.0

    return [
        *[FinishedFile(work.objects, work.column, data, wanted, base, made(data.key)) for data, wanted in files],
        Checkpoints([Checkpoint(store, work.column, c, wanted, base, made(c.key), work.run) for c, wanted in ranges]),
    ]


def _changed(task: AssembleTask, piece: Piece, base: int) -> BitMap:
    """Which rows of a piece have another value now than readers saw before."""
    rewritten = task.rows & task.visible & addresses.span(piece.start - base, piece.end - base)
    if not rewritten:
        return rewritten
    rows = addresses.to_array(rewritten)
    at = pa.array(rows + base - piece.start)
    return addresses.from_array(rows[differing(piece.before.take(at), piece.values.take(at))])
