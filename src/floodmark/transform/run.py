"""Running a step: pin, choose keys, compute, commit. The place to start reading.

Heads are pinned before anything is read. Keys are processed in waves, in the order of their changes; each wave is
computed by tasks on workers and committed at once with the positions it has reached (`attempt`). Results of a run that
was killed are found by the next one. A run that loses a race plans again, and takes from its checkpoints what still
holds. What is needed only where there is something to do is imported only then.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from floodmark.derive.run import Derivation
from floodmark.derive.run import run as derive
from floodmark.derive.turns import take_dataset_turn
from floodmark.engine.shipping import NotShippable
from floodmark.transform.lakes import LakeLike
from floodmark.transform.meta import RunInfo
from floodmark.transform.pinned import LOST, RESET, PinnedStep, pin_step, whatever_is_left
from floodmark.transform.report import RunReport, Tally
from floodmark.transform.wanted import Asked, Changed, Failed, Wanted, check_wanted

if TYPE_CHECKING:
    from floodmark.transform.attempt import Attempt
    from floodmark.transform.batch_transform import BatchTransform

_MS = 10**6

R = TypeVar("R")


def run(step: BatchTransform, lake: LakeLike, wanted: Wanted) -> RunReport:
    """Process what is wanted; where there is nothing to do, little is read and nothing written."""
    return derive(_Run(step, lake, wanted))


def reset(step: BatchTransform, lake: LakeLike) -> None:
    """Forget what was processed, and stored results with it; outputs stay as they are until the next run.

    What was noted may be damaged: it is not needed any more.
    """
    derive(_Reset(step, lake))


@dataclass
class _OnStep(Derivation[PinnedStep, R]):
    """What a run and a reset share: the turn of the step, and whether it has moved."""

    step: BatchTransform
    lake: LakeLike

    def turn(self, state: PinnedStep) -> AbstractContextManager[None]:
        other = f"another run of {self.step.name}"
        return take_dataset_turn(state.primary.objects, other, self.lake.runtime.progress())

    def moved(self, state: PinnedStep) -> bool:
        return any(output.snapshot.has_moved for output in state.outputs if output.snapshot is not None)


@dataclass
class _Run(_OnStep[RunReport]):
    wanted: Wanted
    tally: Tally = field(init=False)
    under_way: Attempt | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.lake.runtime.random_bytes(16).hex(), time.monotonic())

    def pin(self) -> PinnedStep:
        pinned = pin_step(self.step, self.lake)
        check_wanted(self.wanted, pinned)
        pinned.check_positions()
        return pinned

    def idle(self, state: PinnedStep) -> RunReport | None:
        if not _is_nothing(state, self.wanted, self.lake.runtime.clock() // _MS):
            return None
        positions = state.named(state.positions)
        if self.tally.counts:
            return self.tally.report(self.step.name, positions)
        return RunReport(self.step.name, positions=positions, seconds=self.tally.seconds)

    def prepare(self, state: PinnedStep) -> bool:
        return state.create_missing_outputs(self.lake)

    def attempt(self, state: PinnedStep) -> RunReport:
        from floodmark.engine.rounds import Runner
        from floodmark.transform.attempt import Attempt

        runner = Runner(self.lake.runtime.session)
        self.under_way = Attempt(self.lake, state, self.wanted, runner, self.tally)
        try:
            return self.tally.report(self.step.name, state.named(self.under_way.run()))
        except NotShippable:
            self.step.function.check_shippable()  # says more
            raise

    def moved(self, state: PinnedStep) -> bool:
        if self.under_way is not None and self.under_way.pinned is state:
            return self.under_way.is_outrun  # this run's own commits do not count
        return super().moved(state)

    def inputs_moved(self, state: PinnedStep) -> bool:
        return any(given.snapshot.has_moved for given in state.inputs)


@dataclass
class _Reset(_OnStep[bool]):
    def pin(self) -> PinnedStep:
        return pin_step(self.step, self.lake, whatever_is_left)

    def idle(self, state: PinnedStep) -> bool | None:
        return True if state.shape is None or state.outputs[0].snapshot is None else None

    def attempt(self, state: PinnedStep) -> bool:
        from floodmark.transform.tasks.checkpoints import ChunkStore

        version, objects = state.meta.version, state.primary.objects
        # Listed before the commit: whoever puts files for a commit of his own by now will come too late for it.
        useless = [info.key for info in objects.checkpoints()] if version == LOST else []
        if version is not None and not version.startswith(RESET):
            _forget(state, self.lake)
        for key in useless:
            objects.store.delete(key)
        # Not before: a run that is under way where nobody waits for turns sees by the commit that it is late.
        ChunkStore(objects, state.version).clear()
        return True


def _forget(pinned: PinnedStep, lake: LakeLike) -> None:
    from floodmark.transform.publish import Publisher

    run = RunInfo(lake.runtime.random_bytes(16).hex(), lake.runtime.clock() // _MS, {})
    progress = lake.runtime.progress()
    try:
        first = replace(pinned, outputs=pinned.outputs[:1])  # it alone has what is forgotten; others may be gone
        Publisher(first, lake.runtime, run, is_fresh=True).forget(f"{RESET}{pinned.version}", progress)
    finally:
        progress.finish()


def _is_nothing(pinned: PinnedStep, wanted: Wanted, now_ms: int) -> bool:
    """Whether positions and heads alone tell that there is nothing to do."""
    match wanted:
        case Asked():
            return pinned.shape is None
        case Failed():
            return pinned.shape is None or pinned.meta.manifest.failed is None
        case Changed():
            trusted = pinned.step.use_offset_optimization or pinned.shape is None
            return trusted and pinned.has_nothing_to_do(now_ms)
