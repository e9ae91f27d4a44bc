"""Running a step: pin, choose keys, compute, commit. The place to start reading.

Heads are pinned before anything is read. Keys are processed in waves, in the order of their changes; each wave is
computed by tasks on workers and committed at once with the positions it has reached (`attempt`). Results of a run that
was killed are found by the next one. A run that loses a race plans again, and takes from its checkpoints what still
holds. What is needed only where there is something to do is imported only then.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from floodmark.engine.shipping import NotShippable
from floodmark.ledger.errors import CommitConflict
from floodmark.storage.errors import StorageError
from floodmark.transform.errors import InputMoved
from floodmark.transform.lakes import LakeLike
from floodmark.transform.meta import RunInfo
from floodmark.transform.pinned import LOST, RESET, PinnedStep, pin_step, whatever_is_left
from floodmark.transform.report import RunReport, Tally
from floodmark.transform.turns import turn
from floodmark.transform.wanted import Asked, Changed, Failed, Wanted, check_wanted

if TYPE_CHECKING:
    from floodmark.transform.batch_transform import BatchTransform

_MS = 10**6

_TRIES = 20
"""How often a run plans again, when somebody else commits or replaces what it was reading."""


def run(step: BatchTransform, lake: LakeLike, wanted: Wanted) -> RunReport:
    """Process what is wanted; where there is nothing to do, little is read and nothing written."""
    began = time.monotonic()
    pinned = pin_step(step, lake)
    check_wanted(wanted, pinned)
    if _is_nothing(pinned, wanted, lake.runtime.clock() // _MS):
        return RunReport(step.name, positions=pinned.named(pinned.positions), seconds=time.monotonic() - began)
    from floodmark.compute.runner import Runner
    from floodmark.transform.attempt import Attempt

    pinned = pinned.with_outputs(lake)
    runner, tally = Runner(lake.runtime.session), Tally(lake.runtime.random_bytes(16).hex(), began)
    problem: Exception
    unmoved = 0
    with turn(pinned.primary.objects, f"another run of {step.name}", lake.runtime.progress()):
        for _ in range(_TRIES):
            pinned = pin_step(step, lake)
            check_wanted(wanted, pinned)
            pinned = pinned.with_outputs(lake)
            attempt = Attempt(lake, pinned, wanted, runner, tally)
            try:
                return tally.report(step.name, pinned.named(attempt.run()))
            except CommitConflict as error:
                problem = error  # nothing of this wave was committed: plan again with what there is now
            except InputMoved as error:
                unmoved += attempt.inputs_stand
                if unmoved > 1:
                    raise  # an index is mended once; what is damaged stays so
                problem = error
            except NotShippable:
                step.function.check_shippable()  # says more
                raise
            except (StorageError, OSError) as error:
                if not attempt.is_outrun:
                    raise
                problem = error
    raise problem


def reset(step: BatchTransform, lake: LakeLike) -> None:
    """Forget what was processed, and stored results with it; outputs stay as they are until the next run.

    What was noted may be damaged: it is not needed any more.
    """
    from floodmark.transform.tasks.checkpoints import ChunkStore

    pinned = pin_step(step, lake, whatever_is_left)
    if pinned.shape is None or pinned.outputs[0].snapshot is None:
        return None
    with turn(pinned.primary.objects, f"another run of {step.name}", lake.runtime.progress()):
        problem: CommitConflict
        for _ in range(_TRIES):
            pinned = pin_step(step, lake, whatever_is_left)
            version, objects = pinned.meta.version, pinned.primary.objects
            # Listed before the commit: whoever puts files for a commit of his own by now will come too late for it.
            useless = [info.key for info in objects.checkpoints()] if version == LOST else []
            try:
                if version is not None and not version.startswith(RESET):
                    _forget(pinned, lake)
                for key in useless:
                    objects.store.delete(key)
                # Not before: a run that is under way where nobody waits for turns sees by the commit that it is late.
                return ChunkStore(pinned.primary.objects, pinned.version).clear()
            except CommitConflict as error:
                problem = error
        raise problem


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
