"""Update a timeline: take in new records, arrange them, write files, and swap the root.

Also the removal of purged records from a timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline import arrangement
from floodmark.timeline import root as roots
from floodmark.timeline import settings as timeline_settings
from floodmark.timeline.arrangement import Arrangement, MergeJob
from floodmark.timeline.commit import RootChange, own_files
from floodmark.timeline.intake import Arrival, TimelineIntake, take_next_slices
from floodmark.timeline.manifest import files_with_purged, last_name, list_files_with
from floodmark.timeline.merge import MergeResult, PieceMergeTask, RowGroupShape
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, WaitingRun
from floodmark.timeline.root import LastUpdate
from floodmark.timeline.writer import TimelineWriter, WriterState, log_failures

_BEHIND = "%s was written, but its timeline is behind (%s); the next write or update_timeline() updates it"


def update(writer: TimelineWriter) -> LastUpdate | None:
    """Update a timeline to the ledger's head. Returns None, and writes nothing, if it is up to date."""
    done: list[LastUpdate] = []
    with writer.unless_dropped(), writer.turn() as held:
        held.attempt(lambda state: advance(state, done))
    return _sum_updates(done)


def follow(writer: TimelineWriter) -> None:
    """Update a timeline after a write. Errors are only logged: the write is committed."""
    with log_failures(_BEHIND, writer.name):
        update(writer)


def advance(state: WriterState, done: list[LastUpdate]) -> bool | None:
    """Update to the ledger's head, one swap of the root per portion; None if another writer swapped the root first.

    If a purge stopped before it reached the timeline, it is completed first. Each change is added to `done`.
    """
    following: WriterState | None
    if state.root.purged_before < state.snapshot.purged_before:
        following = drop_purged_pieces(state)
        if following is None:
            return None
        state = following
        done += _last_update(state)
        delete_copies(state)
    while (intake := _take_in(state)) is not None:
        following = state.published(_change(state, intake))
        if following is None:
            return None
        state = following
        done += _last_update(state)
    return True


def _last_update(state: WriterState) -> list[LastUpdate]:
    return [] if state.root.last is None else [state.root.last]


def _take_in(state: WriterState) -> TimelineIntake | None:
    writer = state.writer
    if state.root.applied >= state.snapshot.next_offset:
        return None
    return take_next_slices(
        writer.name,
        state.snapshot,
        state.layout,
        writer.settings,
        state.root.applied,
        state.dead_within,
        writer.runtime,
        state.version,
    )


def _change(state: WriterState, intake: TimelineIntake) -> RootChange:
    """The change for the partitions that new records belong to or remove rows from."""
    unit = state.writer.settings.partition_by
    killed_in = timeline_settings.partition_starts(intake.killed_times, unit)
    starts = sorted({*intake.partitions, *intake.arrivals, *np.unique(killed_in).tolist()})
    there = roots.partitions_at(state.writer.objects, state.root, starts)
    arranged: list[Arrangement] = []
    next_run = state.root.next_run
    for start in starts:
        new = intake.partitions.get(start, [])
        if start not in there and not new:
            continue
        arrival = intake.arrivals.get(start, Arrival())
        partition = _add_arrival(there.get(start, Partition(start)), arrival)
        arranged.append(_arrange(state, partition, new, intake.killed_times[killed_in == start], next_run))
        next_run += len(new)
    done = state.write_partitions(arranged, PieceOrigin.MERGED, next_run)
    kept = tuple(p for p in done.partitions if p.settled)
    last = LastUpdate(
        kind="update",
        rows=intake.rows,
        late_rows=_late_rows(intake, kept, state.version),
        bytes_in=intake.bytes_in,
        bytes_written=intake.bytes_written + done.bytes,
        merged_rows=done.rows,
        partitions=len(done.partitions),
        pieces=sum(len(p.pieces) for p in kept),
    )
    return RootChange(
        applied=intake.end,
        block=intake.block,
        settings_digest=state.writer.settings.digest,
        partitions=kept,
        last=last,
        next_run=done.next_run,
        removed=tuple(p.start for p in done.partitions if not p.settled and p.start in there),
    )


