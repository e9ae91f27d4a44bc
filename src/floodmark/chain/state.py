"""The state of a chain up to one block: everything needed to check and to build the next block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
        state: ChainState = cls()
        for block in known.values():
            state = _apply_event(state, block)
        head_ref = BlockRef(head_block.sequence_number, hash_)
        return replace(state, head=head_ref, system_time=head_block.system_time)

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
    return replace(_apply_event(state, block), head=head, system_time=block.system_time)


def parse_input_ids(transform: SetTransform) -> tuple[DatasetId | None, ...]:
    """The dataset ids of the inputs of a transform, in order; None for a reference that is not an id."""
    return tuple(_parse_id(item.dataset_ref) for item in transform.inputs)


def _parse_id(ref: str) -> DatasetId | None:
    try:
        return DatasetId.parse(ref)
    except BadId:
        return None  # rule 7 reports it together with the block


def _apply_event(state: ChainState, block: MetadataBlock) -> ChainState:
    match block.event:
        case AddData() as event:
            new_state = _apply_data_event(state, event)
            return replace(new_state, source_state=event.new_source_state or state.source_state)
        case ExecuteTransform() as event:
            positions = [
                InputPosition(item.dataset_id, item.last_block_hash, item.last_offset) for item in event.query_inputs
            ]
            return replace(_apply_data_event(state, event), inputs=tuple(positions))
        case Seed() as event:
            return replace(state, dataset_id=event.dataset_id, dataset_kind=event.dataset_kind)
        case SetDataSchema() as event:
            return replace(state, data_schema=event)
        case SetVocab() as event:
            return replace(state, vocab=event)
        case SetTransform() as event:
            return replace(state, transform=event)
        case AddPushSource() as event:
            return replace(state, push_source=event)
        case SetPollingSource() as event:
            return replace(state, polling_source=event)
        case SetAttachments() as event:
            return replace(state, attachments=event)
        case _:
            return state


def _apply_data_event(state: ChainState, event: DataEvent) -> ChainState:
    return replace(
        state,
        last_offset=events.last_offset(event),
        checkpoint=events.checkpoint(event),
        watermark=event.new_watermark if event.new_watermark is not None else state.watermark,
    )
