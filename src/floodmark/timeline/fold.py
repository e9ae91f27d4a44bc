"""Fold a timeline: afterwards no row waits, no row is dead, and at most one row group of a partition is small.

Other writers may change the timeline while a fold writes files; only the swap of the root takes the turn. Current
readers continue with the old files, which stay for a grace period.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from floodmark.errors import BadManifest, BadRange, StorageError
from floodmark.rows.fold import FoldReport
from floodmark.storage import sweep
from floodmark.timeline import arrangement, garbage
from floodmark.timeline import root as roots
from floodmark.timeline import settings as timeline_settings
from floodmark.timeline.arrangement import Arrangement
from floodmark.timeline.commit import RootChange, own_files
from floodmark.timeline.intake import STEP_ROWS
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin, live_mask
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.update import advance
from floodmark.timeline.verify import damaged_files
from floodmark.timeline.writer import RootCache, TimelineWriter, WriterState, WrittenPartitions

EMPTY_REPORT = FoldReport(read=0, files=0, rows=0, bytes=0, dead=0)

_log = logging.getLogger(__name__)


def fold(writer: TimelineWriter, partition: str | None = None) -> FoldReport:
    """Update a timeline and fold all of it, or one partition by its label; then remove files that no root needs.

    The own files of these partitions are first checked against their hashes. If one is damaged, the timeline is rebuilt
    from the ledger. An unknown partition raises `BadRange`, unless the timeline is empty.
    """
    requested = (
        None if partition is None else timeline_settings.parse_partition(partition, writer.settings.partition_by)
    )
    writer = replace(writer, kept=RootCache())  # read the manifests again: one may be damaged
    folding = _FoldState(requested)
    with writer.unless_dropped():
        damaged = _find_damaged(writer, requested)
        with writer.turn() as held:
            held.attempt(lambda state: _update_or_rebuild(state, damaged))
        writer.attempt(folding.first_round)
        with writer.turn() as held:  # no other writer can swap the root first
            held.attempt(folding.next_round)
        _sweep(writer)
    return folding.done


def add_reports(one: FoldReport, other: FoldReport) -> FoldReport:
    """The sum of two fold reports."""
    return FoldReport(*(getattr(one, f.name) + getattr(other, f.name) for f in fields(FoldReport)))


def _find_damaged(writer: TimelineWriter, requested: int | None) -> Mapping[str, str]:
    """The damaged own files. An unreadable manifest is ignored here: it raises again when it is needed."""
    root = roots.load(writer.objects)
    try:
        return damaged_files(writer.objects, _partitions(writer, root, requested))
    except BadManifest:
        return {}


def _partitions(writer: TimelineWriter, root: Root, requested: int | None) -> list[Partition]:
    if requested is None:
        return roots.partitions(writer.objects, root)
    return list(roots.partitions_at(writer.objects, root, [requested]).values())


def _update_or_rebuild(state: WriterState, damaged: Mapping[str, str]) -> bool | None:
    """Update the timeline to the ledger's head; rebuild it if it names a damaged file."""
    named = own_files(roots.partitions(state.objects, state.root)) if damaged else set()
    for file in sorted(damaged.keys() & named):
        _log.warning("%s %s; rebuilding the timeline of %s", file, damaged[file], state.writer.name)
        state = replace(state, root=state.root.emptied())
    return advance(state, [])


def _rebuild_if_abandoned(state: WriterState) -> bool:
    """Rebuild the timeline if the root of this round is unusable; returns whether it did."""
    done: list[LastUpdate] = []
    if state.root.abandoned:
        with state.writer.turn() as held:
            held.attempt(lambda now: advance(replace(now, root=now.root.emptied()), done))
    return bool(done)


@dataclass(frozen=True)
class _PlannedFold:
    """A partition before a fold, and its planned state."""

    before: Partition
    arranged: Arrangement

    @property
    def rows(self) -> int:
        return sum(work.rows for work in self.arranged.jobs)


@dataclass
class _FoldState:
    """A fold in progress: what it has done, and which partitions it must check again."""

    requested: int | None
    done: FoldReport = EMPTY_REPORT
    again: list[int] = field(default_factory=list)

    def first_round(self, state: WriterState) -> bool | None:
        """Fold every partition that needs it. The next round handles what other writers change meanwhile."""
        if _rebuild_if_abandoned(state):
            return None
        there = _partitions(state.writer, state.root, self.requested)
        if self.requested is not None and not there:
            _refuse_unknown(state, self.requested)
        self._fold(state, there)
        return True

    def next_round(self, state: WriterState) -> bool | None:
        """Check folded partitions again: other writers may have changed them, or dead rows left small pieces."""
        if _rebuild_if_abandoned(state):
            return None
        there = roots.partitions_at(state.objects, state.root, self.again)
        self._fold(state, list(there.values()))
        return None if self.again else True

    def _fold(self, state: WriterState, partitions: Sequence[Partition]) -> None:
        self.again = []
        for some in _portions(state, partitions):
            carried_out = state.write_partitions(
                [each.arranged for each in some], PieceOrigin.FOLDED, state.root.next_run
            )
            with state.writer.turn() as held:
                held.attempt(lambda now: _replace_partitions(now, state, some, carried_out))  # noqa: B023  called at once
            self.done = add_reports(self.done, _report(carried_out))
            self.again += [each.before.start for each in some]


