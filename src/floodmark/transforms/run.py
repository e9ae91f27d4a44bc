"""Run a step: take a snapshot, choose keys, compute, commit. Start reading here.

The snapshot has the heads of all inputs and outputs before anything is read. Keys are processed in waves, in the order
of their changes. Tasks on workers compute a wave, and one commit publishes its results and positions (`RunAttempt`).
The next run uses the stored results of a killed one. If another writer commits first, the run starts again with a new
snapshot and uses the stored results that are still valid.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from floodmark.derive.inputs import LakeLike
from floodmark.derive.lost_records import report_lost_records
from floodmark.derive.run import Derivation, run_derivation, take_dataset_turn
from floodmark.engine.rounds import TaskRunner
from floodmark.engine.task import NotShippable
from floodmark.transforms.meta_entries import RunInfo
from floodmark.transforms.run_scope import ChangedScope, FailedScope, RequestedScope, RunScope, check_scope
from floodmark.transforms.snapshot import LOST, RESET, StepSnapshot, load_meta_or_lost, snapshot_step
from floodmark.transforms.step import RunReport, RunTally

if TYPE_CHECKING:
    from floodmark.transforms.attempt import RunAttempt
    from floodmark.transforms.batch_transform import BatchTransform


_MS = 10**6

R = TypeVar("R")


def run(step: BatchTransform, lake: LakeLike, scope: RunScope) -> RunReport:
    """Process the keys in this scope. If there is nothing to do, it reads little and writes nothing."""
    return run_derivation(_Run(step, lake, scope))


def reset(step: BatchTransform, lake: LakeLike) -> None:
    """Forget which keys were processed, and remove stored results. The outputs stay until the next run.

    It also works if the meta is damaged.
    """
    run_derivation(_Reset(step, lake))


@dataclass
class _StepDerivation(Derivation[StepSnapshot, R]):
    """The common part of a run and a reset."""

    step: BatchTransform
    lake: LakeLike

    def turn(self, state: StepSnapshot) -> AbstractContextManager[None]:
        other = f"another run of {self.step.name}"
        return take_dataset_turn(state.primary.objects, other, self.lake.runtime.progress())

    def moved(self, state: StepSnapshot) -> bool:
        return any(output.snapshot.has_moved for output in state.outputs if output.snapshot is not None)


@dataclass
class _Run(_StepDerivation[RunReport]):
    scope: RunScope
    tally: RunTally = field(init=False)
    current: RunAttempt | None = field(default=None, init=False)
    reported: set[str] = field(default_factory=set, init=False)  # of inputs that lost records

    def __post_init__(self) -> None:
        self.tally = RunTally(self.lake.runtime.random_bytes(16).hex(), time.monotonic())

    def take_snapshot(self) -> StepSnapshot:
        step_snapshot = snapshot_step(self.step, self.lake)
        check_scope(self.scope, step_snapshot)
        return step_snapshot

    def idle(self, state: StepSnapshot) -> RunReport | None:
        if not _has_nothing_to_do(state, self.scope, self.lake.runtime.clock() // _MS):
            return None
        positions = state.named(state.positions)
        if self.tally.counts:
            return self.tally.report(self.step.name, positions)
        return RunReport(self.step.name, positions=positions, seconds=self.tally.seconds)

    def prepare(self, state: StepSnapshot) -> bool:
        return state.create_missing_outputs(self.lake)

    def attempt(self, state: StepSnapshot) -> RunReport:
        from floodmark.transforms.attempt import RunAttempt  # heavy: an idle run does without it

        runner = TaskRunner(self.lake.runtime.session)
        if new := [one for one in state.lost if str(one) not in self.reported]:
            again = "every key is" if state.stale is not None else "the keys that they may have changed are"
            messages = report_lost_records(self.step.name, new, f"{again} processed again")
            self.reported.update(map(str, new))
            self.tally.restored.update(dict.fromkeys(messages))
        self.current = RunAttempt(self.lake, state, self.scope, runner, self.tally)
        try:
            return self.tally.report(self.step.name, state.named(self.current.run()))
        except NotShippable:
            self.step.function.check_shippable()  # raises a more precise error
            raise

    def moved(self, state: StepSnapshot) -> bool:
        if self.current is not None and self.current.step_snapshot is state:
            return self.current.has_lost_race  # this run's own commits do not count
        return super().moved(state)

    def inputs_moved(self, state: StepSnapshot) -> bool:
        return any(given.snapshot.has_moved for given in state.inputs)


@dataclass
class _Reset(_StepDerivation[bool]):
    def take_snapshot(self) -> StepSnapshot:
        return snapshot_step(self.step, self.lake, load_meta_or_lost)  # a reset also works with damaged meta

    def idle(self, state: StepSnapshot) -> bool | None:
        return True if state.shape is None or state.outputs[0].snapshot is None else None

    def attempt(self, state: StepSnapshot) -> bool:
        from floodmark.transforms.stored_results import ChunkStore

        version, objects = state.meta.version, state.primary.objects
        # Listed before the commit: another run that has written files by now will lose the race to commit them.
        useless = [info.key for info in objects.checkpoints()] if version == LOST else []
        if version is not None and not version.startswith(RESET):
            _forget(state, self.lake)
        for key in useless:
            objects.store.delete(key)
        # After the commit: without locks another run may be active, and sees by this commit that it lost the race.
        ChunkStore(objects, state.version).clear()
        return True


def _forget(step_snapshot: StepSnapshot, lake: LakeLike) -> None:
    from floodmark.transforms.commit import Publisher

    run = RunInfo(lake.runtime.random_bytes(16).hex(), lake.runtime.clock() // _MS, {})
    progress = lake.runtime.progress()
    try:
        first = replace(
            step_snapshot, outputs=step_snapshot.outputs[:1]
        )  # only the first output has meta; others may not exist
        Publisher(first, lake.runtime, run, replaces_all=True).forget(f"{RESET}{step_snapshot.version}", progress)
    finally:
        progress.finish()


def _has_nothing_to_do(step_snapshot: StepSnapshot, scope: RunScope, now_ms: int) -> bool:
    """Whether there is nothing to do, as far as positions and heads show."""
    match scope:
        case RequestedScope():
            return step_snapshot.shape is None
        case FailedScope():
            return step_snapshot.shape is None or step_snapshot.meta.manifest.failed is None
        case ChangedScope():
            trusted = step_snapshot.step.use_offset_optimization or step_snapshot.shape is None
            return trusted and step_snapshot.has_nothing_to_do(now_ms)
