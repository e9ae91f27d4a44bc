"""Looking at a step: how far it is, what failed, and when which record was reached. Reads no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from floodmark.derive.positions import NOTHING
from floodmark.transform.changed.inputs import PinnedInput
from floodmark.transform.lakes import LakeLike
from floodmark.transform.meta import failed_column, failed_keys, no_failures
from floodmark.transform.pinned import pin_step
from floodmark.transform.report import InputStatus, LastRun, StepStatus

if TYPE_CHECKING:
    from floodmark.transform.batch_transform import BatchTransform

OFFSETS = pa.schema(
    [
        pa.field("transform", pa.string(), nullable=False),
        pa.field("input", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("time", pa.timestamp("ms", "UTC")),
    ]
)
"""The seed's offset table; a step that has read nothing of an input has no offset there."""

_ERROR = ("type", "message", "attempts", "since", "last", "state", "due", "traceback")


def status(step: BatchTransform, lake: LakeLike) -> StepStatus:
    """Where a step stands."""
    pinned = pin_step(step, lake)
    manifest = pinned.meta.manifest
    failed = manifest.failed
    last = manifest.last_run
    return StepStatus(
        step=step.name,
        inputs=tuple(input_status(given, pinned.positions) for given in pinned.inputs),
        keys=manifest.keys,
        failed=0 if failed is None else failed.retry,
        skipped=0 if failed is None else failed.skipped,
        exhausted=0 if failed is None else failed.exhausted,
        version=step.function.version,
        stale=pinned.stale,
        last_run=None
        if last is None
        else LastRun(
            last.id, datetime.fromtimestamp(last.process_ts / 1000, UTC), last.keys, last.failed, last.seconds
        ),
    )


def errors(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """The keys whose last call failed: the transform keys, then what is known of the failure."""
    pinned = pin_step(step, lake)
    is_first = pinned.meta.version is None and pinned.shape is not None
    failed = no_failures(pinned.keys) if is_first else pinned.meta.failed()
    keys = failed_keys(failed)
    columns = [*keys.columns, *(failed_column(failed, name) for name in _ERROR)]
    return pa.table(columns, names=[*keys.column_names, *_ERROR])


def offsets(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """How far each input is done, and when the record there was committed."""
    pinned = pin_step(step, lake)
    return offsets_table(step.name, pinned.inputs, pinned.positions)


def offsets_table(step: str, inputs: Sequence[PinnedInput], positions: Mapping[str, int]) -> pa.Table:
    """Positions by dataset id, with the time when the record there was committed."""
    rows = []
    for given in inputs:
        offset = positions[given.dataset_id]
        at = given.snapshot.committed_at(offset)
        reached = (None, None) if offset == NOTHING else (offset, None if at is None else at // 10**6)
        rows.append(dict(zip(OFFSETS.names, (step, given.name, *reached), strict=True)))
    return pa.Table.from_pylist(rows, OFFSETS)


def meta(step: BatchTransform, lake: LakeLike) -> pa.Table:
    """All keys that were processed, as the hashes by which they are known."""
    return pin_step(step, lake).meta.to_table()


def input_status(given: PinnedInput, positions: Mapping[str, int]) -> InputStatus:
    """How far an input is done."""
    position = positions[given.dataset_id]
    behind = max(0, given.end - max(position + 1, given.purged_before))
    return InputStatus(given.name, position, given.head, behind)
