"""The rules that a chain must satisfy: one function per rule.

A rule compares the state of the chain with the next block, and raises `RuleBroken` or returns. Numbers refer to the
list of rules in the format. An entry of that list with several parts has several functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from floodmark.chain.events import (
    ROUTINE_EVENTS,
    AddData,
    DataEvent,
    DatasetKind,
    ExecuteTransform,
    MetadataBlock,
    Seed,
    SetDataSchema,
    SetTransform,
    kind,
)
from floodmark.chain.schema import check_evolution, check_field_names
from floodmark.chain.state import ChainState, InputPosition, parse_input_ids
from floodmark.errors import Rule, RuleBroken

RuleCheck = Callable[[ChainState, MetadataBlock], None]


def check(state: ChainState, block: MetadataBlock) -> None:
    """Raise `RuleBroken` if the block breaks a rule as the next block of this chain."""
    for rule in RULES:
        rule(state, block)


def problems(state: ChainState, block: MetadataBlock) -> Iterator[RuleBroken]:
    """All rules that the block breaks. `check` stops at the first."""
    for rule in RULES:
        try:
            rule(state, block)
        except RuleBroken as error:
            yield error


# Rule 1: blocks form one chain


def seed_is_first_and_only_first(state: ChainState, block: MetadataBlock) -> None:
    """The first block is a Seed, and no other block is."""
    is_seed = isinstance(block.event, Seed)
    if state.head is None and not is_seed:
        raise RuleBroken.at(block, Rule.SEED_MISSING, f"a chain starts with Seed, not {kind(block.event)}.")
    if state.head is not None and is_seed:
        raise RuleBroken.at(block, Rule.SEED_REPEATED, "a Seed can only be the first block of a chain.")


def sequence_number_follows(state: ChainState, block: MetadataBlock) -> None:
    """Blocks have the numbers 0, 1, 2, …"""
    if block.sequence_number != state.next_sequence_number:
        message = f"the sequence number should be {state.next_sequence_number}{_position_text(state)}."
        raise RuleBroken.at(
            block, Rule.SEQUENCE_BROKEN, message, expected=state.next_sequence_number, actual=block.sequence_number
        )


def prev_block_hash_matches(state: ChainState, block: MetadataBlock) -> None:
    """A block contains the hash of the previous block."""
    if block.prev_block_hash != state.head_hash:
        message = f"prev_block_hash is {block.prev_block_hash}, but should be {state.head_hash}{_position_text(state)}."
        raise RuleBroken.at(
            block, Rule.PREV_BLOCK_MISMATCH, message, expected=state.head_hash, actual=block.prev_block_hash
        )


# Rule 2: time does not go back


def system_time_does_not_go_back(state: ChainState, block: MetadataBlock) -> None:
    """A block is not older than the previous block."""
    if state.system_time is not None and block.system_time < state.system_time:
        message = f"system_time {block.system_time} ns is before {state.system_time} ns{_position_text(state)}."
        raise RuleBroken.at(
            block, Rule.SYSTEM_TIME_WENT_BACK, message, expected=state.system_time, actual=block.system_time
        )


def watermark_does_not_go_back(state: ChainState, block: MetadataBlock) -> None:
    """A watermark is not earlier than the previous watermark."""
    if not isinstance(block.event, ROUTINE_EVENTS) or state.watermark is None or block.event.new_watermark is None:
        return
    if block.event.new_watermark < state.watermark:
        message = f"the watermark goes back from {state.watermark} ns to {block.event.new_watermark} ns."
        raise RuleBroken.at(
            block, Rule.WATERMARK_WENT_BACK, message, expected=state.watermark, actual=block.event.new_watermark
        )


def watermark_is_repeated(state: ChainState, block: MetadataBlock) -> None:
    """After the first watermark, every data block contains the watermark."""
    if not isinstance(block.event, ROUTINE_EVENTS) or state.watermark is None:
        return
    if block.event.new_watermark is None:
        message = f"the watermark {state.watermark} ns is missing; every data block must repeat it."
        raise RuleBroken.at(block, Rule.WATERMARK_LOST, message, expected=state.watermark, actual=None)


# Rule 3: offsets are dense


def prev_offset_matches(state: ChainState, block: MetadataBlock) -> None:
    """A data block contains the last offset before it."""
    if isinstance(block.event, ROUTINE_EVENTS) and block.event.prev_offset != state.last_offset:
        message = f"prev_offset is {block.event.prev_offset}, but the chain's last offset is {state.last_offset}."
        raise RuleBroken.at(
            block, Rule.PREV_OFFSET_MISMATCH, message, expected=state.last_offset, actual=block.event.prev_offset
        )


def data_starts_after_the_last_offset(state: ChainState, block: MetadataBlock) -> None:
    """New records start after the last offset, or at 0."""
    if not isinstance(block.event, ROUTINE_EVENTS) or block.event.new_data is None:
        return
    start = block.event.new_data.offset_interval.start
    if start != state.next_offset:
        message = f"new data starts at offset {start}, but the next offset is {state.next_offset}."
        raise RuleBroken.at(block, Rule.OFFSET_GAP, message, expected=state.next_offset, actual=start)


def data_does_not_end_before_it_starts(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """A slice has at least one record."""
    if not isinstance(block.event, ROUTINE_EVENTS) or block.event.new_data is None:
        return
    interval = block.event.new_data.offset_interval
    if interval.end < interval.start:
        message = f"new data ends at offset {interval.end}, before its start {interval.start}."
        raise RuleBroken.at(block, Rule.INTERVAL_REVERSED, message, start=interval.start, end=interval.end)


# Rule 4: every event has an effect


def data_block_has_an_effect(state: ChainState, block: MetadataBlock) -> None:
    """A data block adds data, or moves the checkpoint, watermark, source state or an input."""
    if isinstance(block.event, ROUTINE_EVENTS) and not _has_effect(state, block.event):
        message = f"this {kind(block.event)} adds no data and moves no checkpoint, watermark, source or input."
        raise RuleBroken.at(block, Rule.NO_OP_EVENT, message)


def _has_effect(state: ChainState, event: DataEvent) -> bool:
    if event.new_data is not None:
        return True
    if event.new_checkpoint is not None and event.new_checkpoint.physical_hash != state.checkpoint:
        return True
    if event.new_watermark is not None and event.new_watermark != state.watermark:
        return True
    if isinstance(event, AddData):
        return event.new_source_state is not None and event.new_source_state != state.source_state
    return any(item.new_block_hash is not None for item in event.query_inputs)


# Rule 5: what a data block requires and repeats


def schema_precedes_data(state: ChainState, block: MetadataBlock) -> None:
    """A schema comes before the first records."""
    if isinstance(block.event, ROUTINE_EVENTS) and block.event.new_data is not None and state.data_schema is None:
        raise RuleBroken.at(block, Rule.DATA_BEFORE_SCHEMA, "data comes before the chain's first SetDataSchema.")


def prev_checkpoint_matches(state: ChainState, block: MetadataBlock) -> None:
    """A data block contains the previous checkpoint."""
    if isinstance(block.event, ROUTINE_EVENTS) and block.event.prev_checkpoint != state.checkpoint:
        message = f"prev_checkpoint is {block.event.prev_checkpoint}, but the last one is {state.checkpoint}."
        raise RuleBroken.at(
            block, Rule.PREV_CHECKPOINT_MISMATCH, message, expected=state.checkpoint, actual=block.event.prev_checkpoint
        )


def source_state_is_repeated(state: ChainState, block: MetadataBlock) -> None:
    """After the first source state, every AddData contains the source state."""
    if isinstance(block.event, AddData) and state.source_state is not None and not block.event.new_source_state:
        message = f"the state of source {state.source_state.source_name!r} is missing; every AddData must repeat it."
        raise RuleBroken.at(block, Rule.SOURCE_STATE_LOST, message, expected=state.source_state, actual=None)


# Rule 8: old records stay readable


def schema_evolves(state: ChainState, block: MetadataBlock) -> None:
    """A new schema can read the records of the old one."""
    if not isinstance(block.event, SetDataSchema):
        return
    old, new = state.data_schema, block.event
    if new == old:
        raise RuleBroken.at(block, Rule.SCHEMA_UNCHANGED, "the new schema equals the current one.")
    in_old_form = old is not None and old.schema is None
    columns = new.columns
    if columns is None:
        raise RuleBroken.at(block, Rule.SCHEMA_MISSING, "SetDataSchema contains no schema that can be read.")
    if new.schema is None and old is not None and not in_old_form:
        raise RuleBroken.at(block, Rule.SCHEMA_MISSING, "SetDataSchema contains a schema only in the old form.")
    try:
        if state.schema is None:
            check_field_names(columns)
        elif not in_old_form or columns != state.schema:  # the same columns in the new form are a change
            check_evolution(state.schema, columns)
    except RuleBroken as error:
        facts = {name: value for name, value in error.facts.items() if name != "rule"}
        raise RuleBroken.at(block, error.rule, error.message, hint=error.hint, **facts) from error


# Rule 6: transactions of a transform


def event_fits_the_kind_of_dataset(state: ChainState, block: MetadataBlock) -> None:
    """Only roots have AddData, and only derivatives have ExecuteTransform."""
    is_mismatch = (
        (isinstance(block.event, AddData) and state.dataset_kind is DatasetKind.DERIVATIVE)
        or (isinstance(block.event, ExecuteTransform) and state.dataset_kind is DatasetKind.ROOT)
    )  # fmt: skip
    if is_mismatch and state.dataset_kind is not None:
        message = f"a {state.dataset_kind.name.lower()} dataset cannot have {kind(block.event)}."
        raise RuleBroken.at(block, Rule.WRONG_DATASET_KIND, message, dataset_kind=state.dataset_kind)


def inputs_match_the_transform(state: ChainState, block: MetadataBlock) -> None:
    """A transaction lists all inputs of the transform, in the same order."""
    if not isinstance(block.event, ExecuteTransform) or state.transform is None:
        return
    actual = tuple(item.dataset_id for item in block.event.query_inputs)
    expected = parse_input_ids(state.transform)
    if actual != expected:
        message = f"the inputs are {_join_ids(actual)}, but the transform's are {_join_ids(expected)}."
        raise RuleBroken.at(block, Rule.INPUTS_MISMATCH, message, expected=expected, actual=actual)


def inputs_continue_from_last_position(state: ChainState, block: MetadataBlock) -> None:
    """The prev of an input is the new of the last transaction, or its prev if it had no new."""
    if not isinstance(block.event, ExecuteTransform):
        return
    known = {position.dataset_id: position for position in state.inputs}
    for item in block.event.query_inputs:
        expected = known.get(item.dataset_id, InputPosition(item.dataset_id, None, None))
        actual = InputPosition(item.dataset_id, item.prev_block_hash, item.prev_offset)
        if actual != expected:
            message = (
                f"input {item.dataset_id} starts from block {actual.block_hash}, offset {actual.offset}, "
                f"but the last transaction ended at block {expected.block_hash}, offset {expected.offset}."
            )
            raise RuleBroken.at(block, Rule.INPUT_POSITION_MISMATCH, message, expected=expected, actual=actual)


def inputs_move_only_forward(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """The new block and offset of an input are after its prev. An input that did not move has no new."""
    if not isinstance(block.event, ExecuteTransform):
        return
    for item in block.event.query_inputs:
        same_block = item.new_block_hash is not None and item.new_block_hash == item.prev_block_hash
        before = -1 if item.prev_offset is None else item.prev_offset
        if same_block or (item.new_offset is not None and item.new_offset <= before):
            message = (
                f"input {item.dataset_id} does not advance: from block {item.prev_block_hash}, offset "
                f"{item.prev_offset} to block {item.new_block_hash}, offset {item.new_offset}."
            )
            raise RuleBroken.at(block, Rule.INPUT_NOT_ADVANCED, message, dataset_id=item.dataset_id)


def new_input_offset_comes_with_its_block(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """The offset of an input moves only together with its block."""
    if not isinstance(block.event, ExecuteTransform):
        return
    for item in block.event.query_inputs:
        if item.new_offset is not None and item.new_block_hash is None:
            message = f"input {item.dataset_id} moves to offset {item.new_offset} without a new block."
            raise RuleBroken.at(block, Rule.INPUT_OFFSET_WITHOUT_BLOCK, message, dataset_id=item.dataset_id)


def only_the_last_query_has_no_alias(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """The last query is the result. All queries before it have names."""
    if not isinstance(block.event, SetTransform) or not block.event.transform.queries:
        return
    *steps, last = (query.alias for query in block.event.transform.queries)
    if last is not None:
        message = f"the last query is the result and has no alias, but this one has {last!r}."
        raise RuleBroken.at(block, Rule.QUERY_ALIAS_MISPLACED, message, query=len(steps))
    if None in steps:
        number = steps.index(None)
        message = f"query {number} has no alias; only the last query may omit it."
        raise RuleBroken.at(block, Rule.QUERY_ALIAS_MISPLACED, message, query=number)


# Rule 7: a transform can be executed


def transform_has_inputs(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """A transform has at least one input."""
    if isinstance(block.event, SetTransform) and not block.event.inputs:
        raise RuleBroken.at(block, Rule.TRANSFORM_WITHOUT_INPUTS, "SetTransform names no input.")


def transform_inputs_are_aliased(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Every input has an alias, which the queries use."""
    if not isinstance(block.event, SetTransform):
        return
    for item in block.event.inputs:
        if not item.alias:
            message = f"the input {item.dataset_ref!r} of SetTransform has no alias."
            raise RuleBroken.at(block, Rule.UNALIASED_INPUT, message, input=item.dataset_ref)


