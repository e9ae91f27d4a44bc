"""Commits without data: the watermark moves, columns are added, a purge is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from floodmark.chain.events import DatasetKind, MetadataEvent, Nanos, SetDataSchema
from floodmark.chain.evolution import check_evolution
from floodmark.ledger.commit import Planned, empty_event, plan_blocks, publish, to_datetime
from floodmark.ledger.errors import CommitConflict, ReadOnlyDataset, ReservedColumn, WatermarkBack
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.snapshot import Snapshot
from floodmark.storage.retry import MAX_RACES, races

Build = Callable[[Snapshot], Sequence[MetadataEvent]]


def commit_events(
    name: str, load: Callable[[], Snapshot], build: Build, runtime: Runtime
) -> tuple[list[Planned], Snapshot]:
    """Publish the events that `build` makes for the present head; no events, no block. A lost race plans again."""
    snapshot = load()
    with snapshot.objects.turn():
        for _ in races(MAX_RACES):
            snapshot = load()
            events = build(snapshot)
            if not events:
                snapshot.objects.head.confirm()  # what makes this unnecessary must not be lost by a crash
                return [], snapshot
            now = max(runtime.clock(), snapshot.state.system_time or 0)
            planned, state = plan_blocks(snapshot.state, events, now)
            if publish(snapshot.objects, snapshot.head, (), planned):
                return planned, snapshot.after(planned, state)
    raise CommitConflict(f"the change to {name!r} lost {MAX_RACES} races and did not happen", hint="try again")


def refuse_derivative(snapshot: Snapshot, name: str, doing: str, hint: str) -> None:
    """Refuse to do to a derivative what only its step or query can do: its blocks come from their transactions."""
    if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
        raise ReadOnlyDataset(f"dataset {name!r} is derived from others: {doing}", hint=hint)


def advanced_watermark(name: str, wanted: Nanos, snapshot: Snapshot) -> Sequence[MetadataEvent]:
    """What moves the watermark to a time; nothing when it is there already."""
    refuse_derivative(
        snapshot,
        name,
        "its watermark follows those of its inputs",
        "advance theirs, then run the step, or refresh the view",
    )
    present = snapshot.state.watermark
    if present is not None and wanted < present:
        raise WatermarkBack(
            f"the watermark of {name!r} is {to_datetime(present)}, after {to_datetime(wanted)}",
            hint="a watermark never goes back: give a later time",
        )
    return [] if wanted == present else [replace(empty_event(snapshot.state), new_watermark=wanted)]


def evolved(name: str, wanted: pa.Schema, snapshot: Snapshot) -> Sequence[MetadataEvent]:
    """What adds columns, or gives a whole new schema; nothing when the dataset has them so."""
    refuse_derivative(
        snapshot,
        name,
        "its columns are those of its results",
        "let the function of the step return the new column, or give the view a definition that has it",
    )
    layout = snapshot.require_layout(name)
    if set(layout.data.names) <= set(wanted.names):
        new = layout.with_schema(wanted)
    else:
        taken = [column for column in wanted.names if column in layout.data.names]
        if taken:
            raise ReservedColumn(
                f"dataset {name!r} has a column {taken[0]!r} already",
                hint="give only new columns, or the whole schema",
                column=taken[0],
            )
        new = layout.with_fields(wanted)
    if new == layout:
        return []
    check_evolution(layout.to_odf(), new.to_odf())
    return [SetDataSchema(schema=new.to_odf())]
