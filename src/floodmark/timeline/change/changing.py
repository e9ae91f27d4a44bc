"""Changing a timeline: apply a change to the root; retry if another writer swapped it first.

Nothing is changed before the root is swapped, so a change that crashed or lost a race has not happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from floodmark.derive.run import Derivation, run
from floodmark.errors import FloodmarkError, Unreadable
from floodmark.ledger.create import remove
from floodmark.ledger.errors import CommitConflict, UnknownDataset
from floodmark.ledger.layout import Layout
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.errors import StorageError
from floodmark.storage.retry import MAX_RACES
from floodmark.timeline.change.merge import Merged, MergeTask, Shape, dead_among, offset_bounds
from floodmark.timeline.change.sharing import merge_all
from floodmark.timeline.errors import UnreadablePiece
from floodmark.timeline.order.pieces import How, Partition
from floodmark.timeline.plan.arrange import Arranged, NextRun
from floodmark.timeline.plan.works import Work
from floodmark.timeline.reading.sources import PieceFiles
from floodmark.timeline.settings import Settings
from floodmark.timeline.stored import root as roots
from floodmark.timeline.stored.objects import TimelineObjects, is_own
from floodmark.timeline.stored.publish import Change, publish
from floodmark.timeline.stored.root import Root

T = TypeVar("T")

_log = logging.getLogger(__name__)


@contextmanager
def only_told(message: str, name: str) -> Iterator[None]:
    """What fails within is told in the log and nowhere else: what users asked for was committed before.

    The message has room for a dataset's name and the reason. What is no trouble of stores and files is told with its
    traceback, since somebody has to look into it.
    """
    try:
        yield
    except (FloodmarkError, OSError, pa.ArrowException, MemoryError) as error:
        _log.warning(message, name, error.message if isinstance(error, FloodmarkError) else error)
    except Exception as error:
        _log.exception(message, name, f"{type(error).__name__}: {error}")


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
    dead: Callable[[Snapshot, Sequence[tuple[int, int]]], I64]
    """The offsets, sorted, that are dead as of a snapshot, in ranges [low, high), which ascend and are apart."""
    kept: KeptRoot = field(default_factory=KeptRoot, compare=False)  # who updates often keeps it
    held: bool = False  # whether the turn is held

    @contextmanager
    def turn(self) -> Iterator[Updating]:
        """Wait for and hold the turn to change this timeline, unless it is held."""
        waiting: AbstractContextManager[None] = nullcontext() if self.held else self.objects.turn()
        with waiting:
            yield replace(self, held=True)

    @contextmanager
    def unless_dropped(self) -> Iterator[None]:
        """What is done within leaves nothing behind when it fails because the dataset was dropped meanwhile."""
        try:
            yield
        except Exception:
            with suppress(StorageError):  # what failed says more
                if self.objects.dataset.read_head() is None:
                    remove(self.objects.dataset)
            raise

    def attempt(self, change: Callable[[Step], T | None]) -> T:
        """Apply a change to the root; repeat it if it returns None: another writer swapped the root first."""
        return run(_Attempts(self, change), tries=MAX_RACES)


@dataclass
class _Attempts(Derivation["Step", T]):
    """A change of the root under the turn that the caller holds, or without one."""

    updating: Updating
    change: Callable[[Step], T | None]
    begin: Root | None = None

    replaced = ()

    def pin(self) -> Step:
        updating = self.updating
        root, self.begin = self.begin or updating.kept.load(updating.objects), None
        snapshot = updating.snapshot()
        return Step(_Look(updating, snapshot), roots.fitting(root, snapshot, updating.settings.digest))

    def attempt(self, state: Step) -> T:
        done = self.change(state)
        if done is None:
            name = self.updating.name
            raise CommitConflict(f"the timeline of {name} changed {MAX_RACES} times meanwhile", hint="try again")
        return done

    def inputs_moved(self, state: Step) -> bool:
        return self.updating.snapshot().purged_before > state.snapshot.purged_before  # slices are gone for this reason

    def repair(self, state: Step, error: Unreadable) -> bool:
        """Begin a damaged timeline anew, from a root that has nothing yet."""
        if state.root.applied == 0 or (isinstance(error, UnreadablePiece) and not is_own(error.file)):
            return False  # the ledger's: making the timeline anew would not help
        _log.warning("%s; the timeline of %s is made anew", error.message, self.updating.name)
        self.begin = state.root.emptied()
        return True


@dataclass(frozen=True)
class _Look:
    """What the ledger says, as far as it is asked for."""

    updating: Updating
    snapshot: Snapshot

    @cached_property
    def dead(self) -> I64:
        return self.updating.dead(self.snapshot, [(0, self.snapshot.next_offset)])

    @cached_property
    def files(self) -> PieceFiles:
        return PieceFiles(self.updating.objects, self.snapshot.require_layout(self.updating.name))


@dataclass(frozen=True)
class Step:
    """One change of the root that is being made: what it begins with, and what the ledger says meanwhile."""

    look: _Look
    root: Root

    @property
    def updating(self) -> Updating:
        return self.look.updating

    @property
    def objects(self) -> TimelineObjects:
        return self.updating.objects

    @property
    def snapshot(self) -> Snapshot:
        return self.look.snapshot

    @property
    def dead(self) -> I64:
        """All of them, however many there are."""
        return self.look.dead

    def dead_within(self, ranges: Sequence[tuple[int, int]]) -> I64:
        """Those in ranges [low, high) of offsets, which ascend and are apart; no others are listed."""
        return self.updating.dead(self.snapshot, ranges)

    @property
    def files(self) -> PieceFiles:
        return self.look.files

    @property
    def layout(self) -> Layout:
        return self.files.layout

    @property
    def most(self) -> int:
        return self.updating.settings.row_group_size

    @property
    def version(self) -> int:
        return self.root.version + 1

    def task(self, work: Work, how: How, shape: Shape, most: int) -> MergeTask:
        """A merge that `merged` carries out, which tells it the dead."""
        return MergeTask(
            objects=self.objects,
            layout=self.layout,
            sources=work.sources,
            most=most,
            how=how,
            since=self.version,
            shape=shape,
            purged_before=self.snapshot.purged_before,
        )

    def merged(self, tasks: Sequence[MergeTask]) -> list[Merged]:
        """Carry merges out, without the rows that are dead by now; the results are in the order of the tasks."""
        dead = self.dead_within(offset_bounds(piece for task in tasks for piece in task.sources))
        told = [replace(task, dead=dead_among(dead, task.sources)) for task in tasks]
        return merge_all(self.updating.name, told, self.updating.runtime)

    def carry_out(self, arranged: Sequence[Arranged], how: How, next_run: int) -> CarriedOut:
        """Write what is to be written for some partitions, all of it in one go, and put it where it belongs."""
        tasks = [task for each in arranged for task in self._tasks(each, how)]
        results = iter(self.merged(tasks))
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
        settled = [
            self.task(work, how, Shape.CHUNKS if work.chunks else Shape.SPLIT, self.most)
            for work in arranged.settled_works
        ]
        # Small row groups: what is merged away of them need not be decoded again.
        late = [self.task(work, how, Shape.CHUNKS, max(1, self.most // 4)) for work in arranged.late_works]
        return settled + late

    def published(self, change: Change) -> Step | None:
        """The step after this one, when its change is made; None when somebody else was first."""
        after = publish(self.objects, self.root, change)
        if self.objects.dataset.read_head() is None:  # whoever dropped it may have removed all before this was there
            raise UnknownDataset(
                f"dataset {self.updating.name!r} is gone", hint="it was dropped", name=self.updating.name
            )
        if after is None:
            return None
        self.updating.kept.root = after
        return replace(self, root=after)


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

    @property
    def files(self) -> int:
        """How many were written; small works share them."""
        return len({p.file for m in self.merged for p in m.pieces})
