"""Folding a timeline: nothing waits, nothing is dead, and at most one row group of a partition is small afterwards.

Files are written while others go on changing the timeline; only putting them in their places takes the turn. Readers
keep what they began with: files that no root names any more stay for a while.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from floodmark.ledger.fold import Fold
from floodmark.storage import sweep
from floodmark.storage.errors import StorageError
from floodmark.timeline.change.changing import CarriedOut, KeptRoot, Step, Updating
from floodmark.timeline.change.intake import STEP_ROWS
from floodmark.timeline.change.update import advance
from floodmark.timeline.errors import BadManifest, UnknownPartition
from floodmark.timeline.order import partitions as units
from floodmark.timeline.order.pieces import How, Partition, Piece
from floodmark.timeline.order.places import alive
from floodmark.timeline.plan import arrange
from floodmark.timeline.plan.arrange import Arranged
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.publish import Change, own_files
from floodmark.timeline.stored.root import LastUpdate, Root
from floodmark.timeline.upkeep import gc
from floodmark.timeline.upkeep.check import damaged_files

NOTHING = Fold(read=0, files=0, rows=0, bytes=0, dead=0)

_log = logging.getLogger(__name__)


def fold(updating: Updating, partition: str | None = None) -> Fold:
    """Bring a timeline up to date and fold it, or one partition by its label; then remove what nobody needs any more.

    The own files of what is folded are checked against their hashes first: if one is damaged, the timeline is made anew
    from the ledger. A partition that is not there is refused, unless there is none at all.
    """
    wanted = None if partition is None else units.parse(partition, updating.settings.partition_by)
    updating = replace(updating, kept=KeptRoot())  # manifests are read, not remembered: one may be damaged
    folding = _Folding(wanted)
    with updating.unless_dropped():
        damaged = _damaged(updating, wanted)
        with updating.turn() as held:
            held.attempt(lambda step: _up_to_date(step, damaged))
        updating.attempt(folding.first_round)
        with updating.turn() as held:  # nobody else can be first any more
            held.attempt(folding.next_round)
        _sweep(updating)
    return folding.done


def summed(one: Fold, other: Fold) -> Fold:
    """What two folds did together."""
    return Fold(*(getattr(one, f.name) + getattr(other, f.name) for f in fields(Fold)))


def _damaged(updating: Updating, wanted: int | None) -> Mapping[str, str]:
    """Which own files are not what they were. A manifest that cannot be read says so again when it is needed."""
    root = roots.load(updating.objects)
    try:
        return damaged_files(updating.objects, _partitions(updating, root, wanted))
    except BadManifest:
        return {}


def _partitions(updating: Updating, root: Root, wanted: int | None) -> list[Partition]:
    if wanted is None:
        return roots.partitions(updating.objects, root)
    return list(roots.partitions_at(updating.objects, root, [wanted]).values())


def _up_to_date(step: Step, damaged: Mapping[str, str]) -> bool | None:
    """The timeline up to the ledger's head, made anew when it names a file that is damaged."""
    named = own_files(roots.partitions(step.objects, step.root)) if damaged else set()
    for file in sorted(damaged.keys() & named):
        _log.warning("%s %s; the timeline of %s is made anew", file, damaged[file], step.updating.name)
        step = replace(step, root=step.root.emptied())
    return advance(step, [])


def _made_anew(step: Step) -> bool:
    """Whether the root that a round begins with was of no use, and there is another one now."""
    done: list[LastUpdate] = []
    if step.root.abandoned:
        with step.updating.turn() as held:
            held.attempt(lambda now: advance(replace(now, root=now.root.emptied()), done))
    return bool(done)


@dataclass(frozen=True)
class _Folded:
    """A partition as it was, and what it is to become."""

    before: Partition
    arranged: Arranged

    @property
    def rows(self) -> int:
        return sum(work.rows for work in self.arranged.works)


@dataclass
class _Folding:
    """A fold on its way: what it has done, and which partitions it has to look at again."""

    wanted: int | None
    done: Fold = NOTHING
    again: list[int] = field(default_factory=list)

    def first_round(self, step: Step) -> bool | None:
        """Fold every partition that needs it; what others change meanwhile is left for the next round."""
        if _made_anew(step):
            return None
        there = _partitions(step.updating, step.root, self.wanted)
        if self.wanted is not None and not there:
            _refuse_unknown(step, self.wanted)
        self._fold(step, there)
        return True

    def next_round(self, step: Step) -> bool | None:
        """Look again at what was folded: others may have changed it, and rows that died may have left a small piece."""
        if _made_anew(step):
            return None
        there = roots.partitions_at(step.objects, step.root, self.again)
        self._fold(step, list(there.values()))
        return None if self.again else True

    def _fold(self, step: Step, partitions: Sequence[Partition]) -> None:
        self.again = []
        for some in _portions(step, partitions):
            carried_out = step.carry_out([each.arranged for each in some], How.FOLDED, step.root.next_run)
            with step.updating.turn() as held:
                held.attempt(lambda now: _put(now, step, some, carried_out))  # noqa: B023  called at once
            self.done = summed(self.done, _figures(carried_out))
            self.again += [each.before.start for each in some]


