"""The writer of a timeline: apply a change to the root; retry if another writer swapped it first.

Nothing is visible before the root is swapped, so a change that crashes or loses a race has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from floodmark.derive.run import Derivation, run_derivation
from floodmark.engine.session import Runtime
from floodmark.errors import CommitConflict, FloodmarkError, StorageError, UnknownDataset, Unreadable, UnreadablePiece
from floodmark.ledger.create import remove
from floodmark.ledger.schema import Layout
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.arrays import I64
from floodmark.storage.pointer import MAX_RACES
from floodmark.timeline import root as roots
from floodmark.timeline.arrangement import Arrangement, MergeJob, PlannedRun
from floodmark.timeline.commit import RootChange, publish
from floodmark.timeline.manifest import TimelineObjects, is_own
from floodmark.timeline.merge import MergeResult, PieceMergeTask, RowGroupShape, merge_all, offset_bounds, select_dead
from floodmark.timeline.piece_files import PieceFiles
from floodmark.timeline.pieces import Partition, PieceOrigin
from floodmark.timeline.root import Root
from floodmark.timeline.settings import Settings

T = TypeVar("T")

_log = logging.getLogger(__name__)


@contextmanager
def log_failures(message: str, name: str) -> Iterator[None]:
    """Log errors of the block instead of raising them: the user's request is already committed.

    The message has placeholders for the name of a dataset and the reason. Errors that do not come from stores or files
    are logged with a traceback, since they may be bugs.
    """
    try:
        yield
    except (FloodmarkError, OSError, pa.ArrowException, MemoryError) as error:
        _log.warning(message, name, error.message if isinstance(error, FloodmarkError) else error)
    except Exception as error:
        _log.exception(message, name, f"{type(error).__name__}: {error}")


@dataclass
class RootCache:
    """A cache of the last root and its manifests. They are not read again unless another writer changes the root."""

    root: Root | None = None

    def load(self, objects: TimelineObjects) -> Root:
        """The currently stored root."""
        found = roots.load(objects)
        if self.root is None or found.stored != self.root.stored:
            self.root = found
        return self.root


@dataclass(frozen=True)
class TimelineWriter:
    """A timeline to change: its objects and settings, and functions that read the ledger after the root was read."""

    name: str
    objects: TimelineObjects
    settings: Settings
    runtime: Runtime
    snapshot: Callable[[], Snapshot]
    dead: Callable[[Snapshot, Sequence[tuple[int, int]]], I64]
    """The sorted offsets that are dead as of a snapshot, within ranges [low, high) that ascend and do not touch."""
    kept: RootCache = field(default_factory=RootCache, compare=False)  # pass the same one to frequent updates
    has_turn: bool = False  # whether the turn is held

    @contextmanager
    def turn(self) -> Iterator[TimelineWriter]:
        """Wait for the turn to change this timeline and hold it, unless it is already held."""
        waiting: AbstractContextManager[None] = nullcontext() if self.has_turn else self.objects.turn()
        with waiting:
            yield replace(self, has_turn=True)

    @contextmanager
    def unless_dropped(self) -> Iterator[None]:
        """Remove leftovers if the block fails because the dataset was dropped meanwhile."""
        try:
            yield
        except Exception:
            with suppress(StorageError):  # the original error has more information
                if self.objects.dataset.read_head() is None:
                    remove(self.objects.dataset)
            raise

    def attempt(self, change: Callable[[WriterState], T | None]) -> T:
        """Apply a change to the root; repeat it if it returns None: another writer swapped the root first."""
        return run_derivation(_Attempts(self, change), tries=MAX_RACES)


@dataclass
class _Attempts(Derivation["WriterState", T]):
    """A change of the root under the turn that the caller holds, or without one."""

    writer: TimelineWriter
    change: Callable[[WriterState], T | None]
    begin: Root | None = None

    replaced = ()

    def take_snapshot(self) -> WriterState:
        writer = self.writer
        root, self.begin = self.begin or writer.kept.load(writer.objects), None
        snapshot = writer.snapshot()
        return WriterState(
            _LedgerState(writer, snapshot), roots.root_or_emptied(root, snapshot, writer.settings.digest)
        )

    def attempt(self, state: WriterState) -> T:
        done = self.change(state)
        if done is None:  # a lost race: the loop tries again, and raises this error only after the last attempt
            name = self.writer.name
            raise CommitConflict(f"other writers changed the timeline of {name} {MAX_RACES} times", hint="try again")
        return done

    def inputs_moved(self, state: WriterState) -> bool:
        return self.writer.snapshot().purged_before > state.snapshot.purged_before  # a purge removed slices

    def repair(self, state: WriterState, error: Unreadable) -> bool:
        """Rebuild a damaged timeline from an empty root."""
        if state.root.applied == 0 or (isinstance(error, UnreadablePiece) and not is_own(error.file)):
            return False  # a slice of the ledger is damaged: rebuilding the timeline would not help
        _log.warning("%s; rebuilding the timeline of %s", error.message, self.writer.name)
        self.begin = state.root.emptied()
        return True


@dataclass(frozen=True)
class _LedgerState:
    """The ledger as of one snapshot. Dead offsets and files are loaded on first use."""

    writer: TimelineWriter
    snapshot: Snapshot

    @cached_property
    def dead(self) -> I64:
        return self.writer.dead(self.snapshot, [(0, self.snapshot.next_offset)])

    @cached_property
    def files(self) -> PieceFiles:
        return PieceFiles(self.writer.objects, self.snapshot.require_layout(self.writer.name))


@dataclass(frozen=True)
class WriterState:
    """One change of the root in progress: the root it starts from, and the ledger as of one snapshot."""

    look: _LedgerState
    root: Root

    @property
    def writer(self) -> TimelineWriter:
        return self.look.writer

    @property
    def objects(self) -> TimelineObjects:
        return self.writer.objects

    @property
    def snapshot(self) -> Snapshot:
        return self.look.snapshot

    @property
    def dead(self) -> I64:
        """All dead offsets, sorted. There may be very many."""
        return self.look.dead

    def dead_within(self, ranges: Sequence[tuple[int, int]]) -> I64:
        """The dead offsets within ranges [low, high) that ascend and do not touch. Only these are loaded."""
        return self.writer.dead(self.snapshot, ranges)

    @property
    def files(self) -> PieceFiles:
        return self.look.files

    @property
    def layout(self) -> Layout:
        return self.files.layout

    @property
    def most(self) -> int:
        return self.writer.settings.row_group_size

    @property
    def version(self) -> int:
        return self.root.version + 1

    def task(self, work: MergeJob, how: PieceOrigin, shape: RowGroupShape, most: int) -> PieceMergeTask:
        """A merge task without dead offsets; `merged` adds them and runs it."""
        return PieceMergeTask(
            objects=self.objects,
            layout=self.layout,
            sources=work.sources,
            most=most,
            how=how,
            since=self.version,
            shape=shape,
            purged_before=self.snapshot.purged_before,
        )

    def merged(self, tasks: Sequence[PieceMergeTask]) -> list[MergeResult]:
        """Run merges, without the rows that are dead now. The results have the order of the tasks."""
        dead = self.dead_within(offset_bounds(piece for task in tasks for piece in task.sources))
        complete = [replace(task, dead=select_dead(dead, task.sources)) for task in tasks]
        return merge_all(self.writer.name, complete, self.writer.runtime)

    def write_partitions(self, arranged: Sequence[Arrangement], how: PieceOrigin, next_run: int) -> WrittenPartitions:
        """Write the files of some arrangements together, and return the resulting partitions."""
        tasks = [task for each in arranged for task in self._tasks(each, how)]
        results = iter(self.merged(tasks))
        partitions: list[Partition] = []
        merged: list[MergeResult] = []
        for each in arranged:
            written = [next(results) for _ in each.jobs]
            merged += written
            done = each.finished([m.pieces for m in written], next_run, self.files.places)
            next_run += sum(isinstance(run, PlannedRun) for run in each.waiting)
            partitions.append(replace(done, bytes_written=done.bytes_written + sum(m.bytes for m in written)))
        return WrittenPartitions(partitions, merged, tasks, next_run)

    def _tasks(self, arranged: Arrangement, how: PieceOrigin) -> list[PieceMergeTask]:
        settled = [
            self.task(work, how, RowGroupShape.CHUNKS if work.chunks else RowGroupShape.SPLIT, self.most)
            for work in arranged.settled_jobs
        ]
        # Small row groups: readers skip those whose rows were all merged into settled pieces.
        late = [self.task(work, how, RowGroupShape.CHUNKS, max(1, self.most // 4)) for work in arranged.late_jobs]
        return settled + late

    def published(self, change: RootChange) -> WriterState | None:
        """Publish a change: the next state, or None if another writer swapped the root first."""
        after = publish(self.objects, self.root, change)
        if self.objects.dataset.read_head() is None:  # a drop may have removed all objects before this root was stored
            raise UnknownDataset(
                f"dataset {self.writer.name!r} was dropped meanwhile",
                hint="nothing to do; create the dataset again if you need it",
                name=self.writer.name,
            )
        if after is None:
            return None
        self.writer.kept.root = after
        return replace(self, root=after)


@dataclass(frozen=True)
class WrittenPartitions:
    """The resulting partitions after their files were written."""

    partitions: list[Partition]
    merged: list[MergeResult]
    tasks: list[PieceMergeTask]
    next_run: int

    @property
    def bytes(self) -> int:
        return sum(m.bytes for m in self.merged)

    @property
    def rows(self) -> int:
        return sum(m.rows for m in self.merged)

    @property
    def files(self) -> int:
        """The number of written files; small jobs share files."""
        return len({p.file for m in self.merged for p in m.pieces})
