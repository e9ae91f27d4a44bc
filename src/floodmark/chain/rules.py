"""What a chain must satisfy: one function per rule, each with its own error.

A rule looks at the state of the chain and the block that is to come next, and raises or returns. Numbers are
those of the format's list of rules; where an entry of that list says several things, there are several
functions. Rules 6 and 7 are in `transform_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from floodmark.chain import errors, transform_rules
from floodmark.chain.events import (
    ROUTINE,
    AddData,
    DataEvent,
    MetadataBlock,
    Seed,
    SetDataSchema,
    kind,
)
from floodmark.chain.evolution import check_evolution, check_field_names
from floodmark.chain.state import ChainState

__all__ = ["RULES", "check", "check_evolution", "problems"]

Rule = Callable[[ChainState, MetadataBlock], None]


def check(state: ChainState, block: MetadataBlock) -> None:
    """Refuse the block if it breaks any rule as the next one of this chain."""
    for rule in RULES:
        rule(state, block)


def problems(state: ChainState, block: MetadataBlock) -> Iterator[errors.RuleBroken]:
    """Every rule that the block breaks, where `check` stops at the first."""
    for rule in RULES:
        try:
            rule(state, block)
        except errors.RuleBroken as error:
            yield error


# Rule 1: the chain hangs together


def seed_is_first_and_only_first(state: ChainState, block: MetadataBlock) -> None:
    """The first block is a Seed, and no other is."""
    is_seed = isinstance(block.event, Seed)
    if state.head is None and not is_seed:
        raise errors.SeedMissing.at(block, f"a chain starts with Seed, not {kind(block.event)}.")
    if state.head is not None and is_seed:
        raise errors.SeedRepeated.at(block, "a Seed can only be the first block of a chain.")


def sequence_number_follows(state: ChainState, block: MetadataBlock) -> None:
    """Blocks are numbered 0, 1, 2, …"""
    if block.sequence_number != state.next_sequence_number:
        message = f"the number should be {state.next_sequence_number}{_after(state)}."
        raise errors.SequenceBroken.at(
            block, message, expected=state.next_sequence_number, actual=block.sequence_number
        )


def prev_block_hash_matches(state: ChainState, block: MetadataBlock) -> None:
    """A block names the hash of the one before it."""
    if block.prev_block_hash != state.head_hash:
        message = f"prev_block_hash is {block.prev_block_hash}, but should be {state.head_hash}{_after(state)}."
        raise errors.PrevBlockMismatch.at(block, message, expected=state.head_hash, actual=block.prev_block_hash)


# Rule 2: time moves on


def system_time_does_not_go_back(state: ChainState, block: MetadataBlock) -> None:
    """A block is not older than the one before it."""
    if state.system_time is not None and block.system_time < state.system_time:
        message = f"system_time {block.system_time} ns is before {state.system_time} ns{_after(state)}."
        raise errors.SystemTimeWentBack.at(block, message, expected=state.system_time, actual=block.system_time)


def watermark_does_not_go_back(state: ChainState, block: MetadataBlock) -> None:
    """A watermark is never earlier than one before it."""
    if not isinstance(block.event, ROUTINE) or state.watermark is None or block.event.new_watermark is None:
        return
    if block.event.new_watermark < state.watermark:
        message = f"the watermark goes back from {state.watermark} ns to {block.event.new_watermark} ns."
        raise errors.WatermarkWentBack.at(block, message, expected=state.watermark, actual=block.event.new_watermark)


def watermark_is_carried(state: ChainState, block: MetadataBlock) -> None:
    """Once there is a watermark, every data block says it."""
    if not isinstance(block.event, ROUTINE) or state.watermark is None:
        return
    if block.event.new_watermark is None:
        message = f"the watermark {state.watermark} ns is not carried forward."
        raise errors.WatermarkLost.at(block, message, expected=state.watermark, actual=None)


# Rule 3: offsets are dense


def prev_offset_matches(state: ChainState, block: MetadataBlock) -> None:
    """A data block says the last offset before it."""
    if isinstance(block.event, ROUTINE) and block.event.prev_offset != state.last_offset:
        message = f"prev_offset is {block.event.prev_offset}, but the chain's last offset is {state.last_offset}."
        raise errors.PrevOffsetMismatch.at(block, message, expected=state.last_offset, actual=block.event.prev_offset)


def data_starts_after_the_last_offset(state: ChainState, block: MetadataBlock) -> None:
    """New records continue where the last ones end, or at 0."""
    if not isinstance(block.event, ROUTINE) or block.event.new_data is None:
        return
    start = block.event.new_data.offset_interval.start
    if start != state.next_offset:
        message = f"new data starts at offset {start}, but the next offset is {state.next_offset}."
        raise errors.OffsetGap.at(block, message, expected=state.next_offset, actual=start)


def data_does_not_end_before_it_starts(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """A slice holds at least one record."""
    if not isinstance(block.event, ROUTINE) or block.event.new_data is None:
        return
    interval = block.event.new_data.offset_interval
    if interval.end < interval.start:
        message = f"new data ends at offset {interval.end}, before its start {interval.start}."
        raise errors.IntervalReversed.at(block, message, start=interval.start, end=interval.end)


# Rule 4: no event without effect


def data_block_advances_something(state: ChainState, block: MetadataBlock) -> None:
    """A data block moves data, checkpoint, watermark, source state or an input."""
    if isinstance(block.event, ROUTINE) and not _advances(state, block.event):
        message = f"this {kind(block.event)} adds no data and moves no checkpoint, watermark, source or input."
        raise errors.NoOpEvent.at(block, message)


def _advances(state: ChainState, event: DataEvent) -> bool:
    if event.new_data is not None:
        return True
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != state.checkpoint:
        return True
    if event.new_watermark is not None and event.new_watermark != state.watermark:
        return True
    if isinstance(event, AddData):
        return event.new_source_state is not None and event.new_source_state != state.source_state
    return any(item.new_block_hash is not None for item in event.query_inputs)


# Rule 5: what a data block stands on, and what it carries


def schema_precedes_data(state: ChainState, block: MetadataBlock) -> None:
    """There is a schema before there are records."""
    if isinstance(block.event, ROUTINE) and block.event.new_data is not None and state.data_schema is None:
        raise errors.DataBeforeSchema.at(block, "data comes before the chain's first SetDataSchema.")


def prev_checkpoint_matches(state: ChainState, block: MetadataBlock) -> None:
    """A data block names the checkpoint before it."""
    if isinstance(block.event, ROUTINE) and block.event.prev_checkpoint != state.checkpoint:
        message = f"prev_checkpoint is {block.event.prev_checkpoint}, but the last one is {state.checkpoint}."
        raise errors.PrevCheckpointMismatch.at(
            block, message, expected=state.checkpoint, actual=block.event.prev_checkpoint
        )


def source_state_is_carried(state: ChainState, block: MetadataBlock) -> None:
    """Once there is a source state, every AddData says it."""
    if isinstance(block.event, AddData) and state.source_state is not None and not block.event.new_source_state:
        message = f"the state of source {state.source_state.source_name!r} is not carried forward."
        raise errors.SourceStateLost.at(block, message, expected=state.source_state, actual=None)


# Rule 8: old records stay readable


def schema_evolves(state: ChainState, block: MetadataBlock) -> None:
    """A new schema can read the records written under the old one."""
    if not isinstance(block.event, SetDataSchema):
        return
    old, new = state.data_schema, block.event
    if new == old:
        raise errors.SchemaUnchanged.at(block, "the schema is the one that is set already.")
    if new.schema is None:
        if new.raw_arrow_schema is None or state.schema is not None:
            raise errors.SchemaMissing.at(block, "SetDataSchema holds no schema.")
        return
    try:
        if state.schema is None:
            check_field_names(new.schema)
        else:
            check_evolution(state.schema, new.schema)
    except errors.RuleBroken as error:
        raise type(error).at(block, error.message, hint=error.hint, **error.facts) from error


RULES: tuple[Rule, ...] = (
    seed_is_first_and_only_first,
    sequence_number_follows,
    prev_block_hash_matches,
    system_time_does_not_go_back,
    watermark_does_not_go_back,
    watermark_is_carried,
    prev_offset_matches,
    data_starts_after_the_last_offset,
    data_does_not_end_before_it_starts,
    data_block_advances_something,
    schema_precedes_data,
    prev_checkpoint_matches,
    source_state_is_carried,
    transform_rules.event_fits_the_kind_of_dataset,
    transform_rules.transform_precedes_its_execution,
    transform_rules.inputs_are_those_of_the_transform,
    transform_rules.inputs_continue_where_they_were_left,
    transform_rules.inputs_move_only_forward,
    transform_rules.new_input_offset_comes_with_its_block,
    transform_rules.transform_has_inputs,
    transform_rules.transform_inputs_are_unique,
    transform_rules.transform_inputs_are_resolved,
    transform_rules.transform_inputs_are_aliased,
    transform_rules.only_the_last_query_has_no_alias,
    schema_evolves,
)
"""Every rule, in the order in which `check` tries them."""


def _after(state: ChainState) -> str:
    return f" after {state.head}" if state.head is not None else " in an empty chain"
