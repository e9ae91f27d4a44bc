"""Create, evolve and drop datasets, and advance watermarks.

The first blocks of a dataset are published before its name, so that readers never see an incomplete dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa

from floodmark.chain.events import (
    AddPushSource,
    DatasetKind,
    MetadataEvent,
    Seed,
    SetDataSchema,
    SetTransform,
    SetVocab,
)
from floodmark.chain.ids import DatasetId
from floodmark.chain.schema import check_evolution
from floodmark.chain.source_steps import ReadStepParquet
from floodmark.chain.state import EMPTY
from floodmark.engine.session import Runtime
from floodmark.errors import BadColumnName, BadData, CommitConflict, ReadOnlyDataset, StorageError, TypeMismatch
from floodmark.ledger import names
from floodmark.ledger.append import first_layout
from floodmark.ledger.commit import PlannedBlock, empty_event, plan_blocks, publish, to_datetime
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.schema import Layout, check_column_name, declare_vocab, derive_layout, fields_from, vocabulary
from floodmark.ledger.selection import parse_time
from floodmark.ledger.snapshot import Snapshot
from floodmark.ledger.strategy import Strategy, to_attachments, to_derived_attachments, to_merge
from floodmark.storage.local import remove_empty_folders
from floodmark.storage.parquet import Vocabulary
from floodmark.storage.pointer import MAX_RACES, attempt_numbers
from floodmark.storage.store import Store

PUSH_SOURCE = "default"
VIEW_EVENT_TIME = "floodmark_event_time"


def dataset_objects(store: Store, dataset_id: DatasetId) -> DatasetObjects:
    """The objects of a dataset. Their folder is named by the id, so that a rename moves no files."""
    return DatasetObjects(store, f"datasets/{dataset_id.bytes.hex()}")


def create(
    store: Store,
    runtime: Runtime,
    name: str,
    *,
    event_time: str | None,
    schema: Any,
    strategy: Strategy,
    notes: Mapping[str, Any] = MappingProxyType({}),
    vocab: Mapping[str, str] | None = None,
) -> DatasetObjects:
    """Publish the first blocks of a new dataset, with `notes` in its attachment, then claim its name."""
    set_vocab = _first_vocab(name, vocab, event_time, strategy)
    events: list[MetadataEvent] = [] if set_vocab is None else [set_vocab]
    events.append(AddPushSource(source_name=PUSH_SOURCE, read=ReadStepParquet(), merge=to_merge(strategy)))
    if (attachments := to_attachments(strategy, notes)) is not None:
        events.append(attachments)
    if schema is not None:
        events += first_layout(fields_from(schema), set_vocab, strategy)[1]
    return _publish_new(store, runtime, name, DatasetKind.ROOT, events)


def create_derived(
    store: Store,
    runtime: Runtime,
    name: str,
    *,
    event_time: str | None,
    schema: Any,
    strategy: Strategy,
    transform: SetTransform | None,
    vocab: Mapping[str, str] | None = None,
) -> DatasetObjects:
    """The same for a dataset that a transform computes from other datasets."""
    set_vocab = _first_vocab(name, vocab, event_time, strategy)
    events: list[MetadataEvent] = [] if set_vocab is None else [set_vocab]
    if transform is not None:
        events.append(transform)
    events.append(to_derived_attachments(strategy))
    if schema is not None:
        events += derived_layout(fields_from(schema), strategy, set_vocab)[1]
    return _publish_new(store, runtime, name, DatasetKind.DERIVATIVE, events)


def create_view(
    store: Store,
    runtime: Runtime,
    name: str,
    *,
    strategy: Strategy,
    transform: SetTransform,
    notes: Mapping[str, Any],
) -> DatasetObjects:
    """The same for a view. Its first refresh sets the columns."""
    names.check_name(name)
    events = _view_events(strategy, transform, notes)
    return _publish_new(store, runtime, name, DatasetKind.DERIVATIVE, events)


def create_hidden_view(
    store: Store,
    runtime: Runtime,
    dataset_id: DatasetId,
    *,
    strategy: Strategy,
    transform: SetTransform,
    notes: Mapping[str, Any],
) -> None:
    """The same for a view without a name, which will replace another view."""
    _publish_first(store, runtime, dataset_id, DatasetKind.DERIVATIVE, _view_events(strategy, transform, notes))


def _view_events(strategy: Strategy, transform: SetTransform, notes: Mapping[str, Any]) -> list[MetadataEvent]:
    """The first events of a view.

    The event time of its slices has a name that queries do not use. A query may therefore return its own `event_time`
    column, with nulls or with any type.
    """
    vocab = SetVocab(event_time_column=VIEW_EVENT_TIME)
    return [vocab, transform, to_derived_attachments(strategy, notes)]


def derived_layout(
    schema: pa.Schema, strategy: Strategy, vocab: SetVocab | Vocabulary | None
) -> tuple[Layout, list[MetadataEvent]]:
    """The layout of a derivative whose first result has these columns, and the event that defines it.

    Lookup columns come from the inputs, where null is an ordinary value, so they are nullable.
    """
    names_of_columns = vocab if isinstance(vocab, Vocabulary) else vocabulary(vocab)
    declared = vocab.event_time_column if isinstance(vocab, SetVocab) else names_of_columns.event_time
    if declared == Vocabulary().event_time and not isinstance(vocab, SetVocab):
        declared = None  # the default name, not a choice of the user
    layout = derive_layout(schema, names_of_columns, declared, strategy.key)
    fields = [f.with_nullable(f.nullable or _may_be_null(f.name, layout, strategy)) for f in layout.data]
    layout = replace(layout, data=pa.schema(fields))
    return layout, [SetDataSchema(schema=layout.to_odf())]


def _may_be_null(column: str, layout: Layout, strategy: Strategy) -> bool:
    return column in strategy.lookup and column != layout.event_time


def _first_vocab(
    name: str, vocab: Mapping[str, str] | None, event_time: str | None, strategy: Strategy
) -> SetVocab | None:
    names.check_name(name)
    event = declare_vocab(vocab, event_time)
    for column in strategy.key:
        check_column_name(column, vocabulary(event))
    return event


def _publish_new(
    store: Store, runtime: Runtime, name: str, kind: DatasetKind, definitions: list[MetadataEvent]
) -> DatasetObjects:
    dataset_id = DatasetId.generate(runtime.random_bytes)
    objects = dataset_objects(store, dataset_id)
    try:
        _publish_first(store, runtime, dataset_id, kind, definitions)
        names.claim(store, name, dataset_id)
    except CommitConflict:
        raise
    except BaseException:
        with suppress(StorageError):  # raise the first failure, not one of the cleanup
            if not names.names_dataset(store, name, dataset_id):  # a claim may have succeeded although it raised
                remove(objects)
        raise
    return objects


def _publish_first(
    store: Store, runtime: Runtime, dataset_id: DatasetId, kind: DatasetKind, definitions: list[MetadataEvent]
) -> None:
    objects = dataset_objects(store, dataset_id)
    seed = Seed(dataset_id=dataset_id, dataset_kind=kind)
    planned, _ = plan_blocks(EMPTY, [seed, *definitions], runtime.clock())
    if not publish(objects, None, (), planned):
        raise CommitConflict(f"the new id {dataset_id} is already used", hint="try again: ids are random")


def remove(objects: DatasetObjects) -> None:
    """Delete all objects of a dataset, the head first, so that no writer can commit to it any more."""
    store = objects.store
    store.delete(objects.head_key)
    for info in list(store.list(objects.folder)):
        store.delete(info.key)
    if (folder := store.local_path(objects.folder)) is not None:
        remove_empty_folders(folder)


EventBuilder = Callable[[Snapshot], Sequence[MetadataEvent]]


def commit_events(
    name: str, load: Callable[[], Snapshot], build: EventBuilder, runtime: Runtime
) -> tuple[list[PlannedBlock], Snapshot]:
    """Publish the events that `build` returns for the present head; nothing if it returns none. Retry lost races."""
    snapshot = load()
    with snapshot.objects.turn():
        for _ in attempt_numbers(MAX_RACES):
            snapshot = load()
            events = build(snapshot)
            if not events:
                snapshot.objects.head.make_durable()  # the commit that made this change must survive a crash
                return [], snapshot
            now = max(runtime.clock(), snapshot.state.system_time or 0)
            planned, state = plan_blocks(snapshot.state, events, now)
            if publish(snapshot.objects, snapshot.head, (), planned):
                return planned, snapshot.after(planned, state)
    raise CommitConflict(
        f"{name!r} was not changed: the commit lost {MAX_RACES} races against other writers", hint="try again"
    )


def refuse_derivative(snapshot: Snapshot, name: str, reason: str, hint: str) -> None:
    """Refuse a change to a derivative: only its step or query adds blocks to it."""
    if snapshot.state.dataset_kind is DatasetKind.DERIVATIVE:
        raise ReadOnlyDataset(f"dataset {name!r} is derived from other datasets: {reason}", hint=hint)


def watermark_events(name: str, to: datetime | date | str, snapshot: Snapshot) -> Sequence[MetadataEvent]:
    """The events that move the watermark to a time; none if it is there already."""
    is_plain = snapshot.layout is not None and not snapshot.layout.event_time_has_zone
    time = parse_time(name, to, in_plain_column=is_plain)
    refuse_derivative(
        snapshot,
        name,
        "its watermark follows the watermarks of its inputs",
        "advance the watermarks of the inputs, then run the step or refresh the view",
    )
    present = snapshot.state.watermark
    if present is not None and time < present:
        raise BadData(
            f"the watermark of {name!r} is {to_datetime(present)}, after {to_datetime(time)}",
            hint="a watermark never moves back: give a later time",
        )
    return [] if time == present else [replace(empty_event(snapshot.state), new_watermark=time)]


def _refuse_existing(name: str, present: pa.Field, wanted: pa.DataType) -> NoReturn:
    """Refuse to add a column that exists: the type of stored values cannot change."""
    if wanted.equals(present.type):
        raise BadColumnName(
            f"dataset {name!r} already has a column {present.name!r}",
            hint="leave it out: give only the new columns",
            column=present.name,
        )
    raise TypeMismatch(
        f"column {present.name!r} of dataset {name!r} is {present.type}, and its type cannot change to {wanted}",
        hint="add a column with another name, or create another dataset with this type and write the rows to it",
        column=present.name,
    )


def evolution_events(name: str, schema: pa.Schema, snapshot: Snapshot) -> Sequence[MetadataEvent]:
    """The events that add columns or set a whole new schema; none if the dataset has that schema already."""
    refuse_derivative(
        snapshot,
        name,
        "its columns are the columns of its results",
        "let the function of the step return the new column, or add it to the definition of the view",
    )
    layout = snapshot.require_layout(name)
    if set(layout.data.names) <= set(schema.names):
        new = layout.with_schema(schema)
    else:
        present = set(layout.data.names)
        existing = [column for column in schema.names if column in present]
        if existing:
            _refuse_existing(name, layout.data.field(existing[0]), schema.field(existing[0]).type)
        new = layout.with_fields(schema)
    if new == layout:
        return []
    evolved = new.to_odf()
    check_evolution(layout.to_odf(), evolved)
    if (declared := snapshot.state.schema) is not None:
        # Other tools may declare system columns differently, for example as optional: they stay as they are.
        system = {field.name: field for field in declared.fields if field.name in layout.vocab.reserved}
        evolved = replace(evolved, fields=tuple(system.get(field.name, field) for field in evolved.fields))
    return [SetDataSchema(schema=evolved)]
