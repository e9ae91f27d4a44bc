"""The state of a chain up to one block: everything needed to check and to build the next block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from floodmark.chain import events
from floodmark.chain.events import (
    AddData,
    AddPushSource,
    DataEvent,
    DatasetKind,
    ExecuteTransform,
    MetadataBlock,
    Nanos,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
)
from floodmark.chain.ids import BlockRef, DatasetId, Multihash
from floodmark.chain.schema import DataSchema
from floodmark.errors import BadId


@dataclass(frozen=True)
class InputPosition:
    """How far an input was read: up to and including this block and offset. None: nothing was read."""

    dataset_id: DatasetId
    block_hash: Multihash | None
    offset: int | None


@dataclass(frozen=True)
class ChainState:
    """The state of a chain at its head; `EMPTY` before the first block."""

    head: BlockRef | None = None
    system_time: Nanos | None = None
    dataset_id: DatasetId | None = None
    dataset_kind: DatasetKind | None = None
    last_offset: int | None = None
    checkpoint: Multihash | None = None
    watermark: Nanos | None = None
    source_state: SourceState | None = None
    data_schema: SetDataSchema | None = None
    vocab: SetVocab | None = None
    transform: SetTransform | None = None
    push_source: AddPushSource | None = None
    polling_source: SetPollingSource | None = None
    attachments: SetAttachments | None = None
    inputs: tuple[InputPosition, ...] = ()
    """The positions after the newest ExecuteTransform. The next one has to start from `next_inputs`."""

    @classmethod
    def from_newest(cls, head: tuple[Multihash, MetadataBlock], newest: Mapping[str, MetadataBlock]) -> ChainState:
        """The state of a valid chain from its head and the newest block of each event kind, without walking."""
        # Data blocks repeat the values that they do not change, so the newest one is enough.
        hash_, head_block = head
        known = {**newest, events.kind(head_block.event): head_block}
        changes: dict[str, Any] = {}
        for block in known.values():
            changes |= _changes(block.event)
        head_ref = BlockRef(head_block.sequence_number, hash_)
        return cls(**{**changes, "head": head_ref, "system_time": head_block.system_time})

    @property
    def schema(self) -> DataSchema | None:
        """The current columns; None if there are none yet."""
        return self.data_schema.columns if self.data_schema is not None else None

    @property
    def next_sequence_number(self) -> int:
        """The sequence number of the next block."""
        return 0 if self.head is None else self.head.sequence_number + 1

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return 0 if self.last_offset is None else self.last_offset + 1

    @property
    def head_hash(self) -> Multihash | None:
        """The hash of the newest block. The next block must contain it."""
        return None if self.head is None else self.head.hash

    @property
    def next_inputs(self) -> tuple[InputPosition, ...]:
        """For each input of the current transform, in its order: the position where the next transaction starts."""
        known = {position.dataset_id: position for position in self.inputs}
        ids = parse_input_ids(self.transform) if self.transform is not None else ()
        return tuple(known.get(id_, InputPosition(id_, None, None)) for id_ in ids if id_ is not None)


EMPTY = ChainState()


def apply_block(state: ChainState, hash_: Multihash, block: MetadataBlock) -> ChainState:
    """The state after one more block. It does not check the block: `rules.check` does."""
    head = BlockRef(block.sequence_number, hash_)
    return replace(state, **{**_changes(block.event), "head": head, "system_time": block.system_time})


def parse_input_ids(transform: SetTransform) -> tuple[DatasetId | None, ...]:
    """The dataset ids of the inputs of a transform, in order; None for a reference that is not an id."""
    return tuple(_parse_id(item.dataset_ref) for item in transform.inputs)


def _parse_id(ref: str) -> DatasetId | None:
    try:
        return DatasetId.parse(ref)
    except BadId:
        return None  # rule 7 reports it together with the block


def _changes(event: events.MetadataEvent) -> dict[str, Any]:
    """The fields of the state that an event changes."""
    match event:
        case AddData():
            state = {} if event.new_source_state is None else {"source_state": event.new_source_state}
            return {**_data_changes(event), **state}
        case ExecuteTransform():
            positions = [
                InputPosition(item.dataset_id, item.last_block_hash, item.last_offset) for item in event.query_inputs
            ]
            return {**_data_changes(event), "inputs": tuple(positions)}
        case Seed():
            return {"dataset_id": event.dataset_id, "dataset_kind": event.dataset_kind}
        case SetDataSchema():
            return {"data_schema": event}
        case SetVocab():
            return {"vocab": event}
        case SetTransform():
            return {"transform": event}
        case AddPushSource():
            return {"push_source": event}
        case SetPollingSource():
            return {"polling_source": event}
        case SetAttachments():
            return {"attachments": event}
        case _:
            return {}


def _data_changes(event: DataEvent) -> dict[str, Any]:
    watermark = {} if event.new_watermark is None else {"watermark": event.new_watermark}
    return {"last_offset": events.last_offset(event), "checkpoint": events.checkpoint(event), **watermark}