def _add_arrival(partition: Partition, arrival: Arrival) -> Partition:
    return replace(
        partition,
        rows_in=partition.rows_in + arrival.rows,
        bytes_in=partition.bytes_in + arrival.bytes_in,
        bytes_written=partition.bytes_written + arrival.bytes_written,
    )


def _arrange(
    state: WriterState, partition: Partition, new: list[tuple[Piece, ...]], killed: I64, next_run: int
) -> Arrangement:
    places = state.files.places
    if state.writer.settings.late_merge == "always":
        return arrangement.arrange_always(partition, new, killed, state.most, places)
    return arrangement.arrange_auto(partition, new, killed, state.most, next_run, places)


def _late_rows(intake: TimelineIntake, partitions: Sequence[Partition], version: int) -> int:
    """The number of new rows that did not fit between the settled pieces."""
    new = sum(p.rows for each in intake.partitions.values() for pieces in each for p in pieces)
    unmerged = (PieceOrigin.SLICE, PieceOrigin.SORTED)
    settled = sum(p.rows for each in partitions for p in each.settled if p.since == version and p.how in unmerged)
    return new - settled


def _sum_updates(done: Sequence[LastUpdate]) -> LastUpdate | None:
    """The sum of several changes; None if there are none."""
    if not done:
        return None
    return replace(
        done[-1],
        rows=sum(each.rows for each in done),
        late_rows=sum(each.late_rows for each in done),
        bytes_in=sum(each.bytes_in for each in done),
        bytes_written=sum(each.bytes_written for each in done),
        merged_rows=sum(each.merged_rows for each in done),
    )


# Purges

_TASK_ROW_GROUPS = 16
"""The most row groups of neighbouring pieces that are rewritten as one file."""

_COPIES_LEFT = "the timeline of %s may have copies of purged records (%s); purge again to remove them"


def drop_purged(writer: TimelineWriter) -> None:
    """Remove all copies of purged records from the timeline.

    The ledger no longer has these records, so errors of the store are only logged. `verify` reports the remaining
    copies. The next purge, fold or garbage collection removes them; an update only if the root does not have the purge
    yet.
    """
    with log_failures(_COPIES_LEFT, writer.name), writer.unless_dropped(), writer.turn() as held:
        delete_copies(held.attempt(drop_purged_pieces))


def drop_purged_pieces(state: WriterState) -> WriterState | None:
    """The next state, from a root that names no file with purged records; None if another writer was first.

    Changes that began from the old root fail their swap and start again.
    """
    change = _purge_change(state)
    return state if change is None else state.published(change)


def _purge_change(state: WriterState) -> RootChange | None:
    """The change that removes purged records from the root; None if there are none."""
    before, root = state.snapshot.purged_before, state.root
    partitions = roots.partitions(state.objects, root)
    own = own_files(partitions)
    doomed = frozenset(files_with_purged(state.objects, sorted(own), before))
    most = _TASK_ROW_GROUPS * state.most
    plans = [plan for p in partitions if (plan := _plan(p, doomed, before, most)) is not None]
    if not plans and root.purged_before >= before:
        return None
    merges = [_task(state, sources) for plan in plans for sources in plan.rewritten]
    results = iter(state.merged(merges))
    changed = [_apply(plan, [next(results) for _ in plan.rewritten]) for plan in plans]
    kept = tuple(p for p in changed if p.settled)
    last = LastUpdate(
        kind="purge",
        bytes_written=sum(c.bytes_written - p.partition.bytes_written for c, p in zip(changed, plans, strict=True)),
        merged_rows=sum(p.rows for c in changed for p in c.pieces if p.since == state.version),
        partitions=len(changed),
        pieces=sum(len(c.pieces) for c in changed),
    )
    return RootChange(
        applied=root.applied,
        block=root.block,
        settings_digest=state.writer.settings.digest,
        partitions=kept,
        last=last,
        next_run=root.next_run,
        removed=tuple(p.start for p in changed if not p.settled),
        purged_before=before,
    )


def _task(state: WriterState, pieces: tuple[Piece, ...]) -> PieceMergeTask:
    return state.task(
        MergeJob(pieces), min(PieceOrigin.FOLDED, max(p.how for p in pieces)), RowGroupShape.SPLIT, state.most
    )


_Parts = tuple[tuple[Piece, ...] | Piece, ...]
"""Pieces in order. A piece alone stays; a tuple of pieces is rewritten as one file."""


