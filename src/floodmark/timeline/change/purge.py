"""Purging a timeline: no piece shows purged records any more, and no file of its own holds a copy of them.

First the root stops naming them, and takes no more of them; then the files are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from floodmark.timeline.change.changing import Step, Updating, only_told
from floodmark.timeline.change.merge import Merged, MergeTask, Shape
from floodmark.timeline.order.pieces import How, Partition, Piece, Run
from floodmark.timeline.plan.works import Work
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import last_name
from floodmark.timeline.stored.publish import Change, own_files
from floodmark.timeline.stored.root import LastUpdate
from floodmark.timeline.upkeep.purged_files import files_with_purged

_TASK_ROW_GROUPS = 16
"""So many row groups of neighbouring pieces are rewritten as one file at most."""

_LEFT = "the timeline of %s may have copies of purged records (%s); purge again removes them"


def drop_purged(updating: Updating) -> None:
    """Remove every copy of the records that the ledger says are purged.

    They are gone from there already, so a store that fails fails nothing, and verify tells of what is left: that goes
    with the next purge, fold or collection. An update removes it only while the root does not know of the purge.
    """
    with only_told(_LEFT, updating.name), updating.unless_dropped(), updating.turn() as held:
        delete_copies(held.attempt(without_purged))


def without_purged(step: Step) -> Step | None:
    """The next step, from a root that names no file with purged records; None when somebody else was first.

    Whoever had begun to change the root before must begin anew then.
    """
    change = _change(step)
    return step if change is None else step.published(change)


def _change(step: Step) -> Change | None:
    """What a root must become, None when it is so already."""
    before, root = step.snapshot.purged_before, step.root
    partitions = roots.partitions(step.objects, root)
    own = own_files(partitions)
    doomed = frozenset(files_with_purged(step.objects, sorted(own), before))
    most = _TASK_ROW_GROUPS * step.most
    plans = [plan for p in partitions if (plan := _plan(p, doomed, before, most)) is not None]
    if not plans and root.purged_before >= before:
        return None
    merges = [_task(step, sources) for plan in plans for sources in plan.rewritten]
    results = iter(step.merged(merges))
    changed = [_carried_out(plan, [next(results) for _ in plan.rewritten]) for plan in plans]
    kept = tuple(p for p in changed if p.settled)
    last = LastUpdate(
        kind="purge",
        bytes_written=sum(c.bytes_written - p.partition.bytes_written for c, p in zip(changed, plans, strict=True)),
        merged_rows=sum(p.rows for c in changed for p in c.pieces if p.since == step.version),
        partitions=len(changed),
        pieces=sum(len(c.pieces) for c in changed),
    )
    return Change(
        applied=root.applied,
        block=root.block,
        settings_digest=step.updating.settings.digest,
        partitions=kept,
        last=last,
        next_run=root.next_run,
        removed=tuple(p.start for p in changed if not p.settled),
        purged_before=before,
    )


def _task(step: Step, pieces: tuple[Piece, ...]) -> MergeTask:
    return step.task(Work(pieces), min(How.FOLDED, max(p.how for p in pieces)), Shape.SPLIT, step.most)


_Parts = tuple[tuple[Piece, ...] | Piece, ...]
"""Pieces in order: alone where they stay, together where they are rewritten as one file."""


@dataclass(frozen=True)
class _Plan:
    """What becomes of a partition."""

    partition: Partition
    settled: _Parts
    waiting: tuple[tuple[Run, _Parts], ...]

    @property
    def rewritten(self) -> list[tuple[Piece, ...]]:
        parts = (*self.settled, *(part for _, run in self.waiting for part in run))
        return [part for part in parts if isinstance(part, tuple)]


def _plan(partition: Partition, doomed: frozenset[str], before: int, most: int) -> _Plan | None:
    """What must change in a partition, None when nothing must."""
    if not any(p.file in doomed or p.offset_min < before for p in partition.pieces):
        return None
    settled = _parts(partition.settled, doomed, before, most)
    waiting = [(run, _parts(run.pieces, doomed, before, most)) for run in partition.waiting]
    return _Plan(partition, settled, tuple(waiting))


def _parts(pieces: Iterable[Piece], doomed: frozenset[str], before: int, most: int) -> _Parts:
    """Pieces without those of purged records alone; neighbours whose files hold others too are rewritten together."""
    left = [p for p in pieces if p.offset_max >= before]
    parts: list[tuple[Piece, ...] | Piece] = []
    for is_doomed, group in groupby(left, lambda p: p.file in doomed):
        some = list(group)
        parts += _portions(some, most) if is_doomed else some
    return tuple(parts)


def _portions(pieces: Iterable[Piece], most: int) -> Iterator[tuple[Piece, ...]]:
    """Neighbouring pieces, as many at a time as have `most` rows together."""
    some: list[Piece] = []
    for piece in pieces:
        if some and sum(p.rows for p in some) + piece.rows > most:
            yield tuple(some)
            some = []
        some.append(piece)
    yield tuple(some)


def _carried_out(plan: _Plan, results: Sequence[Merged]) -> Partition:
    """The partition with what was rewritten in the place of what it was made from."""
    made = iter(results)
    settled = _with_results(plan.settled, made)
    runs = tuple(replace(run, pieces=_with_results(parts, made)) for run, parts in plan.waiting)
    waiting = tuple(run for run in runs if run.pieces)
    if not settled and waiting:  # rows wait over settled ones: without any, the largest run settles as it is
        largest = max(waiting, key=lambda run: run.rows)
        settled, waiting = largest.pieces, tuple(run for run in waiting if run is not largest)
    written = plan.partition.bytes_written + sum(m.bytes for m in results)
    return replace(plan.partition, settled=settled, waiting=waiting, bytes_written=written)


def _with_results(parts: _Parts, made: Iterable[Merged]) -> tuple[Piece, ...]:
    results = iter(made)
    found: list[Piece] = []
    for part in parts:
        if isinstance(part, Piece):
            found.append(part)
            continue
        found += next(results).pieces
    return tuple(found)


def delete_copies(step: Step) -> None:
    """Delete the files with purged records that the root does not name, however lately they were named."""
    objects = step.objects
    named = own_files(roots.partitions(objects, step.root))
    loose = [file for info in objects.files() if (file := objects.file(info.key)) not in named]
    for file in files_with_purged(objects, loose, step.snapshot.purged_before):
        objects.store.delete(objects.key(file))
        objects.store.delete(objects.replaced_key(last_name(file)))
