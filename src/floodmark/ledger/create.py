"""Creating a dataset: its first blocks are published before its name is, so nobody sees half of one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

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
from floodmark.chain.sources import ReadStepParquet
from floodmark.chain.state import EMPTY
from floodmark.ledger import names
from floodmark.ledger.commit import plan_blocks, publish
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.layout import Layout, check_column_name, derive, fields_from, vocabulary
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.strategy import Strategy, to_attachments, to_derived_attachments, to_merge
from floodmark.ledger.write import first_layout
from floodmark.storage.errors import StorageError
from floodmark.storage.slices import Vocabulary
from floodmark.storage.store import Store

PUSH_SOURCE = "default"
VIEW_EVENT_TIME = "floodmark_event_time"


def dataset_objects(store: Store, dataset_id: DatasetId) -> DatasetObjects:
    """Where a dataset's objects are: under its id, so that a new name moves nothing."""
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
) -> DatasetObjects:
    """Publish the first blocks of a new dataset, with what is to be noted of it, then claim its name."""
    vocab = _checked_vocab(name, event_time, strategy)
    events: list[MetadataEvent] = [] if vocab is None else [vocab]
    events.append(AddPushSource(source_name=PUSH_SOURCE, read=ReadStepParquet(), merge=to_merge(strategy)))
    if (attachments := to_attachments(strategy, notes)) is not None:
        events.append(attachments)
    if schema is not None:
        events += first_layout(fields_from(schema), vocab, strategy)[1]
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
) -> DatasetObjects:
    """The same for a dataset that a transform computes from others."""
    vocab = _checked_vocab(name, event_time, strategy)
    events: list[MetadataEvent] = [] if vocab is None else [vocab]
    if transform is not None:
        events.append(transform)
    events.append(to_derived_attachments(strategy))
    if schema is not None:
        events += derived_layout(fields_from(schema), strategy, vocab)[1]
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
    """The same for a view, whose columns come with its first refresh."""
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
    """The same for a view without a name: it is to replace another."""
    _publish_first(store, runtime, dataset_id, DatasetKind.DERIVATIVE, _view_events(strategy, transform, notes))


def _view_events(strategy: Strategy, transform: SetTransform, notes: Mapping[str, Any]) -> list[MetadataEvent]:
    """What a view begins with.

    The time column of its slices has a name that no query gives to a column, so that an `event_time` which a query
    passes on may be null, or no time at all.
    """
    vocab = SetVocab(event_time_column=VIEW_EVENT_TIME)
    return [vocab, transform, to_derived_attachments(strategy, notes)]


def derived_layout(
    schema: pa.Schema, strategy: Strategy, vocab: SetVocab | Vocabulary | None
) -> tuple[Layout, list[MetadataEvent]]:
    """The layout of a derivative whose first result has these columns, and the event that gives it.

    The lookup columns are values of the inputs, where a null is a value like any other; so they may be null here.
    """
    names_of_columns = vocab if isinstance(vocab, Vocabulary) else vocabulary(vocab)
    declared = vocab.event_time_column if isinstance(vocab, SetVocab) else names_of_columns.event_time
    if declared == Vocabulary().event_time and not isinstance(vocab, SetVocab):
        declared = None  # nobody chose it
    layout = derive(schema, names_of_columns, declared, strategy.key)
    fields = [f.with_nullable(f.nullable or _may_be_null(f.name, layout, strategy)) for f in layout.data]
    layout = replace(layout, data=pa.schema(fields))
    return layout, [SetDataSchema(schema=layout.to_odf())]


def _may_be_null(column: str, layout: Layout, strategy: Strategy) -> bool:
    return column in strategy.lookup and column != layout.event_time


def _checked_vocab(name: str, event_time: str | None, strategy: Strategy) -> SetVocab | None:
    names.check_name(name)
    if event_time is not None:
        check_column_name(event_time, vocabulary(None))
    for column in strategy.key:
        check_column_name(column, vocabulary(None))
    return SetVocab(event_time_column=event_time) if event_time is not None else None


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
        with suppress(StorageError):  # the failure itself says more than one to clean up
            if not names.stands_for(store, name, dataset_id):  # a claim that failed may have been made all the same
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
        raise CommitConflict(f"the new id {dataset_id} is taken", hint="try again: ids are random")


def remove(objects: DatasetObjects) -> None:
    """Delete all of a dataset, its head first, so that no writer can commit to it any more."""
    store = objects.store
    store.delete(objects.head_key)
    for info in list(store.list(objects.folder)):
        store.delete(info.key)