@dataclass(frozen=True)
class _Plan:
    """The planned state of a partition without purged records."""

    partition: Partition
    settled: _Parts
    waiting: tuple[tuple[WaitingRun, _Parts], ...]

    @property
    def rewritten(self) -> list[tuple[Piece, ...]]:
        parts = (*self.settled, *(part for _, run in self.waiting for part in run))
        return [part for part in parts if isinstance(part, tuple)]


def _plan(partition: Partition, doomed: frozenset[str], before: int, most: int) -> _Plan | None:
    """The plan for a partition; None if it needs no change."""
    if not any(p.file in doomed or p.offset_min < before for p in partition.pieces):
        return None
    settled = _parts(partition.settled, doomed, before, most)
    waiting = [(run, _parts(run.pieces, doomed, before, most)) for run in partition.waiting]
    return _Plan(partition, settled, tuple(waiting))


def _parts(pieces: Iterable[Piece], doomed: frozenset[str], before: int, most: int) -> _Parts:
    """The pieces without completely purged ones. Neighbours whose files also have other records are joined."""
    left = [p for p in pieces if p.offset_max >= before]
    parts: list[tuple[Piece, ...] | Piece] = []
    for is_doomed, group in groupby(left, lambda p: p.file in doomed):
        some = list(group)
        parts += _portions(some, most) if is_doomed else some
    return tuple(parts)


def _portions(pieces: Iterable[Piece], most: int) -> Iterator[tuple[Piece, ...]]:
    """Groups of neighbouring pieces with at most `most` rows together."""
    some: list[Piece] = []
    for piece in pieces:
        if some and sum(p.rows for p in some) + piece.rows > most:
            yield tuple(some)
            some = []
        some.append(piece)
    yield tuple(some)


def _apply(plan: _Plan, results: Sequence[MergeResult]) -> Partition:
    """The partition with the rewritten pieces in place of their sources."""
    merged = iter(results)
    settled = _with_results(plan.settled, merged)
    runs = tuple(replace(run, pieces=_with_results(parts, merged)) for run, parts in plan.waiting)
    waiting = tuple(run for run in runs if run.pieces)
    if not settled and waiting:  # runs need a settled piece below them: the largest run becomes settled
        largest = max(waiting, key=lambda run: run.rows)
        settled, waiting = largest.pieces, tuple(run for run in waiting if run is not largest)
    written = plan.partition.bytes_written + sum(m.bytes for m in results)
    return replace(plan.partition, settled=settled, waiting=waiting, bytes_written=written)


def _with_results(parts: _Parts, merged: Iterable[MergeResult]) -> tuple[Piece, ...]:
    results = iter(merged)
    found: list[Piece] = []
    for part in parts:
        if isinstance(part, Piece):
            found.append(part)
            continue
        found += next(results).pieces
    return tuple(found)


_ERASED_LEFT = "the timeline of %s may have copies of erased records (%s); erase the key again to remove them"


def drop_erased(writer: TimelineWriter) -> None:
    """Build a timeline that has erased records again, and delete all files that have them."""
    with log_failures(_ERASED_LEFT, writer.name), writer.unless_dropped(), writer.turn() as held:

        def rebuild(state: WriterState) -> bool | None:
            if not any(True for _ in state.objects.files()) and not state.root.applied:
                return True  # it was never built
            if advance(state, []) is None:
                return None
            return True

        held.attempt(rebuild)
        held.attempt(_delete_erased)


def _delete_erased(state: WriterState) -> bool:
    objects = state.objects
    named = own_files(roots.partitions(objects, state.root))
    for file in list_files_with(objects, state.snapshot.erased):
        if file not in named:
            objects.store.delete(objects.key(file))
            objects.store.delete(objects.replaced_key(last_name(file)))
    return True


def delete_copies(state: WriterState) -> None:
    """Delete the files with purged records that the root does not name, without a grace period."""
    objects = state.objects
    named = own_files(roots.partitions(objects, state.root))
    loose = [file for info in objects.files() if (file := objects.file(info.key)) not in named]
    for file in files_with_purged(objects, loose, state.snapshot.purged_before):
        objects.store.delete(objects.key(file))
        objects.store.delete(objects.replaced_key(last_name(file)))
