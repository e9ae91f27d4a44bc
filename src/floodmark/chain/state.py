"""Where a chain stands: everything needed to judge and to prepare its next block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from floodmark.chain import events
from floodmark.chain.errors import BadDatasetId
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
from floodmark.chain.hashes import Multihash
from floodmark.chain.ids import DatasetId
from floodmark.chain.refs import BlockRef
from floodmark.chain.schema import DataSchema

__all__ = ["EMPTY", "BlockRef", "ChainState", "InputPosition", "advance"]


@dataclass(frozen=True)
class InputPosition:
    """How far an input has been read: up to and with this block and this offset; None is not at all."""

    dataset_id: DatasetId
    block_hash: Multihash | None
    offset: int | None


@dataclass(frozen=True)
class ChainState:
    """Where a chain stands after its head; `EMPTY` before the first block."""

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
    """As the newest ExecuteTransform left them; `next_inputs` is what the next one has to start from."""

    @classmethod
    def from_newest(cls, head: tuple[Multihash, MetadataBlock], newest: Mapping[str, MetadataBlock]) -> ChainState:
        """The state of a valid chain from its head and the newest block of each event kind, without walking."""
        # Data blocks carry what they do not move, so the newest one stands for all before it.
        hash_, head_block = head
        known = {**newest, events.kind(head_block.event): head_block}
        state: ChainState = cls()
        for block in known.values():
            state = _moved(state, block)
        head_ref = BlockRef(head_block.sequence_number, hash_)
        return replace(state, head=head_ref, system_time=head_block.system_time)

    @property
    def schema(self) -> DataSchema | None:
        """The current columns; None when there are none yet, or only in the old form that we do not read."""
        return self.data_schema.schema if self.data_schema is not None else None

    @property
    def next_sequence_number(self) -> int:
        """The number of the next block."""
        return 0 if self.head is None else self.head.sequence_number + 1

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return 0 if self.last_offset is None else self.last_offset + 1

    @property
    def head_hash(self) -> Multihash | None:
        """The hash that the next block has to name as its predecessor."""
        return None if self.head is None else self.head.hash

    @property
    def next_inputs(self) -> tuple[InputPosition, ...]:
        """Where the next transaction continues in each input of the current transform, in its order."""
        known = {position.dataset_id: position for position in self.inputs}
        ids = input_ids(self.transform) if self.transform is not None else ()
        return tuple(known.get(id_, InputPosition(id_, None, None)) for id_ in ids if id_ is not None)


EMPTY = ChainState()


def advance(state: ChainState, hash_: Multihash, block: MetadataBlock) -> ChainState:
    """The state after one more block, which is taken as it is: `rules.check` judges it."""
    head = BlockRef(block.sequence_number, hash_)
    return replace(_moved(state, block), head=head, system_time=block.system_time)


def input_ids(transform: SetTransform) -> tuple[DatasetId | None, ...]:
    """The inputs of a transform in order; None for one that is not resolved to an id."""
    return tuple(_resolved(item.dataset_ref) for item in transform.inputs)


def _resolved(ref: str) -> DatasetId | None:
    try:
        return DatasetId.parse(ref)
    except BadDatasetId:
        return None  # rule 7 reports it, with the block at hand


def _moved(state: ChainState, block: MetadataBlock) -> ChainState:
    match block.event:
        case AddData() as event:
            moved = _data_moved(state, event)
            return replace(moved, source_state=event.new_source_state or state.source_state)
        case ExecuteTransform() as event:
            positions = [
                InputPosition(item.dataset_id, item.last_block_hash, item.last_offset) for item in event.query_inputs
            ]
            return replace(_data_moved(state, event), inputs=tuple(positions))
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


def _data_moved(state: ChainState, event: DataEvent) -> ChainState:
    return replace(
        state,
        last_offset=events.last_offset(event),
        checkpoint=events.checkpoint(event),
        watermark=event.new_watermark if event.new_watermark is not None else state.watermark,
    )