def _refuse_unknown(state: WriterState, requested: int) -> None:
    """Raise `BadRange` with the nearest partitions. An empty timeline has nothing to fold, so it raises nothing."""
    starts = [p.start for p in roots.partitions(state.objects, state.root)]
    if not starts:
        return
    unit, at = state.writer.settings.partition_by, bisect_left(starts, requested)
    label = timeline_settings.partition_label(requested, unit)
    near = tuple(timeline_settings.partition_label(start, unit) for start in starts[max(0, at - 1) : at + 1])
    raise BadRange(
        f"the timeline of {state.writer.name!r} has no partition {label}",
        hint=f"give an existing partition; the nearest: {' and '.join(near)}",
        partition=label,
        near=near,
    )


def _portions(state: WriterState, partitions: Sequence[Partition]) -> Iterator[list[_PlannedFold]]:
    """The partitions that need a fold, in portions: after an error, only the current portion is lost."""
    some: list[_PlannedFold] = []
    rows = 0
    for partition in partitions:
        counted = _with_exact_dead(state, partition)
        arranged = arrangement.arrange_fold(counted, state.most, state.files.places)
        if arranged is not None:
            some.append(_PlannedFold(partition, arranged))
        elif counted != partition:  # only the counts changed
            some.append(_PlannedFold(partition, Arrangement(counted, counted.settled, counted.waiting, state.most)))
        else:
            continue
        rows += some[-1].rows
        if rows >= STEP_ROWS:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _with_exact_dead(state: WriterState, partition: Partition) -> Partition:
    """The partition with exact counts of dead rows: updates estimate them from event times."""
    return replace(partition, settled=tuple(replace(p, dead=_dead_rows(state, p)) for p in partition.settled))


def _dead_rows(state: WriterState, piece: Piece) -> int:
    purged = state.snapshot.purged_before
    low, high = np.searchsorted(state.dead, [piece.offset_min, piece.offset_max + 1]).tolist()
    if low == high and piece.offset_min >= purged:
        return 0
    live = live_mask(state.files.places(piece)[1], state.dead[low:high], purged)
    return 0 if live is None else int(len(live) - np.count_nonzero(live))


def _replace_partitions(
    now: WriterState, then: WriterState, some: Sequence[_PlannedFold], done: WrittenPartitions
) -> bool | None:
    """Replace partitions by their folded versions; None if another writer swapped the root first.

    A partition that another writer changed meanwhile stays unchanged, unless the change only added runs or dead rows.
    """
    there = roots.partitions_at(now.objects, now.root, [each.before.start for each in some])
    found = [
        _rebase(each.before, partition, there.get(each.before.start))
        for each, partition in zip(some, done.partitions, strict=True)
    ]
    changed = [_with_version(partition, then.version, now.version) for partition in found if partition is not None]
    if not changed:
        return True
    kept = tuple(p for p in changed if p.settled)
    last = LastUpdate(
        kind="fold",
        bytes_written=done.bytes,
        merged_rows=done.rows,
        partitions=len(changed),
        pieces=sum(len(p.pieces) for p in kept),
    )
    change = RootChange(
        applied=now.root.applied,
        block=now.root.block,
        settings_digest=now.root.settings_digest,
        partitions=kept,
        last=last,
        next_run=now.root.next_run,
        removed=tuple(p.start for p in changed if not p.settled),
    )
    return None if now.published(change) is None else True


def _rebase(before: Partition, folded: Partition, now: Partition | None) -> Partition | None:
    """The folded partition with the runs and deaths since the fold began; None if its old pieces were replaced."""
    if now is None:
        return None
    old, new = set(before.waiting), [run for run in now.waiting if run not in before.waiting]
    if _without_dead_counts(now.settled) != _without_dead_counts(before.settled) or not old <= set(now.waiting):
        return None
    if new and not folded.settled:  # runs need a settled piece below them
        return None
    died = [max(0, one.dead - other.dead) for one, other in zip(now.settled, before.settled, strict=True)]
    killed = np.repeat(np.array([p.first.time for p in now.settled], np.int64), died)
    written = now.bytes_written + folded.bytes_written - before.bytes_written
    merged = replace(now, settled=folded.settled, waiting=(*folded.waiting, *new), bytes_written=written)
    return arrangement.with_dead(merged, killed)


def _without_dead_counts(pieces: Sequence[Piece]) -> list[Piece]:
    return [replace(p, dead=0) for p in pieces]


def _with_version(partition: Partition, then: int, now: int) -> Partition:
    """The partition, with the version of the root that will name its folded pieces."""
    settled = (
        replace(p, since=now) if p.how in (PieceOrigin.FOLDED, PieceOrigin.SHARED) and p.since == then else p
        for p in partition.settled
    )
    return replace(partition, settled=tuple(settled))


def _report(done: WrittenPartitions) -> FoldReport:
    return FoldReport(
        read=len({piece.file for task in done.tasks for piece in task.sources}),
        files=done.files,
        rows=done.rows,
        bytes=done.bytes,
        dead=sum(m.dropped for m in done.merged),
    )


def _sweep(writer: TimelineWriter) -> None:
    """Remove files that have had no reference for the grace period. If the store fails, the next fold tries again."""
    objects, now = writer.objects, writer.runtime.clock()
    try:
        sweep.remove(garbage.find(objects, now, purged_before=writer.snapshot().purged_before))
    except StorageError as error:
        _log.warning("old files of the timeline of %s were not removed (%s); the next fold retries", writer.name, error)
