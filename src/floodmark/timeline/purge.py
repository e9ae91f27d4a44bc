"""Purging a timeline: no piece shows purged records any more, and no file of its own holds a copy of them.

First the root stops naming them, and takes no more of them; then the files are deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa

from floodmark.errors import FloodmarkError
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.keys.records import I64
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.timeline import root as roots
from floodmark.timeline.errors import BadManifest, UnreadablePiece
from floodmark.timeline.merge import Merged, MergeTask, Source, dead_among, run_tasks
from floodmark.timeline.objects import TimelineObjects, last_name
from floodmark.timeline.pieces import Partition, Piece, Run
from floodmark.timeline.publish import Change, own_files, publish
from floodmark.timeline.purged_files import files_with_purged
from floodmark.timeline.root import LastUpdate, Root
from floodmark.timeline.settings import Settings

MAX_RACES = 50

_TASK_ROW_GROUPS = 16
"""So many row groups of neighbouring pieces are rewritten as one file at most."""

_log = logging.getLogger(__name__)


def drop_purged(name: str, snapshot: Snapshot, dead: I64, runtime: Runtime, settings: Settings) -> None:
    """Remove every copy of the records that a snapshot says are purged; `dead` are its dead ones, sorted.

    The records are gone from the ledger already, so a store that fails fails nothing: what is left goes with the next
    purge or collection, and verify tells of it.
    """
    objects = TimelineObjects(snapshot.objects)
    context = _Purging(name, objects, snapshot, dead, runtime, settings)
    try:
        with objects.turn():
            _delete_copies(objects, _without_purged(context), snapshot.purged_before)
    except (FloodmarkError, OSError, pa.ArrowException) as error:
        _log.warning("the timeline of %s may have copies of purged records (%s); purge again removes them", name, error)


@dataclass(frozen=True)
class _Purging:
    """One purge and what it needs."""

    name: str
    objects: TimelineObjects
    snapshot: Snapshot
    dead: I64
    runtime: Runtime
    settings: Settings

    @property
    def before(self) -> int:
        return self.snapshot.purged_before


def _without_purged(purging: _Purging) -> Root:
    """The root once it names no file with purged records; whoever had begun to change it before must begin anew."""
    objects = purging.objects
    for _ in range(MAX_RACES):
        root = roots.load(objects)
        try:
            change = _change(purging, root)
        except (BadManifest, UnreadablePiece) as error:
            _log.warning("%s; the next update makes the timeline of %s anew", error.message, purging.name)
            root = root.emptied()
            change = _nothing_left(purging, root)
        if change is None:
            return root
        if (after := publish(objects, root, change)) is not None:
            return after
    raise CommitConflict(f"the timeline of {purging.name} changed {MAX_RACES} times meanwhile", hint="purge again")


def _nothing_left(purging: _Purging, root: Root) -> Change:
    last = LastUpdate("purge")
    return Change(0, "", purging.settings.digest, (), last, root.next_run, purged_before=purging.before)


def _change(purging: _Purging, root: Root) -> Change | None:
    """What a root must become, None when it is so already."""
    if root.is_damaged:
        raise BadManifest("the timeline's root is damaged", key=purging.objects.root_key)
    partitions = roots.partitions(purging.objects, root)
    own = own_files(partitions)
    doomed = frozenset(files_with_purged(purging.objects, sorted(own), purging.before))
    plans = [plan for p in partitions if (plan := _plan(p, doomed, purging)) is not None]
    if not plans and root.purged_before >= purging.before:
        return None
    merges = [_task(purging, sources, root) for plan in plans for sources in plan.rewritten]
    results = iter(run_tasks(purging.name, merges, purging.runtime))
    changed = [_carried_out(plan, [next(results) for _ in plan.rewritten]) for plan in plans]
    kept = tuple(p for p in changed if p.settled)
    last = LastUpdate(
        kind="purge",
        bytes_written=sum(c.bytes_written - p.partition.bytes_written for c, p in zip(changed, plans, strict=True)),
        merged_rows=sum(p.rows for c in changed for p in c.pieces if p.since == root.version + 1),
        partitions=len(changed),
        pieces=sum(len(c.pieces) for c in changed),
    )
    return Change(
        applied=root.applied,
        block=root.block,
        settings_digest=root.settings_digest or purging.settings.digest,
        partitions=kept,
        last=last,
        next_run=root.next_run,
        removed=tuple(p.start for p in changed if not p.settled),
        purged_before=purging.before,
    )


def _task(purging: _Purging, pieces: Sequence[Piece], root: Root) -> MergeTask:
    return MergeTask(
        objects=purging.objects,
        layout=purging.snapshot.require_layout(purging.name),
        sources=tuple(map(Source, pieces)),
        most=purging.settings.row_group_size,
        how=max(p.how for p in pieces),
        since=root.version + 1,
        dead=dead_among(purging.dead, pieces),
        purged_before=purging.before,
    )


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


def _plan(partition: Partition, doomed: frozenset[str], purging: _Purging) -> _Plan | None:
    """What must change in a partition, None when nothing must."""
    before, most = purging.before, _TASK_ROW_GROUPS * purging.settings.row_group_size
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


def _delete_copies(objects: TimelineObjects, root: Root, before: int) -> None:
    """Delete the files with purged records that a root does not name, however lately they were named."""
    named = own_files(roots.partitions(objects, root))
    loose = [file for info in objects.files() if (file := objects.file(info.key)) not in named]
    for file in files_with_purged(objects, loose, before):
        objects.store.delete(objects.key(file))
        objects.store.delete(objects.replaced_key(last_name(file)))
