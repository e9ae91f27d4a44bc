"""Bringing a timeline up to date: new records are taken in and arranged, files are written, and the root moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from floodmark.storage.arrays import I64
from floodmark.timeline.change.changing import Step, Updating, only_told
from floodmark.timeline.change.intake import Arrival, Intake, incoming
from floodmark.timeline.change.purge import delete_copies, without_purged
from floodmark.timeline.order import partitions as units
from floodmark.timeline.order.pieces import How, Partition, Piece
from floodmark.timeline.plan import arrange
from floodmark.timeline.plan.arrange import Arranged
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.publish import Change
from floodmark.timeline.stored.root import LastUpdate

_BEHIND = "%s was written, but its timeline is behind (%s); the next write or update_timeline() catches up"


def update(updating: Updating) -> LastUpdate | None:
    """Bring a timeline up to date with the ledger; None when it was, and then nothing was written."""
    done: list[LastUpdate] = []
    with updating.unless_dropped(), updating.turn() as held:
        held.attempt(lambda step: advance(step, done))
    return _summed(done)


def follow(updating: Updating) -> None:
    """The same after a write, which stays written whatever happens here."""
    with only_told(_BEHIND, updating.name):
        update(updating)


def advance(step: Step, done: list[LastUpdate]) -> bool | None:
    """Up to the ledger's head, one swap of the root after the other; None when somebody else was first.

    A purge that was cut short before it came to the timeline is completed first.
    """
    following: Step | None
    if step.root.purged_before < step.snapshot.purged_before:
        following = without_purged(step)
        if following is None:
            return None
        step = following
        done += _last(step)
        delete_copies(step)
    while (taken := _take_in(step)) is not None:
        following = step.published(_change(step, taken))
        if following is None:
            return None
        step = following
        done += _last(step)
    return True


def _last(step: Step) -> list[LastUpdate]:
    return [] if step.root.last is None else [step.root.last]


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
        step.dead_within,
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


def _summed(done: Sequence[LastUpdate]) -> LastUpdate | None:
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
