"""Folding a timeline: nothing waits, nothing is dead, and at most one row group of a partition is small afterwards.

Readers keep what they began with: files that no root names any more stay for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.fold import Fold
from floodmark.storage.errors import StorageError
from floodmark.timeline import arrange, gc
from floodmark.timeline import partitions as units
from floodmark.timeline import root as roots
from floodmark.timeline.arrange import Arranged
from floodmark.timeline.check import damaged_files
from floodmark.timeline.errors import BadManifest, PurgedMeanwhile
from floodmark.timeline.intake import STEP_ROWS
from floodmark.timeline.pieces import How, Partition, Piece
from floodmark.timeline.places import alive
from floodmark.timeline.publish import Change, publish
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.update import MAX_RACES, CarriedOut, Step, Updating, begun, catch_up

NOTHING = Fold(read=0, files=0, rows=0, bytes=0, dead=0)

_log = logging.getLogger(__name__)


def fold(updating: Updating, partition: str | None = None) -> Fold:
    """Bring a timeline up to date and fold it, or one partition by its label; then remove what nobody needs any more.

    All own files are checked against their hashes first: if one is damaged, the timeline is made anew from the ledger.
    """
    wanted = None if partition is None else units.parse(partition, updating.settings.partition_by)
    with updating.objects.turn():
        catch_up(updating, _without_damage(updating))
        done = NOTHING
        for _ in range(MAX_RACES):
            try:
                more, is_done = _round(updating, wanted)
            except PurgedMeanwhile:
                continue
            done = _summed(done, more)
            if is_done:
                break
        else:
            raise CommitConflict(
                f"the timeline of {updating.name} changed {MAX_RACES} times meanwhile", hint="fold it again"
            )
        _sweep(updating)
    return done


def _without_damage(updating: Updating) -> Root:
    """The root as it is, or emptied when what it names is not what it was."""
    root = roots.load(updating.objects)
    try:
        damaged = damaged_files(updating.objects, roots.partitions(updating.objects, root))
    except BadManifest as error:
        _log.warning("%s; the timeline of %s is made anew", error.message, updating.name)
        return root.emptied()
    for file, problem in damaged.items():
        _log.warning("%s %s; the timeline of %s is made anew", file, problem, updating.name)
    return root.emptied() if damaged else root


def _round(updating: Updating, wanted: int | None) -> tuple[Fold, bool]:
    """Fold what needs it, some partitions at a time; and whether nothing is left to be done."""
    root = roots.load(updating.objects)
    snapshot = updating.snapshot()
    root = roots.fitting(root, snapshot, updating.settings.digest)
    if snapshot.layout is None or not root.manifests:
        return NOTHING, True
    step = begun(updating, root, snapshot)
    done = NOTHING
    starts = [p.start for p in roots.partitions(updating.objects, root) if wanted in (None, p.start)]
    is_done = True
    for some in _portions(step, starts):
        carried_out = step.carry_out(some, How.FOLDED, step.root.next_run)
        after = publish(updating.objects, step.root, _change(step, some, carried_out))
        if after is None:
            return done, False
        done = _summed(done, _folded(carried_out))
        step = replace(step, root=after)
        is_done = False  # rows that died may have left something small: looked at again
    return done, is_done


def _portions(step: Step, starts: Sequence[int]) -> Iterator[list[Arranged]]:
    """Partitions that need a fold, so many at a time that what was done is kept when something happens."""
    some: list[Arranged] = []
    rows = 0
    for start in starts:
        partition = roots.partitions_at(step.updating.objects, step.root, [start])[start]
        arranged = arrange.folded(_counted(step, partition), step.most, step.files.places)
        if arranged is None:
            continue
        some.append(arranged)
        rows += sum(work.rows for work in arranged.works)
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


def _change(step: Step, arranged: Sequence[Arranged], done: CarriedOut) -> Change:
    kept = tuple(p for p in done.partitions if p.settled)
    last = LastUpdate(
        kind="fold",
        bytes_written=done.bytes,
        merged_rows=done.rows,
        partitions=len(arranged),
        pieces=sum(len(p.pieces) for p in kept),
    )
    return Change(
        applied=step.root.applied,
        block=step.root.block,
        settings_digest=step.root.settings_digest,
        partitions=kept,
        last=last,
        next_run=done.next_run,
        removed=tuple(p.start for p in done.partitions if not p.settled),
    )


def _folded(done: CarriedOut) -> Fold:
    return Fold(
        read=len({source.piece.file for task in done.tasks for source in task.sources}),
        files=sum(m.bytes > 0 for m in done.merged),
        rows=done.rows,
        bytes=done.bytes,
        dead=sum(m.dropped for m in done.merged),
    )


def _summed(one: Fold, other: Fold) -> Fold:
    return Fold(
        one.read + other.read,
        one.files + other.files,
        one.rows + other.rows,
        one.bytes + other.bytes,
        one.dead + other.dead,
    )


def _sweep(updating: Updating) -> None:
    """Remove files that nobody has needed for long; a store that fails keeps them, and the next fold tries again."""
    objects, now = updating.objects, updating.runtime.clock()
    try:
        gc.remove(objects, gc.find(objects, now, purged_before=updating.snapshot().purged_before))
    except StorageError as error:
        _log.warning("old files of the timeline of %s stay (%s); the next fold removes them", updating.name, error)
