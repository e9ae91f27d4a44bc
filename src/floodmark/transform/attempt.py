"""One attempt at a run: wave by wave, keys are processed and committed, from one pinned state on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

from floodmark.engine import Progress
from floodmark.engine.rounds import Runner
from floodmark.ledger.commit import Commit
from floodmark.ledger.errors import UnfitResult
from floodmark.ledger.merge.derive import evolved_layout
from floodmark.storage.scratch import staging_area
from floodmark.transform.errors import BadResult, UndecidedColumn
from floodmark.transform.functions.returned import OutputShape
from floodmark.transform.lakes import LakeLike
from floodmark.transform.meta import RunInfo, TransformMeta
from floodmark.transform.output import shape_of
from floodmark.transform.pinned import PinnedStep
from floodmark.transform.publish import Publisher
from floodmark.transform.report import Tally
from floodmark.transform.rows.room import Room
from floodmark.transform.tasks.checkpoints import ChunkStore, Stored
from floodmark.transform.tasks.columns import known_columns
from floodmark.transform.tasks.rounds import Computed, compute
from floodmark.transform.tasks.work import Unit, Work
from floodmark.transform.wanted import Changed, Wanted
from floodmark.transform.waves import Wave, Waves

_MS = 10**6


@dataclass
class Attempt:
    """What one pinned state comes to. `CommitConflict` and `InputMoved` say that another one is needed."""

    lake: LakeLike
    pinned: PinnedStep
    wanted: Wanted
    runner: Runner
    tally: Tally

    @cached_property
    def info(self) -> RunInfo:
        return RunInfo(self.tally.run, self.lake.runtime.clock() // _MS, self.pinned.heads)

    @cached_property
    def publisher(self) -> Publisher:
        is_asked = not isinstance(self.wanted, Changed)
        return Publisher(self.pinned, self.lake.runtime, self.info, self.pinned.stale is not None, is_asked)

    @property
    def is_outrun(self) -> bool:
        """Whether somebody else has committed since, and may have removed what was stored."""
        return any(snapshot.has_moved for snapshot in self.publisher.snapshots)

    def run(self) -> Mapping[str, int]:
        """Process what is wanted; the positions after it, by dataset id."""
        pinned, runtime, publisher = self.pinned, self.lake.runtime, self.publisher
        shapes: tuple[OutputShape, ...] = tuple(shape_of(output, pinned.keys) for output in pinned.outputs)
        store = ChunkStore(pinned.primary.objects, pinned.version)
        found: Sequence[Stored] | None = None
        # A wave that leaves the type of a column open is committed with the next one, which may have a value in it.
        waiting: Sequence[Unit] = ()
        problem: UndecidedColumn | None = None
        progress = runtime.progress()
        with ExitStack() as held:
            folder = held.enter_context(staging_area(pinned.primary.objects.store))
            room = Room(folder, pinned.primary.objects)
            held.callback(room.clear)
            for planned in Waves(pinned, self.wanted, self.info.process_ts, self.runner).run(room):
                wave = replace(planned, units=[*waiting, *planned.units])
                computed = None
                if wave.units:
                    if found is None:
                        shapes = self._with_found_columns(shapes, store)
                        found = store.found(shapes)
                    progress.start(f"running {pinned.step.name}", sum(unit.rows for unit in wave.units))
                    try:
                        computed = self._computed(wave, shapes, store, found, progress)
                    except UndecidedColumn as error:
                        waiting, problem, found = wave.units, error, None  # its results are found again
                        continue
                    finally:
                        progress.finish()
                    waiting, problem = (), None
                    shapes, found = computed.outputs, computed.left
                if not self._is_worth(wave, computed):
                    continue
                stored = () if computed is None else computed.stored
                watermark = pinned.watermark if wave.is_complete else None
                told = (wave.positions, watermark, self.tally.seconds, progress)
                try:
                    commits = publisher.commit(stored, shapes, *told)
                finally:
                    progress.finish()
                self._count(computed, commits)
                store.discard(stored)
            if problem is not None:
                raise problem
            if self.wanted.is_whole and publisher.has_committed:
                store.clear()
        return publisher.meta.positions

    def _count(self, computed: Computed | None, commits: Sequence[Commit]) -> None:
        self.tally.add(commits)
        if computed is not None:
            self.tally.add_keys(computed.keys, computed.failed, computed.called, computed.reused)

    def _computed(
        self,
        wave: Wave,
        shapes: tuple[OutputShape, ...],
        store: ChunkStore,
        found: Sequence[Stored],
        progress: Progress,
    ) -> Computed:
        work = self._work(wave, shapes, store)
        try:
            return compute(work, wave.units, found, self.runner, progress)
        except BadResult:
            if self.pinned.stale is None or all(shape.layout is None for shape in shapes):
                raise
            # Another function may return more columns than the one before it.
            grown = self._grown(work, wave.units)
            if grown == shapes:
                raise
            return compute(replace(work, outputs=grown), wave.units, (), self.runner, progress)

    def _work(self, wave: Wave, shapes: tuple[OutputShape, ...], store: ChunkStore) -> Work:
        pinned, step = self.pinned, self.pinned.step
        nothing_known = TransformMeta.load(pinned.primary.objects, None)
        return Work(
            store=store,
            shape=pinned.required_shape,
            inputs=tuple(given.for_tasks for given in pinned.inputs),
            outputs=shapes,
            function=step.function,
            on_error=step.on_error,
            chunk_size=step.chunk_size,
            attempted=pinned.meta if pinned.stale is None else nothing_known,
            checked=wave.checked,
            now_ms=self.info.process_ts,
            target_seconds=self.lake.runtime.checkpoint_seconds,
        )

    def _with_found_columns(self, shapes: tuple[OutputShape, ...], store: ChunkStore) -> tuple[OutputShape, ...]:
        """The outputs with the columns that an earlier attempt at this new version has stored results with."""
        if self.pinned.stale is None or all(shape.layout is None for shape in shapes):
            return shapes
        learning = _without_columns(shapes)
        try:
            return _evolved(shapes, known_columns(learning, store.found(learning)))
        except UnfitResult:
            return shapes  # they are of no use

    def _grown(self, work: Work, units: Sequence[Unit]) -> tuple[OutputShape, ...]:
        """The outputs with the columns that a new function returns for a few keys, added to those they have."""
        learning = replace(work, outputs=_without_columns(work.outputs))
        problem: UndecidedColumn | None = None
        for first in units:
            unit = first
            while unit.rows > work.chunk_size and (parts := unit.halves()) is not None:
                unit = parts[0]
            for some in (unit, first):
                try:
                    learnt = compute(learning, [some], (), self.runner, self.lake.runtime.progress())
                except UndecidedColumn as error:
                    problem = error
                    continue  # more keys may have a value
                problem = None
                work.store.discard(learnt.stored)
                if any(shape.layout is not None for shape in learnt.outputs):
                    return _evolved(work.outputs, learnt.outputs)
                break
        if problem is not None:
            raise problem
        return work.outputs

    def _is_worth(self, wave: Wave, computed: Computed | None) -> bool:
        """Whether there is anything to say: keys, positions, the watermark, or a new version."""
        publisher = self.publisher
        if publisher.is_fresh or (computed is not None and computed.keys):
            return True
        if any(publisher.meta.positions.get(name, -1) != at for name, at in wave.positions.items()):
            return True
        return wave.is_complete and self.pinned.watermark != self.pinned.primary.state.watermark


def _without_columns(shapes: Sequence[OutputShape]) -> tuple[OutputShape, ...]:
    return tuple(replace(shape, layout=None) for shape in shapes)


def _evolved(shapes: Sequence[OutputShape], learnt: Sequence[OutputShape]) -> tuple[OutputShape, ...]:
    """The outputs with what was learnt added to the columns they have; `UnfitResult` when one is gone."""
    return tuple(
        known
        if known.layout is None or new.layout is None
        else replace(known, layout=evolved_layout(known.name, known.layout, new.layout.data)[0])
        for known, new in zip(shapes, learnt, strict=True)
    )
