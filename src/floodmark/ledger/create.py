"""Creating a dataset: its first blocks are published before its name is, so nobody sees half of one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from floodmark.chain.events import AddPushSource, DatasetKind, MetadataEvent, Seed, SetVocab
from floodmark.chain.ids import DatasetId
from floodmark.chain.sources import ReadStepParquet
from floodmark.chain.state import EMPTY
from floodmark.ledger import names
from floodmark.ledger.commit import plan_blocks, publish
from floodmark.ledger.errors import CommitConflict
from floodmark.ledger.layout import check_column_name, fields_from, vocabulary
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.runtime import Runtime
from floodmark.ledger.strategy import Strategy, to_attachments, to_merge
from floodmark.ledger.write import first_layout
from floodmark.storage.errors import StorageError
from floodmark.storage.store import Store

PUSH_SOURCE = "default"


def dataset_objects(store: Store, dataset_id: DatasetId) -> DatasetObjects:
    """Where a dataset's objects are: under its id, so that a new name moves nothing."""
    return DatasetObjects(store, f"datasets/{dataset_id.bytes.hex()}")


def create(
    store: Store, runtime: Runtime, name: str, *, event_time: str | None, schema: Any, strategy: Strategy
) -> DatasetObjects:
    """Publish the first blocks of a new dataset, then claim its name."""
    names.check_name(name)
    if event_time is not None:
        check_column_name(event_time, vocabulary(None))
    for column in strategy.key:
        check_column_name(column, vocabulary(None))
    dataset_id = DatasetId.generate(runtime.random_bytes)
    vocab = SetVocab(event_time_column=event_time) if event_time is not None else None
    events: list[MetadataEvent] = [Seed(dataset_id=dataset_id, dataset_kind=DatasetKind.ROOT)]
    if vocab is not None:
        events.append(vocab)
    events.append(AddPushSource(source_name=PUSH_SOURCE, read=ReadStepParquet(), merge=to_merge(strategy)))
    if (attachments := to_attachments(strategy)) is not None:
        events.append(attachments)
    if schema is not None:
        events += first_layout(fields_from(schema), vocab, strategy)[1]
    objects = dataset_objects(store, dataset_id)
    planned, _ = plan_blocks(EMPTY, events, runtime.clock())
    try:
        if not publish(objects, None, (), planned):
            raise CommitConflict(f"the id of new dataset {name!r} is taken", hint="try again: ids are random")
        names.claim(store, name, dataset_id)
    except CommitConflict:
        raise
    except BaseException:
        with suppress(StorageError):  # the failure itself says more than one to clean up
            if not names.stands_for(store, name, dataset_id):  # a claim that failed may have been made all the same
                remove(objects)
        raise
    return objects


def remove(objects: DatasetObjects) -> None:
    """Delete all of a dataset, its head first, so that no writer can commit to it any more."""
    store = objects.store
    store.delete(objects.head_key)
    for info in list(store.list(objects.folder)):
        store.delete(info.key)