def transform_inputs_are_resolved(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Inputs are referenced by dataset id, which does not change when a dataset is renamed."""
    if not isinstance(block.event, SetTransform):
        return
    for item, id_ in zip(block.event.inputs, parse_input_ids(block.event), strict=True):
        if id_ is None:
            message = f"the input {item.dataset_ref!r} of SetTransform is not a dataset id."
            raise RuleBroken.at(block, Rule.UNRESOLVED_INPUT, message, input=item.dataset_ref)


def transform_inputs_are_unique(state: ChainState, block: MetadataBlock) -> None:  # noqa: ARG001
    """Every dataset and every alias occurs once."""
    if not isinstance(block.event, SetTransform):
        return
    refs = Counter(item.dataset_ref for item in block.event.inputs)
    aliases = Counter(item.alias for item in block.event.inputs if item.alias is not None)
    for name in (*refs, *aliases):
        if refs[name] > 1 or aliases[name] > 1:
            raise RuleBroken.at(block, Rule.DUPLICATE_INPUT, f"SetTransform names {name} twice.", input=name)


def transform_precedes_its_execution(state: ChainState, block: MetadataBlock) -> None:
    """A SetTransform comes before the first ExecuteTransform."""
    if isinstance(block.event, ExecuteTransform) and state.transform is None:
        raise RuleBroken.at(block, Rule.TRANSFORM_MISSING, "ExecuteTransform comes before any SetTransform.")


RULES: tuple[RuleCheck, ...] = (
    seed_is_first_and_only_first,
    sequence_number_follows,
    prev_block_hash_matches,
    system_time_does_not_go_back,
    watermark_does_not_go_back,
    watermark_is_repeated,
    prev_offset_matches,
    data_starts_after_the_last_offset,
    data_does_not_end_before_it_starts,
    data_block_has_an_effect,
    schema_precedes_data,
    prev_checkpoint_matches,
    source_state_is_repeated,
    event_fits_the_kind_of_dataset,
    transform_precedes_its_execution,
    inputs_match_the_transform,
    inputs_continue_from_last_position,
    inputs_move_only_forward,
    new_input_offset_comes_with_its_block,
    transform_has_inputs,
    transform_inputs_are_unique,
    transform_inputs_are_resolved,
    transform_inputs_are_aliased,
    only_the_last_query_has_no_alias,
    schema_evolves,
)
"""All rules, in the order in which `check` applies them."""


def _position_text(state: ChainState) -> str:
    return f" after {state.head}" if state.head is not None else " in an empty chain"


def _join_ids(ids: tuple[object, ...]) -> str:
    return ", ".join(str(id_) for id_ in ids) or "none"
