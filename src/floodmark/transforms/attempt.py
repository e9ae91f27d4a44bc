"""One attempt of a run: waves of keys are computed and committed, until another writer commits first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

from floodmark.derive.commit import describe_column_changes, evolve_layout
from floodmark.derive.inputs import LakeLike
from floodmark.derive.positions import NO_POSITION
from floodmark.engine.progress import Progress
from floodmark.engine.rounds import TaskRunner
from floodmark.errors import BadResult, MissingColumns, TypeMismatch, UndecidedColumn
from floodmark.functions.on_error import explain_refusal
from floodmark.functions.step_result import OutputShape
from floodmark.ledger.commit import Commit
from floodmark.storage.arrays import Hashes
from floodmark.storage.scratch import staging_area
from floodmark.transforms.chunk_results import StoredChunk, with_known_columns
from floodmark.transforms.commit import Publisher, StepDeclaration
from floodmark.transforms.failed_keys import failed_column, failed_hashes, is_stale
from floodmark.transforms.meta_entries import RunInfo
from floodmark.transforms.outputs import shape_of
from floodmark.transforms.rounds import WaveResults, compute
from floodmark.transforms.run_scope import ChangedScope, RunScope
from floodmark.transforms.snapshot import StepSnapshot
from floodmark.transforms.step import RunTally
from floodmark.transforms.stored_results import ChunkStore
from floodmark.transforms.task import TransformWork, Unit
from floodmark.transforms.waves import Wave, Waves
from floodmark.transforms.work_units import ScratchDir

_MS = 10**6


@dataclass
class RunAttempt:
    """One try of a run, with one snapshot. After `CommitConflict` or `InputMoved` the run needs a new snapshot."""

    lake: LakeLike
    step_snapshot: StepSnapshot
    scope: RunScope
    runner: TaskRunner
    tally: RunTally

    @cached_property
    def info(self) -> RunInfo:
        return RunInfo(self.tally.run, self.lake.runtime.clock() // _MS, self.step_snapshot.last_offsets)

    @cached_property
    def publisher(self) -> Publisher:
        is_asked = not isinstance(self.scope, ChangedScope)
        return Publisher(
            self.step_snapshot, self.lake.runtime, self.info, self.step_snapshot.stale is not None, is_asked
        )

    @property
    def has_lost_race(self) -> bool:
        """Whether another writer has committed, and may have removed stored results."""
        return any(snapshot.has_moved for snapshot in self.publisher.snapshots)

    def run(self) -> Mapping[str, int]:
        """Process the keys of the scope; returns the positions afterwards, by dataset id."""
        step_snapshot, runtime, publisher = self.step_snapshot, self.lake.runtime, self.publisher
        shapes = self._shapes()
        store = ChunkStore(step_snapshot.primary.objects, step_snapshot.version, step_snapshot.newest)
        found: Sequence[StoredChunk] | None = None
        held: list[WaveResults] = []  # too many keys have failed: a later wave decides whether they are committed
        # If a wave leaves the type of a column open, it is committed with the next one, which may have a value.
        waiting: Sequence[Unit] = ()
        problem: UndecidedColumn | None = None
        progress = runtime.progress()
        with ExitStack() as resources:
            folder = resources.enter_context(staging_area(step_snapshot.primary.objects.store))
            room = ScratchDir(folder, step_snapshot.primary.objects)
            resources.callback(room.clear)
            for planned in Waves(step_snapshot, self.scope, self.info.process_ts, self.runner).run(room):
                wave = replace(planned, units=[*waiting, *planned.units])
                self.tally.set_unchanged(wave.unchanged)
                computed = None
                if wave.units:
                    if found is None:
                        shapes = self._with_stored_columns(shapes, store)
                        found = store.found(shapes, step_snapshot.has_records)
                    progress.start(f"running {step_snapshot.step.name}", sum(unit.rows for unit in wave.units))
                    try:
                        computed = self._compute(wave, shapes, store, found, progress)
                    except UndecidedColumn as error:
                        waiting, problem, found = wave.units, error, None  # list its stored results again
                        continue
                    finally:
                        progress.finish()
                    waiting, problem = (), None
                    shapes, found = computed.outputs, computed.left
                if computed is not None:
                    held.append(computed)
                    self._newly_tried.add(computed.stored)
                if self._newly_tried.problem is not None or not self._changes_anything(wave, held):
                    continue
                stored = [s for results in held for s in results.stored]
                watermark = step_snapshot.watermark if wave.is_complete else None
                try:
                    commits = publisher.commit(
                        stored,
                        shapes,
                        wave.positions,
                        watermark,
                        self.tally.seconds,
                        progress,
                        is_complete=wave.is_complete,
                    )
                finally:
                    progress.finish()
                self._count(held, commits)
                self._note_columns(shapes)
                held = []
                store.discard(stored)
            if problem is not None:
                raise problem
            if held:
                self._refuse(held, store, progress)
            elif self.scope.is_whole and publisher.has_committed:
                store.clear()
        return publisher.meta.positions

    def _shapes(self) -> tuple[OutputShape, ...]:
        """The outputs as they are, without the columns that this version does not return."""
        step_snapshot = self.step_snapshot
        shapes = tuple(shape_of(output, step_snapshot.keys) for output in step_snapshot.outputs)
        if step_snapshot.stale is not None or step_snapshot.primary.layout is None:
            return shapes
        declared = StepDeclaration.named(step_snapshot.primary.objects, step_snapshot.version)
        absent = {} if declared is None else declared.absent
        return tuple(replace(shape, absent=frozenset(absent.get(shape.name, ()))) for shape in shapes)

    def _note_columns(self, shapes: Sequence[OutputShape]) -> None:
        """Report the columns that are new in an output, and those that this version is the first not to return."""
        for output, shape, before in zip(self.step_snapshot.outputs, shapes, self._shapes(), strict=True):
            if output.snapshot is not None and shape.layout is not None:
                returned = [name for name in shape.layout.data.names if name not in shape.absent - before.absent]
                changes = describe_column_changes(output.name, output.snapshot.layout, returned)
                self.tally.column_changes.update(dict.fromkeys(changes))

    def _refuse(self, held: Sequence[WaveResults], store: ChunkStore, progress: Progress) -> None:
        """Commit only the failures; the next run uses the stored results of the other keys."""
        stored = [s for results in held for s in results.stored]
        first = self.publisher.failures(stored).slice(0, 1)
        what = ": ".join(failed_column(first, name)[0].as_py() for name in ("type", "message"))
        problem = f"{self._newly_tried.problem}; first error: {what}"
        try:
            self.publisher.refuse(stored, problem, self.tally.seconds, progress)
        finally:
            progress.finish()
        self.tally.problem = problem
        self._count([replace(results, stored=tuple(s.without_gone() for s in results.stored)) for results in held], [])
        store.discard([s for s in stored if s.failed == s.keys])

    @cached_property
    def _newly_tried(self) -> NewlyTried:
        known = self.step_snapshot.meta.of_version(self.step_snapshot.version).failed()
        return NewlyTried(failed_hashes(known), self.step_snapshot.step.max_failed)

    def _count(self, computed: Sequence[WaveResults], commits: Sequence[Commit]) -> None:
        self.tally.add(commits)
        for one in computed:
            failures = self.publisher.failures(one.stored) if one.failed else None
            skipped = 0 if failures is None else int((~is_stale(failures)).sum())
            self.tally.add_keys(one.keys, one.failed, skipped, one.called, one.reused)

    def _compute(
        self,
        wave: Wave,
        shapes: tuple[OutputShape, ...],
        store: ChunkStore,
        found: Sequence[StoredChunk],
        progress: Progress,
    ) -> WaveResults:
        work = self._work(wave, shapes, store)
        try:
            return compute(work, wave.units, found, self.runner, progress)
        except BadResult:
            if all(shape.layout is None for shape in shapes):
                raise
            # A new version of the function may return other columns. Any version passes new columns of inputs on.
            grown = self._learn_other_columns(work, wave.units)
            if grown == shapes or (self.step_snapshot.stale is None and not self._passes_on(shapes, grown)):
                raise
            return compute(replace(work, outputs=grown), wave.units, (), self.runner, progress)

    def _work(self, wave: Wave, shapes: tuple[OutputShape, ...], store: ChunkStore) -> TransformWork:
        step_snapshot, step = self.step_snapshot, self.step_snapshot.step
        return TransformWork(
            store=store,
            shape=step_snapshot.required_shape,
            inputs=tuple(given.task_input for given in step_snapshot.inputs),
            outputs=shapes,
            function=step.function,
            on_error=step.on_error,
            chunk_size=1 if any(shape.adds_keys for shape in shapes) else step.chunk_size,
            attempted=step_snapshot.meta.of_version(step_snapshot.version),
            checked=wave.checked,
            now_ms=self.info.process_ts,
            target_seconds=self.lake.runtime.checkpoint_seconds,
        )

    def _with_stored_columns(self, shapes: tuple[OutputShape, ...], store: ChunkStore) -> tuple[OutputShape, ...]:
        """The outputs with the columns of results that an earlier attempt at this new version has stored."""
        if self.step_snapshot.stale is None or all(shape.layout is None for shape in shapes):
            return shapes
        learning = _without_columns(shapes)
        try:
            found = store.found(learning, self.step_snapshot.has_records)
            return _evolve(shapes, with_known_columns(learning, found))
        except (MissingColumns, TypeMismatch):
            return shapes  # the stored results do not fit the outputs

    def _passes_on(self, shapes: Sequence[OutputShape], grown: Sequence[OutputShape]) -> bool:
        """Whether the outputs only have more columns, and all of them are columns of inputs."""
        of_inputs = {name for given in self.step_snapshot.required_shape.inputs for name in given.columns.names}
        return all(
            new.absent == known.absent and _names(new) - _names(known) <= of_inputs
            for known, new in zip(shapes, grown, strict=True)
        )

    def _learn_other_columns(self, work: TransformWork, units: Sequence[Unit]) -> tuple[OutputShape, ...]:
        """The outputs with the columns that the function now returns for a few keys, and those that it does not."""
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
                    return _evolve(work.outputs, learnt.outputs)
                break
        if problem is not None:
            raise problem
        return work.outputs

    def _changes_anything(self, wave: Wave, computed: Sequence[WaveResults]) -> bool:
        """Whether a commit changes anything: keys, positions, the watermark, or the version."""
        publisher = self.publisher
        if publisher.replaces_all or any(one.keys for one in computed):
            return True
        if wave.is_complete and (self.step_snapshot.lost or publisher.meta.manifest.has_lost):
            return True
        before = publisher.meta.positions
        moved = [name for name, at in wave.positions.items() if before.get(name, NO_POSITION) != at]
        if any(self.step_snapshot.has_news(name, wave.positions[name]) for name in moved):
            return True
        return wave.is_complete and self.step_snapshot.watermark != self.step_snapshot.primary.state.watermark


@dataclass
class NewlyTried:
    """The keys that a run tried and for which no earlier run of the version had failed, and how many of them failed.

    Skipped keys count as tried, but not as failed.
    """

    known: Hashes
    max_failed: float | None
    tried: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)

    def add(self, stored: Sequence[StoredChunk]) -> None:
        """Count the keys of some results."""
        for s in stored:
            self.tried += self._new(s.called.read()) if s.called is not None and len(self.known) else s.keys
            if (failures := s.failed_table()) is not None:
                self.failed += self._new(failed_hashes(failures).take(is_stale(failures)))

    @property
    def problem(self) -> str | None:
        """Why the run is refused; None if it is not."""
        return explain_refusal(self.tried, self.failed, self.max_failed, "key")

    def _new(self, hashes: Hashes) -> int:
        return int((~hashes.among(self.known)).sum())


def _without_columns(shapes: Sequence[OutputShape]) -> tuple[OutputShape, ...]:
    return tuple(replace(shape, layout=None) for shape in shapes)


def _evolve(shapes: Sequence[OutputShape], learnt: Sequence[OutputShape]) -> tuple[OutputShape, ...]:
    """The outputs with the learnt columns added to their own; columns that the learnt ones lack are absent.

    `MissingColumns` if such a column must have a value.
    """
    evolved = []
    for known, new in zip(shapes, learnt, strict=True):
        if known.layout is None or new.layout is None:
            evolved.append(known)
            continue
        layout = evolve_layout(known.name, known.layout, new.layout.data)[0]
        evolved.append(replace(known, layout=layout, absent=frozenset(_names(known) - _names(new))))
    return tuple(evolved)


def _names(shape: OutputShape) -> set[str]:
    return set() if shape.layout is None else set(shape.layout.data.names)