def _refuse_unknown(step: Step, wanted: int) -> None:
    """Say that a partition is not there, and which are near. Where there is none, nothing is to be folded."""
    starts = [p.start for p in roots.partitions(step.objects, step.root)]
    if not starts:
        return
    unit, at = step.updating.settings.partition_by, bisect_left(starts, wanted)
    label = units.label(wanted, unit)
    near = tuple(units.label(start, unit) for start in starts[max(0, at - 1) : at + 1])
    raise UnknownPartition(
        f"the timeline of {step.updating.name!r} has no partition {label}",
        hint=f"nearest to it: {' and '.join(near)}",
        partition=label,
        near=near,
    )


def _portions(step: Step, partitions: Sequence[Partition]) -> Iterator[list[_Folded]]:
    """Partitions that need a fold, so many at a time that what was done is kept when something happens."""
    some: list[_Folded] = []
    rows = 0
    for partition in partitions:
        counted = _counted(step, partition)
        arranged = arrange.folded(counted, step.most, step.files.places)
        if arranged is not None:
            some.append(_Folded(partition, arranged))
        elif counted != partition:  # the numbers alone
            some.append(_Folded(partition, Arranged(counted, counted.settled, counted.waiting, step.most)))
        else:
            continue
        rows += some[-1].rows
        if rows >= STEP_ROWS:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _counted(step: Step, partition: Partition) -> Partition:
    """The same with exact numbers of dead rows: updates count them by their times alone."""
    return replace(partition, settled=tuple(replace(p, dead=_dead_rows(step, p)) for p in partition.settled))


def _dead_rows(step: Step, piece: Piece) -> int:
    purged = step.snapshot.purged_before
    low, high = np.searchsorted(step.dead, [piece.offset_min, piece.offset_max + 1]).tolist()
    if low == high and piece.offset_min >= purged:
        return 0
    living = alive(step.files.places(piece)[1], step.dead[low:high], purged)
    return 0 if living is None else int(len(living) - np.count_nonzero(living))


def _put(now: Step, then: Step, some: Sequence[_Folded], done: CarriedOut) -> bool | None:
    """Put folded partitions in the places of those that they were made from; None when somebody else was first.

    Those that others have changed in between stay as these left them, unless all they did was to add.
    """
    there = roots.partitions_at(now.objects, now.root, [each.before.start for each in some])
    found = [
        _put_upon(each.before, partition, there.get(each.before.start))
        for each, partition in zip(some, done.partitions, strict=True)
    ]
    changed = [_dated(partition, then.version, now.version) for partition in found if partition is not None]
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
    change = Change(
        applied=now.root.applied,
        block=now.root.block,
        settings_digest=now.root.settings_digest,
        partitions=kept,
        last=last,
        next_run=now.root.next_run,
        removed=tuple(p.start for p in changed if not p.settled),
    )
    return None if now.published(change) is None else True


def _put_upon(before: Partition, folded: Partition, now: Partition | None) -> Partition | None:
    """A folded partition with what came to it since; None when it is not what the fold was made from any more."""
    if now is None:
        return None
    old, new = set(before.waiting), [run for run in now.waiting if run not in before.waiting]
    if _undying(now.settled) != _undying(before.settled) or not old <= set(now.waiting):
        return None
    if new and not folded.settled:  # they wait over something
        return None
    died = [max(0, one.dead - other.dead) for one, other in zip(now.settled, before.settled, strict=True)]
    killed = np.repeat(np.array([p.first.time for p in now.settled], np.int64), died)
    written = now.bytes_written + folded.bytes_written - before.bytes_written
    merged = replace(now, settled=folded.settled, waiting=(*folded.waiting, *new), bytes_written=written)
    return arrange.with_dead(merged, killed)


def _undying(pieces: Sequence[Piece]) -> list[Piece]:
    return [replace(p, dead=0) for p in pieces]


def _dated(partition: Partition, then: int, now: int) -> Partition:
    """The same, with what the fold wrote as of the root that will have it."""
    settled = (
        replace(p, since=now) if p.how in (How.FOLDED, How.SHARED) and p.since == then else p for p in partition.settled
    )
    return replace(partition, settled=tuple(settled))


def _figures(done: CarriedOut) -> Fold:
    return Fold(
        read=len({piece.file for task in done.tasks for piece in task.sources}),
        files=done.files,
        rows=done.rows,
        bytes=done.bytes,
        dead=sum(m.dropped for m in done.merged),
    )


def _sweep(updating: Updating) -> None:
    """Remove files that nobody has needed for long; a store that fails keeps them, and the next fold tries again."""
    objects, now = updating.objects, updating.runtime.clock()
    try:
        sweep.remove(gc.find(objects, now, purged_before=updating.snapshot().purged_before))
    except StorageError as error:
        _log.warning("old files of the timeline of %s stay (%s); the next fold removes them", updating.name, error)
