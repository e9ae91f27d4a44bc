"""What a run would do and why: per input from where to where, how many keys, and how they would be found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.engine.rounds import Runner
from floodmark.transform.changed.changelist import Changelist, advice
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.changed.pending import NOT_PENDING
from floodmark.transform.changed.shape import Kind
from floodmark.transform.lakes import LakeLike
from floodmark.transform.pinned import PinnedStep, pin_step
from floodmark.transform.wanted import Changed
from floodmark.transform.waves import Waves

if TYPE_CHECKING:
    from floodmark.transform.batch_transform import BatchTransform

_MS = 10**6


@dataclass(frozen=True)
class InputPlan:
    """An input: records after `previous` up to and with `head` are new, and `keys` of those pending changed in them.

    `reads` says what of it is read to find the keys. Where everything is stale, all keys count for every input.
    """

    name: str
    previous: int
    head: int
    records: int
    keys: int
    reads: str


@dataclass(frozen=True)
class TransformPlan:
    """What a run would process, and why.

    `kind` is the physical plan: map (records as they lie there), keyed (the rows of changed keys) or cross.
    `changelist` is 2 where only records beyond the positions are read and 1 where all are. `stale` says why everything
    is processed once more, if so. `advice` says when reading beyond the positions does not pay.
    """

    step: str
    inputs: tuple[InputPlan, ...]
    keys: int
    new: int
    changed: int
    failed: int
    kind: Kind | None
    changelist: int
    stale: str | None
    advice: str | None

    @property
    def nothing_to_do(self) -> bool:
        """Whether no key would be processed."""
        return self.keys == 0


def plan(step: BatchTransform, lake: LakeLike) -> TransformPlan:
    """What `run` would do now."""
    pinned = pin_step(step, lake)
    pinned.check_positions()
    version = 2 if step.use_offset_optimization else 1
    found = _pending(pinned, lake)
    if found is None:
        inputs = tuple(_input(pinned, given, 0, version) for given in pinned.inputs)
        return TransformPlan(step.name, inputs, 0, 0, 0, 0, None, version, pinned.stale, None)
    why = {row["values"]: row["counts"] for row in pc.value_counts(found.pending.why).to_pylist()}
    pending = np.count_nonzero(found.pending.first != NOT_PENDING, axis=0)
    if pinned.stale is not None:
        pending[:] = len(found)
    known = 0 if pinned.stale is not None else pinned.meta.keys
    return TransformPlan(
        step=step.name,
        inputs=tuple(_input(pinned, g, int(pending[n]), version) for n, g in enumerate(pinned.inputs)),
        keys=len(found),
        new=why.get("new", 0),
        changed=why.get("changed", 0) + why.get("stale", 0),
        failed=why.get("failed", 0),
        kind=pinned.required_shape.kind,
        changelist=version,
        stale=pinned.stale,
        advice=advice(known, len(found), max(known, len(found))) if version == 2 and len(found) else None,
    )


def pending(step: BatchTransform, lake: LakeLike, use_offset_optimization: bool | None) -> pa.Table:
    """The keys that `run` would process, in order; by the other changelist if asked for, which has the same keys."""
    pinned = pin_step(step, lake)
    pinned.check_positions()
    if use_offset_optimization is not None:
        pinned = replace(pinned, step=step.looking(use_offset_optimization))
    found = _pending(pinned, lake)
    return pa.table({}) if found is None else found.table


def _pending(pinned: PinnedStep, lake: LakeLike) -> Changelist | None:
    if pinned.shape is None:
        return None
    now_ms = lake.runtime.clock() // _MS
    return Waves(pinned, Changed(), now_ms, Runner(lake.runtime.session)).changelist


def _input(pinned: PinnedStep, given: PinnedInput, keys: int, version: int) -> InputPlan:
    previous = pinned.positions[given.dataset_id]
    start = max(previous + 1, given.purged_before)
    records = max(0, given.end - start)
    if pinned.stale is not None or version == 1:
        reads = f"all {given.end - given.purged_before:,} records"
    elif records == 0:
        reads = "nothing"
    else:
        reads = f"{records:,} records, {start} to {given.head}"
    return InputPlan(given.name, previous, given.head, records, keys, reads)
