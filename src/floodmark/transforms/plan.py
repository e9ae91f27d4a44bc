"""The plan of a step, its status, and its tables: pending keys, errors, offsets and meta. Nothing here writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.derive.inputs import InputSnapshot, LakeLike
from floodmark.derive.key_shape import PlanKind
from floodmark.derive.positions import NO_POSITION
from floodmark.engine.rounds import TaskRunner
from floodmark.functions.failures import empty_failed_keys
from floodmark.storage.arrays import Hashes
from floodmark.transforms.changelist import Changelist, advice, find_named_keys, sort_pending
from floodmark.transforms.failed_keys import failed_column, failed_hashes, failed_keys
from floodmark.transforms.live_keys import NOT_PENDING, KeySet, PendingKeys
from floodmark.transforms.run_scope import ChangedScope
from floodmark.transforms.snapshot import StepSnapshot, snapshot_step
from floodmark.transforms.step import InputStatus, LastRun, StepStatus
from floodmark.transforms.waves import Waves

if TYPE_CHECKING:
    from floodmark.transforms.batch_transform import BatchTransform


_MS = 10**6


@dataclass(frozen=True)
class InputPlan:
    """What a run would read of an input: the records after `previous` up to `head`, and the pending `keys` in them.

    `reads` describes the records that are read to find the keys. If everything is stale, `keys` counts all keys.
    `unchanged` counts keys that the run skips, because their new records differ only in columns that the step does not
    read (`InputSpec(columns=)`).
    An input without transform keys is passed whole to every call, so its changes make all keys pending.
    """

    name: str
    previous: int
    head: int
    records: int
    keys: int
    reads: str
    unchanged: int = 0


@dataclass(frozen=True)
class RunPlan:
    """What a run would process, and why.

    `kind` is the physical plan: map (ranges of records), keyed (the rows of changed keys) or cross (a cross join).
    `changelist` is 2 if only records beyond the positions are read, and 1 if all records are. `stale` is the reason if
    everything is processed again. `advice` is set if the offset optimization does not help.
    """

    step: str
    inputs: tuple[InputPlan, ...]
    keys: int
    new: int
    changed: int
    failed: int
    kind: PlanKind | None
    changelist: int
    stale: str | None
    advice: str | None
    restored: tuple[str, ...] = ()
    """For each input that was replaced by another copy of it, which records are lost."""

    @property
    def nothing_to_do(self) -> bool:
        """Whether no key would be processed."""
        return self.keys == 0


def plan(step: BatchTransform, lake: LakeLike) -> RunPlan:
    """What `run` would do now."""
    step_snapshot = snapshot_step(step, lake)
    version = 2 if step.use_offset_optimization else 1
    found = _pending(step_snapshot, lake)
    if found is None:
        inputs = tuple(_input(step_snapshot, number, 0, version) for number in range(len(step_snapshot.inputs)))
        return RunPlan(step.name, inputs, 0, 0, 0, 0, None, version, step_snapshot.stale, None)
    why = {row["values"]: row["counts"] for row in pc.value_counts(found.pending.why).to_pylist()}
    pending = np.count_nonzero(found.pending.first != NOT_PENDING, axis=0)
    if step_snapshot.stale is not None:
        pending[:] = len(found)
    known = 0 if step_snapshot.stale is not None else step_snapshot.meta.keys
    return RunPlan(
        step=step.name,
        inputs=tuple(
            _input(step_snapshot, n, int(pending[n]), version, found.unchanged[n] if found.unchanged else 0)
            for n in range(len(step_snapshot.inputs))
        ),
        keys=len(found),
        new=why.get("new", 0),
        changed=why.get("changed", 0) + why.get("stale", 0) + why.get("restored", 0),
        failed=why.get("failed", 0),
        kind=step_snapshot.required_shape.kind,
        changelist=version,
        stale=step_snapshot.stale,
        advice=advice(known, len(found), max(known, len(found))) if version == 2 and len(found) else None,
        restored=tuple(map(str, step_snapshot.lost)),
    )


def pending(step: BatchTransform, lake: LakeLike, use_offset_optimization: bool | None) -> pa.Table:
    """The keys that `run` would process, in order. Both changelists, with and without offset optimization, agree."""
    step_snapshot = snapshot_step(step, lake)
    if use_offset_optimization is not None:
        step_snapshot = replace(step_snapshot, step=step.looking(use_offset_optimization))
    found = _pending(step_snapshot, lake)
    return pa.table({}) if found is None else found.table


def _pending(step_snapshot: StepSnapshot, lake: LakeLike) -> Changelist | None:
    if step_snapshot.shape is None:
        return None
    now_ms = lake.runtime.clock() // _MS
    return Waves(step_snapshot, ChangedScope(), now_ms, TaskRunner(lake.runtime.session)).changelist


def _input(step_snapshot: StepSnapshot, number: int, keys: int, version: int, unchanged: int = 0) -> InputPlan:
    given = step_snapshot.inputs[number]
    previous = step_snapshot.positions[given.dataset_id]
    start = max(previous + 1, given.purged_before)
    records = given.unread(previous)
    if step_snapshot.stale is not None or version == 1:
        reads = f"all {given.end - given.purged_before:,} records"
    elif records == 0:
        reads = "nothing"
    else:
        reads = f"{records:,} records, {start} to {given.last_offset}"
    if step_snapshot.shape is not None and not step_snapshot.shape.inputs[number].part:
        reads += "; every call gets all rows"
    return InputPlan(given.name, previous, given.last_offset, records, keys, reads, unchanged)


# Status and tables

OFFSETS = pa.schema(
    [
        pa.field("transform", pa.string(), nullable=False),
        pa.field("input", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("time", pa.timestamp("ms", "UTC")),
    ]
)
"""The columns of the offset table. `offset` is null if the step has read no record of an input."""

_ERROR = ("type", "message", "attempts", "since", "last", "state", "due", "stale", "traceback")


def status(step: BatchTransform, lake: LakeLike) -> StepStatus:
    """How far a step is behind its inputs, its failed keys, and its last run. Reads no data."""
    step_snapshot = snapshot_step(step, lake)
    manifest = step_snapshot.meta.manifest
    failed = step_snapshot.meta.shown_for(step_snapshot.version).manifest.failed
    refused = (
        manifest.refused if manifest.refused is not None and manifest.refused.version == step_snapshot.version else None
    )
    last, problem = (manifest.last_run, "") if refused is None else (refused.run, refused.problem)
    return StepStatus(
        step=step.name,
        inputs=tuple(
            input_status(given, step_snapshot.positions)
            for given in {one.dataset_id: one for one in step_snapshot.inputs}.values()
        ),
        keys=max(manifest.keys, 0 if failed is None else failed.rows),
        failed=0 if failed is None else failed.retry,
        skipped=0 if failed is None else failed.skipped,
        exhausted=0 if failed is None else failed.exhausted,
        version=step.function.version,
        stale=step_snapshot.stale,
        last_run=None
        if last is None
        else LastRun(
            last.id, datetime.fromtimestamp(last.process_ts / 1000, UTC), last.keys, last.failed, last.seconds, problem
        ),
        showing_older=0 if failed is None else failed.stale,
        restored=tuple(map(str, step_snapshot.lost)),
    )


def errors(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """The keys whose last call failed: the transform keys, then the facts of the failure."""
    step_snapshot = snapshot_step(step, lake)
    failed = step_snapshot.meta.shown_for(step_snapshot.version).failed()
    if failed.num_rows == 0 and step_snapshot.shape is not None:
        failed = empty_failed_keys(step_snapshot.keys)
    keys = failed_keys(failed)
    columns = [*keys.columns, *(failed_column(failed, name) for name in _ERROR)]
    return pa.table(columns, names=[*keys.column_names, *_ERROR])


def offsets(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """The position in each input, and the commit time of its record."""
    step_snapshot = snapshot_step(step, lake)
    return offsets_table(step.name, step_snapshot.inputs, step_snapshot.positions)


def offsets_table(step: str, inputs: Sequence[InputSnapshot], positions: Mapping[str, int]) -> pa.Table:
    """A table of these positions (by dataset id), with the commit times of their records."""
    rows = []
    for given in {one.dataset_id: one for one in inputs}.values():
        offset = positions[given.dataset_id]
        at = given.snapshot.committed_at(offset)
        reached = (None, None) if offset == NO_POSITION else (offset, None if at is None else at // 10**6)
        rows.append(dict(zip(OFFSETS.names, (step, given.name, *reached), strict=True)))
    return pa.Table.from_pylist(rows, OFFSETS)


def meta(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """All processed keys in the order of their values, with the time and result of their last run.

    The meta has hashes of keys. The keys themselves are found in the inputs and outputs; a key is null if all records
    with it were purged.
    """
    step_snapshot = snapshot_step(step, lake)
    known = step_snapshot.meta.to_table()
    entries = Hashes(known.column("high").to_numpy(), known.column("low").to_numpy())
    failed = step_snapshot.meta.failed()
    messages = _messages(failed).take(pa.array(_positions_or_null(failed_hashes(failed), entries)))
    columns = [known.column(name) for name in ("process_ts", "is_success", "run")]
    names = ["process_ts", "is_success", "run", "error"]
    if step_snapshot.shape is None:
        return pa.table([*columns, messages], names=names)
    shape, runner = step_snapshot.shape, TaskRunner(lake.runtime.session)
    outputs = Waves(step_snapshot, ChangedScope(), 0, runner).outputs
    named = find_named_keys(shape, step_snapshot.inputs, outputs, failed, runner)
    keys = named.table.take(pa.array(_positions_or_null(named.hashes, entries)))
    table = pa.table([*keys.columns, *columns, messages], names=[*keys.column_names, *names])
    order = sort_pending(shape, PendingKeys.all_of(shape, KeySet(keys, entries), "known"), ())
    return table.take(pa.array(order))


def _positions_or_null(known: Hashes, hashes: Hashes) -> pa.Array:
    """The position of each hash among the known ones; null if it is not among them."""
    at = hashes.positions_in(known)
    return pa.array(at, mask=at < 0)


def _messages(failed: pa.Table) -> pa.Array:
    """The error of each failed key."""
    texts = zip(failed_column(failed, "type").to_pylist(), failed_column(failed, "message").to_pylist(), strict=True)
    return pa.array([f"{kind}: {message}" if message else kind for kind, message in texts], pa.string())


def input_status(given: InputSnapshot, positions: Mapping[str, int]) -> InputStatus:
    """How far a step with these positions has read an input."""
    position = positions[given.dataset_id]
    return InputStatus(given.name, position, given.last_offset, given.unread(position))
