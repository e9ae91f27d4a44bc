"""Commits: plan blocks from the state of a chain, publish them, and find out whether an uncertain commit happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from floodmark.chain import rules, wire
from floodmark.chain.events import (
    AddData,
    Checkpoint,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    MetadataEvent,
    Nanos,
    OffsetInterval,
    SourceState,
)
from floodmark.chain.ids import DatasetId, Multihash, format_head, parse_head
from floodmark.chain.state import ChainState, InputPosition, apply_block
from floodmark.chain.walk import walk_back
from floodmark.errors import CommitUnknown, SwapUnknown
from floodmark.ledger.block_attributes import BatchTally, commit_part, data_attributes, tally_of
from floodmark.ledger.objects import DatasetObjects
from floodmark.ledger.witness import Witness, record_commit
from floodmark.storage.parquet import SliceFile

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

PlannedBlock = tuple[Multihash, bytes, MetadataBlock]


@dataclass(frozen=True)
class Commit:
    """The result of a write: its last block, and its records as the half-open interval of offsets [start, end)."""

    block: Multihash
    sequence_number: int
    start: int
    end: int
    slices: int
    size: int
    system_time: datetime
    watermark: datetime | None
    source: str | None = None
    state: str | None = None
    new: int = 0
    """Rows with a new key."""
    changed: int = 0
    """Rows that replaced a row of the same key: two records each, the old row and the new one."""
    retracted: int = 0
    """Rows that were removed."""
    unchanged: int = 0
    """Rows of the batch that the dataset already has."""
    duplicates: int = 0
    """Rows of the batch that a later row of the same key replaced."""
    unknown: int = 0
    """Keys to retract that did not exist."""
    now: datetime | None = None
    """The time that the writer gave, if any."""

    @property
    def rows(self) -> int:
        """How many records this commit added."""
        return self.end - self.start


@dataclass(frozen=True)
class TransformMoves:
    """What a transaction of a transform changes besides the records of its output."""

    inputs: Mapping[DatasetId, tuple[Multihash, int | None]] = field(default_factory=dict)
    """Up to which block and offset (inclusive) each input was read. Inputs that are not named did not move."""
    checkpoint: Checkpoint | None = None
    watermark: Nanos | None = None
    """The requested watermark. A value before the present watermark has no effect."""


def to_datetime(nanos: Nanos) -> datetime:
    """A point in time as a datetime in UTC, cut to microseconds. The chain keeps nanoseconds."""
    return _EPOCH + timedelta(microseconds=nanos // 1000)


def plan_blocks(
    state: ChainState, events: Iterable[MetadataEvent], system_time: Nanos
) -> tuple[list[PlannedBlock], ChainState]:
    """The blocks for these events on top of a chain, each checked against all rules, and the state after them."""
    planned: list[PlannedBlock] = []
    for event in events:
        block = MetadataBlock(
            system_time=system_time,
            prev_block_hash=state.head_hash,
            sequence_number=state.next_sequence_number,
            event=event,
        )
        rules.check(state, block)
        data = wire.encode(block)
        block_hash = Multihash.sha3_256(data)
        planned.append((block_hash, data, block))
        state = apply_block(state, block_hash, block)
    return planned, state


def data_events(
    state: ChainState, slices: Sequence[SliceFile], source_state: SourceState | None, tally: BatchTally | None = None
) -> list[AddData]:
    """One AddData per slice. The last one has the new source state; each repeats the values that it does not change."""
    events: list[AddData] = []
    last_offset, watermark = state.last_offset, state.watermark
    for i, new in enumerate(slices):
        start = 0 if last_offset is None else last_offset + 1
        if new.event_time_max is not None:
            watermark = max(watermark, new.event_time_max) if watermark is not None else new.event_time_max
        is_last = i == len(slices) - 1
        events.append(
            AddData(
                prev_checkpoint=state.checkpoint,
                prev_offset=last_offset,
                new_data=DataSlice(
                    logical_hash=new.logical_hash,
                    physical_hash=new.physical_hash,
                    offset_interval=OffsetInterval(start, start + new.rows - 1),
                    size=new.size,
                ),
                new_watermark=watermark,
                new_source_state=source_state if is_last and source_state is not None else state.source_state,
                extra=data_attributes(new.event_time_min, new.event_time_max, i, len(slices), tally),
            )
        )
        last_offset = start + new.rows - 1
    return events


def transform_events(state: ChainState, slices: Sequence[SliceFile], moved: TransformMoves) -> list[ExecuteTransform]:
    """One ExecuteTransform per slice. Only the last one moves inputs, checkpoint and watermark.

    Without slices there is one event if anything moves, else none. `state` is the state of the chain with the
    transform that was executed.
    """
    inputs = [_moved_input(position, moved.inputs.get(position.dataset_id)) for position in state.next_inputs]
    strangers = moved.inputs.keys() - {item.dataset_id for item in inputs}
    if strangers:
        raise ValueError(f"{min(str(i) for i in strangers)} is not an input of the transform")
    watermark = max((w for w in (state.watermark, moved.watermark) if w is not None), default=None)
    moving = ExecuteTransform(
        query_inputs=tuple(inputs),
        prev_checkpoint=state.checkpoint,
        prev_offset=state.last_offset,
        new_checkpoint=moved.checkpoint,
        new_watermark=watermark,
    )
    still = replace(moving, query_inputs=_standing(state), new_checkpoint=None, new_watermark=state.watermark)
    if not slices:
        checkpoint = None if moved.checkpoint is None else moved.checkpoint.physical_hash
        moves = ends_transaction(moving) and (checkpoint != state.checkpoint or moving.query_inputs != _standing(state))
        return [moving] if moves or watermark != state.watermark else []
    events: list[ExecuteTransform] = []
    last_offset = state.last_offset
    for i, new in enumerate(slices):
        start = 0 if last_offset is None else last_offset + 1
        data = DataSlice(
            logical_hash=new.logical_hash,
            physical_hash=new.physical_hash,
            offset_interval=OffsetInterval(start, start + new.rows - 1),
            size=new.size,
        )
        event = moving if i == len(slices) - 1 else still
        events.append(replace(event, prev_offset=last_offset, new_data=data))
        last_offset = start + new.rows - 1
    return events


def ends_transaction(event: ExecuteTransform) -> bool:
    """Whether this block ends a transaction of a transform: it has a checkpoint or moves an input."""
    return event.new_checkpoint is not None or any(item.new_block_hash is not None for item in event.query_inputs)


def _standing(state: ChainState) -> tuple[ExecuteTransformInput, ...]:
    return tuple(_moved_input(position, None) for position in state.next_inputs)


def _moved_input(position: InputPosition, to: tuple[Multihash, int | None] | None) -> ExecuteTransformInput:
    block, offset = (None, None) if to is None else to
    return ExecuteTransformInput(
        dataset_id=position.dataset_id,
        prev_block_hash=position.block_hash,
        new_block_hash=None if block == position.block_hash else block,
        prev_offset=position.offset,
        new_offset=None if offset == position.offset else offset,
    )


def empty_event(state: ChainState) -> AddData:
    """An AddData without data that repeats all present values. The caller replaces those that change."""
    return AddData(
        prev_checkpoint=state.checkpoint,
        prev_offset=state.last_offset,
        new_watermark=state.watermark,
        new_source_state=state.source_state,
    )


def publish(
    objects: DatasetObjects, old: Multihash | None, slices: Sequence[SliceFile], planned: Sequence[PlannedBlock]
) -> bool:
    """Store data, then blocks, then move the head. True if the commit happened, False if another writer was first."""
    for new in slices:
        if new.path is not None:
            objects.store.put_file(objects.data_key(new.physical_hash), new.path)
    for block_hash, data, _ in planned:
        objects.put_block(block_hash, data)
    head, _, block = planned[-1]

    def happened(content: bytes) -> bool:
        return _is_ancestor(objects, head, block.sequence_number, parse_head(content))

    try:
        swapped = objects.head.swap(None if old is None else format_head(old), format_head(head), happened)
    except SwapUnknown as error:
        raise CommitUnknown(
            f"commit {head.short} may or may not have happened: {error.message}",
            hint="read the dataset's log to find out; writing again with the same source= and state= is always safe",
            block=head,
        ) from error
    if swapped:
        record_commit(objects, old, Witness(block.sequence_number, head))
    return swapped


def _is_ancestor(objects: DatasetObjects, ancestor: Multihash, sequence_number: int, head: Multihash) -> bool:
    for block_hash, _, block in walk_back(objects.get_block, head):
        if block.sequence_number <= sequence_number:
            return block_hash == ancestor
    return False


def describe_commit(
    planned: Sequence[PlannedBlock], state: SourceState | None, tally: BatchTally | None = None
) -> Commit:
    """The commit of these blocks (oldest first); `state` is its source state, if any.

    `tally` has the row counts of a transform's commit, whose blocks cannot store them.
    """
    block_hash, _, last = planned[-1]
    events = [b.event for _, _, b in planned if isinstance(b.event, AddData | ExecuteTransform)]
    newest = events[-1]
    with_data = [e.new_data for e in events if e.new_data is not None]
    end = 0 if newest.prev_offset is None else newest.prev_offset + 1
    start = end
    if with_data:
        start, end = with_data[0].offset_interval.start, with_data[-1].offset_interval.end + 1
    tally = tally or tally_of(newest) or BatchTally(new=end - start)
    return Commit(
        block=block_hash,
        sequence_number=last.sequence_number,
        start=start,
        end=end,
        slices=len(with_data),
        size=sum(d.size for d in with_data),
        system_time=to_datetime(last.system_time),
        watermark=None if newest.new_watermark is None else to_datetime(newest.new_watermark),
        source=state.source_name if state else None,
        state=state.value if state else None,
        **_counts(tally),
    )


def unchanged_commit(head: Multihash, block: MetadataBlock, state: ChainState, tally: BatchTally) -> Commit:
    """The result of a write that changed nothing: the present head."""
    return Commit(
        block=head,
        sequence_number=block.sequence_number,
        start=state.next_offset,
        end=state.next_offset,
        slices=0,
        size=0,
        system_time=to_datetime(block.system_time),
        watermark=None if state.watermark is None else to_datetime(state.watermark),
        **_counts(tally),
    )


def _counts(tally: BatchTally) -> dict[str, Any]:
    now = None if tally.now is None else datetime.fromisoformat(tally.now)
    return {**vars(tally), "now": now}


def read_commit(objects: DatasetObjects, last: Multihash, state: SourceState | None) -> Commit:
    """Read the commit that ends with this block from the chain."""
    blocks: list[PlannedBlock] = []
    count = 1
    for block_hash, data, block in walk_back(objects.get_block, last):
        if not blocks and isinstance(block.event, AddData):
            part, _ = commit_part(block.event)
            count = part + 1
        blocks.append((block_hash, data, block))
        if len(blocks) == count:
            break
    return describe_commit(blocks[::-1], state)
