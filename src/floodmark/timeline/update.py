"""Bringing a timeline up to date: new records are taken in and arranged, files are written, and the root moves.

Nothing is changed before the root is swapped, so an update that crashed or lost a race has not happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.keys.records import I64
from floodmark.ledger.layout import Layout
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.timeline import arrange
from floodmark.timeline import partitions as units
from floodmark.timeline import root as roots
from floodmark.timeline.arrange import Arranged, NextRun, Work
from floodmark.timeline.errors import BadManifest, PurgedMeanwhile, UnreadablePiece
from floodmark.timeline.intake import Arrival, Intake, incoming
from floodmark.timeline.merge import Merged, MergeTask, Shape, Source, dead_among, run_tasks
from floodmark.timeline.objects import TimelineObjects
from floodmark.timeline.pieces import How, Partition, Piece
from floodmark.timeline.publish import Change, publish
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.settings import Settings
from floodmark.timeline.sources import PieceFiles

MAX_RACES = 50
"""So often somebody else may be first before an update gives up."""

_log = logging.getLogger(__name__)


@dataclass
class KeptRoot:
    """The root of the last update with its manifests, which need not be read again while nobody else changes it."""

    root: Root | None = None

    def load(self, objects: TimelineObjects) -> Root:
        """The root as it is stored now."""
        found = roots.load(objects)
        if self.root is None or found.stored != self.root.stored:
            self.root = found
        return self.root


@dataclass(frozen=True)
class Updating:
    """A timeline to be changed: where it is, and how the ledger is looked at, which happens after the root was read."""

    name: str
    objects: TimelineObjects
    settings: Settings
    runtime: Runtime
    snapshot: Callable[[], Snapshot]
    dead: Callable[[Snapshot], I64]  # the offsets that are dead as of a snapshot, sorted
    kept: KeptRoot = field(default_factory=KeptRoot, compare=False)  # who updates often keeps it


@dataclass(frozen=True)
class Step:
    """One change of the root that is being made: what it begins with, and what the ledger says meanwhile."""

    updating: Updating
    root: Root
    snapshot: Snapshot
    dead: I64
    files: PieceFiles

    @property
    def most(self) -> int:
        return self.updating.settings.row_group_size

    @property
    def layout(self) -> Layout:
        return self.files.layout

    @property
    def version(self) -> int:
        return self.root.version + 1

    def task(self, work: Work, how: How, shape: Shape, most: int) -> MergeTask:
        return MergeTask(
            objects=self.updating.objects,
            layout=self.layout,
            sources=tuple(map(Source, work.sources)),
            most=most,
            how=how,
            since=self.version,
            shape=shape,
            dead=dead_among(self.dead, work.sources),
            purged_before=self.snapshot.purged_before,
        )

    def carry_out(self, arranged: Sequence[Arranged], how: How, next_run: int) -> CarriedOut:
        """Write what is to be written for some partitions, all of it in one go, and put it where it belongs."""
        tasks = [task for each in arranged for task in self._tasks(each, how)]
        results = iter(run_tasks(self.updating.name, tasks, self.updating.runtime))
        partitions: list[Partition] = []
        merged: list[Merged] = []
        for each in arranged:
            written = [next(results) for _ in each.works]
            merged += written
            done = each.finished([m.pieces for m in written], next_run, self.files.places)
            next_run += sum(isinstance(run, NextRun) for run in each.waiting)
            partitions.append(replace(done, bytes_written=done.bytes_written + sum(m.bytes for m in written)))
        return CarriedOut(partitions, merged, tasks, next_run)

    def _tasks(self, arranged: Arranged, how: How) -> list[MergeTask]:
        waiting = {id(run.work) for run in arranged.waiting if isinstance(run, NextRun)}
        tasks = []
        for work in arranged.works:
            if id(work) in waiting:  # small row groups: what is merged away of them need not be decoded again
                tasks.append(self.task(work, how, Shape.CHUNKS, max(1, self.most // 4)))
            else:
                tasks.append(self.task(work, how, Shape.CHUNKS if work.chunks else Shape.SPLIT, self.most))
        return tasks


@dataclass(frozen=True)
class CarriedOut:
    """Partitions as they are after files were written for them."""

    partitions: list[Partition]
    merged: list[Merged]
    tasks: list[MergeTask]
    next_run: int

    @property
    def bytes(self) -> int:
        return sum(m.bytes for m in self.merged)

    @property
    def rows(self) -> int:
        return sum(m.rows for m in self.merged)


def update(updating: Updating) -> LastUpdate | None:
    """Bring a timeline up to date with the ledger; None when it was, and then nothing was written."""
    with updating.objects.turn():
        return catch_up(updating)


def follow(updating: Updating) -> LastUpdate | None:
    """The same after a write, which stays written whatever happens here."""
    try:
        return update(updating)
    except (FloodmarkError, OSError, pa.ArrowException, MemoryError) as error:
        reason = error.message if isinstance(error, FloodmarkError) else str(error)
        _log.warning(
            "%s was written, but its timeline is behind (%s); the next write or update_timeline() catches up",
            updating.name,
            reason,
        )
        return None


def catch_up(updating: Updating, begin: Root | None = None) -> LastUpdate | None:
    """An update by who has the turn, from a root that was read just now if one is given."""
    done: list[LastUpdate] = []
    for _ in range(MAX_RACES):
        root = updating.kept.load(updating.objects) if begin is None else begin
        begin = None
        snapshot = updating.snapshot()
        root = roots.fitting(root, snapshot, updating.settings.digest)
        try:
            if _advance(updating, root, snapshot, done):
                return summed(done)
        except PurgedMeanwhile:
            continue
        except (BadManifest, UnreadablePiece) as error:
            if root.applied == 0:  # a slice of the ledger: making the timeline anew would not help
                raise
            _log.warning("%s; the timeline of %s is made anew", error.message, updating.name)
            begin = root.emptied()
    raise CommitConflict(
        f"the timeline of {updating.name} changed {MAX_RACES} times meanwhile", hint="run update_timeline() again"
    )


def _advance(updating: Updating, root: Root, snapshot: Snapshot, done: list[LastUpdate]) -> bool:
    """Step by step up to a snapshot; False when somebody else changed the root meanwhile."""
    if root.applied >= snapshot.next_offset:
        return True
    step = begun(updating, root, snapshot)
    while (taken := _take_in(step)) is not None:
        after = publish(updating.objects, step.root, _change(step, taken))
        if after is None:
            return False
        if after.last is not None:
            done.append(after.last)
        updating.kept.root = after
        step = replace(step, root=after)
    return True


def begun(updating: Updating, root: Root, snapshot: Snapshot) -> Step:
    files = PieceFiles(updating.objects, snapshot.require_layout(updating.name))
    return Step(updating, root, snapshot, updating.dead(snapshot), files)


def _take_in(step: Step) -> Intake | None:
    updating = step.updating
    if step.root.applied >= step.snapshot.next_offset:
        return None
    return incoming(
        updating.name,
        step.snapshot,
        step.layout,
        updating.settings,
        step.root.applied,
        step.dead,
        updating.runtime,
        step.version,
    )


def _change(step: Step, taken: Intake) -> Change:
    """What becomes of the partitions that new records belong to, or took rows out of."""
    unit = step.updating.settings.partition_by
    killed_in = units.starts(taken.killed_times, unit)
    starts = sorted({*taken.partitions, *taken.arrivals, *np.unique(killed_in).tolist()})
    there = roots.partitions_at(step.updating.objects, step.root, starts)
    arranged: list[Arranged] = []
    next_run = step.root.next_run
    for start in starts:
        new = taken.partitions.get(start, [])
        if start not in there and not new:
            continue
        arrival = taken.arrivals.get(start, Arrival())
        partition = _with_arrival(there.get(start, Partition(start)), arrival)
        arranged.append(_arranged(step, partition, new, taken.killed_times[killed_in == start], next_run))
        next_run += len(new)
    done = step.carry_out(arranged, How.MERGED, next_run)
    kept = tuple(p for p in done.partitions if p.settled)
    last = LastUpdate(
        kind="update",
        rows=taken.rows,
        late_rows=_late_rows(taken, kept, step.version),
        bytes_in=taken.bytes_in,
        bytes_written=taken.bytes_written + done.bytes,
        merged_rows=done.rows,
        partitions=len(done.partitions),
        pieces=sum(len(p.pieces) for p in kept),
    )
    return Change(
        applied=taken.end,
        block=taken.block,
        settings_digest=step.updating.settings.digest,
        partitions=kept,
        last=last,
        next_run=done.next_run,
        removed=tuple(p.start for p in done.partitions if not p.settled and p.start in there),
    )


def _with_arrival(partition: Partition, arrival: Arrival) -> Partition:
    return replace(
        partition,
        rows_in=partition.rows_in + arrival.rows,
        bytes_in=partition.bytes_in + arrival.bytes_in,
        bytes_written=partition.bytes_written + arrival.bytes_written,
    )


def _arranged(step: Step, partition: Partition, new: list[tuple[Piece, ...]], killed: I64, next_run: int) -> Arranged:
    places = step.files.places
    if step.updating.settings.late_merge == "always":
        return arrange.always(partition, new, killed, step.most, places)
    return arrange.auto(partition, new, killed, step.most, next_run, places)


def _late_rows(taken: Intake, partitions: Sequence[Partition], version: int) -> int:
    """New rows that did not find room between those that were there."""
    new = sum(p.rows for each in taken.partitions.values() for pieces in each for p in pieces)
    arrived = (How.SLICE, How.SORTED)
    room = sum(p.rows for each in partitions for p in each.settled if p.since == version and p.how in arrived)
    return new - room


def summed(done: Sequence[LastUpdate]) -> LastUpdate | None:
    """Several changes as one; None without any."""
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
