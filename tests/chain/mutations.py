"""Ways to break a valid chain: each changes one block so that it breaks one rule."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from chain.strategies import DERIVATIVE, ROOT, a_hash, a_slice, an_id
from floodmark import errors
from floodmark.chain import schema as s
from floodmark.chain.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    SqlQueryStep,
    TransformInput,
)
from floodmark.chain.state import ChainState

Change = Callable[[ChainState, MetadataBlock], MetadataBlock | None]


@dataclass(frozen=True)
class Mutation:
    """A change of one block, None where it does not apply, and the rule that it breaks."""

    name: str
    breaks: errors.Rule
    kind: DatasetKind
    change: Change


MUTATIONS: list[Mutation] = []


def breaks(rule: errors.Rule, kind: DatasetKind = ROOT):
    """Register a mutation of the whole block."""

    def register(change: Change) -> Change:
        MUTATIONS.append(Mutation(change.__name__, rule, kind, change))
        return change

    return register


def event_breaks(rule: errors.Rule, of: type, kind: DatasetKind = ROOT):
    """Register a mutation of events of one type."""

    def register(change):
        def change_block(state, block):
            event = change(state, block.event) if isinstance(block.event, of) else None
            return None if event is None else replace(block, event=event)

        MUTATIONS.append(Mutation(change.__name__, rule, kind, change_block))
        return change

    return register


# Rule 1


@breaks(errors.Rule.SEED_MISSING)
def first_block_is_not_a_seed(state, block):
    return replace(block, event=SetInfo("no seed")) if state.head is None else None


@breaks(errors.Rule.SEED_REPEATED)
def second_seed(state, block):
    return replace(block, event=Seed(an_id("this"), ROOT)) if state.head is not None else None


@breaks(errors.Rule.SEQUENCE_BROKEN)
def sequence_number_one_too_high(state, block):
    return replace(block, sequence_number=block.sequence_number + 1)


@breaks(errors.Rule.SEQUENCE_BROKEN)
def sequence_number_repeated(state, block):
    return replace(block, sequence_number=block.sequence_number - 1) if block.sequence_number else None


@breaks(errors.Rule.PREV_BLOCK_MISMATCH)
def prev_block_hash_of_another_block(state, block):
    return replace(block, prev_block_hash=a_hash("elsewhere"))


@breaks(errors.Rule.PREV_BLOCK_MISMATCH)
def prev_block_hash_missing(state, block):
    return replace(block, prev_block_hash=None) if state.head is not None else None


# Rule 2


@breaks(errors.Rule.SYSTEM_TIME_WENT_BACK)
def system_time_a_nanosecond_back(state, block):
    return None if state.system_time is None else replace(block, system_time=state.system_time - 1)


def watermark_a_nanosecond_back(state, event):
    if state.watermark is None or state.schema is None:
        return None
    return replace(event, new_watermark=state.watermark - 1, new_data=_some(state))


def watermark_dropped(state, event):
    if state.watermark is None or state.schema is None:
        return None
    return replace(event, new_watermark=None, new_data=_some(state))


# Rule 3


def prev_offset_one_too_low(state, event):
    return replace(event, prev_offset=state.last_offset - 1) if state.last_offset else None


def prev_offset_missing(state, event):
    return replace(event, prev_offset=None) if state.last_offset is not None else None


def prev_offset_out_of_nothing(state, event):
    return replace(event, prev_offset=0) if state.last_offset is None else None


def gap_before_the_data(state, event):
    start = state.next_offset + 1
    return replace(event, new_data=a_slice(start, start + 1)) if state.schema else None


def data_overlaps(state, event):
    return replace(event, new_data=a_slice(state.last_offset, state.next_offset)) if state.last_offset else None


def data_ends_before_it_starts(state, event):
    if not state.schema or not state.next_offset:
        return None
    return replace(event, new_data=a_slice(state.next_offset, state.next_offset - 1))


# Rule 4


def _nothing_new(state, event):
    return replace(event, new_data=None, new_checkpoint=None, new_watermark=state.watermark)


@event_breaks(errors.Rule.NO_OP_EVENT, AddData)
def add_data_without_effect(state, event):
    return replace(_nothing_new(state, event), new_source_state=state.source_state)


@event_breaks(errors.Rule.NO_OP_EVENT, AddData)
def add_data_repeats_the_checkpoint(state, event):
    if state.checkpoint is None:
        return None
    nothing = replace(_nothing_new(state, event), new_source_state=state.source_state)
    return replace(nothing, new_checkpoint=Checkpoint(state.checkpoint, 7))


@event_breaks(errors.Rule.NO_OP_EVENT, ExecuteTransform, DERIVATIVE)
def execute_transform_without_effect(state, event):
    still = tuple(replace(item, new_block_hash=None, new_offset=None) for item in event.query_inputs)
    return replace(_nothing_new(state, event), query_inputs=still)


# Rule 5


def data_before_schema(state, event):
    return replace(event, new_data=a_slice(0, 1)) if state.schema is None else None


def prev_checkpoint_of_another_chain(state, event):
    return replace(event, prev_checkpoint=a_hash("elsewhere"))


def prev_checkpoint_missing(state, event):
    return replace(event, prev_checkpoint=None) if state.checkpoint is not None else None


@event_breaks(errors.Rule.SOURCE_STATE_LOST, AddData)
def source_state_dropped(state, event):
    if state.source_state is None or state.schema is None:
        return None
    return replace(event, new_source_state=None, new_data=_some(state))


def _some(state):
    return a_slice(state.next_offset, state.next_offset) if state.schema else None


# Rule 6


@event_breaks(errors.Rule.WRONG_DATASET_KIND, ExecuteTransform, DERIVATIVE)
def add_data_on_a_derivative(state, event):
    if state.schema is None:
        return None
    return AddData(event.prev_checkpoint, event.prev_offset, _some(state), new_watermark=event.new_watermark)


@breaks(errors.Rule.TRANSFORM_MISSING, DERIVATIVE)
def execute_transform_before_set_transform(state, block):
    inputs = (ExecuteTransformInput(an_id("x"), new_block_hash=a_hash("new")),)
    missing = state.head is not None and state.transform is None
    return replace(block, event=ExecuteTransform(inputs)) if missing else None


@event_breaks(errors.Rule.INPUTS_MISMATCH, ExecuteTransform, DERIVATIVE)
def inputs_reordered(state, event):
    inputs = event.query_inputs
    return (
        replace(event, query_inputs=inputs[::-1], new_data=_some(state)) if len(inputs) > 1 and state.schema else None
    )


@event_breaks(errors.Rule.INPUTS_MISMATCH, ExecuteTransform, DERIVATIVE)
def input_missing(state, event):
    return replace(event, query_inputs=event.query_inputs[1:], new_data=_some(state)) if state.schema else None


@event_breaks(errors.Rule.INPUTS_MISMATCH, ExecuteTransform, DERIVATIVE)
def input_added(state, event):
    return replace(event, query_inputs=(*event.query_inputs, ExecuteTransformInput(an_id("stranger"))))


def _first_input(event, **changes):
    first, *others = event.query_inputs
    return replace(event, query_inputs=(replace(first, **changes), *others))


@event_breaks(errors.Rule.INPUT_POSITION_MISMATCH, ExecuteTransform, DERIVATIVE)
def input_starts_from_another_block(state, event):
    return _first_input(event, prev_block_hash=a_hash("elsewhere"))


@event_breaks(errors.Rule.INPUT_POSITION_MISMATCH, ExecuteTransform, DERIVATIVE)
def input_starts_over(state, event):
    first = event.query_inputs[0]
    if first.prev_block_hash is None:
        return None
    return _first_input(event, prev_block_hash=None, prev_offset=None)


@event_breaks(errors.Rule.INPUT_POSITION_MISMATCH, ExecuteTransform, DERIVATIVE)
def input_starts_from_an_earlier_offset(state, event):
    first = event.query_inputs[0]
    return _first_input(event, prev_offset=first.prev_offset - 1) if first.prev_offset else None


@event_breaks(errors.Rule.INPUT_NOT_ADVANCED, ExecuteTransform, DERIVATIVE)
def input_advances_to_the_block_it_was_at(state, event):
    first = event.query_inputs[0]
    if first.prev_block_hash is None:
        return None
    return _first_input(event, new_block_hash=first.prev_block_hash, new_offset=None)


@event_breaks(errors.Rule.INPUT_NOT_ADVANCED, ExecuteTransform, DERIVATIVE)
def input_advances_to_the_offset_it_was_at(state, event):
    first = event.query_inputs[0]
    if first.prev_offset is None:
        return None
    return _first_input(event, new_block_hash=a_hash("new"), new_offset=first.prev_offset)


@event_breaks(errors.Rule.INPUT_NOT_ADVANCED, ExecuteTransform, DERIVATIVE)
def input_goes_back(state, event):
    first = event.query_inputs[0]
    if not first.prev_offset:
        return None
    return _first_input(event, new_block_hash=a_hash("new"), new_offset=first.prev_offset - 1)


@event_breaks(errors.Rule.INPUT_OFFSET_WITHOUT_BLOCK, ExecuteTransform, DERIVATIVE)
def input_offset_without_block(state, event):
    if state.schema is None:
        return None
    last = event.query_inputs[0].prev_offset
    without = _first_input(event, new_block_hash=None, new_offset=0 if last is None else last + 1)
    return replace(without, new_data=_some(state))


# Rule 7


@event_breaks(errors.Rule.TRANSFORM_WITHOUT_INPUTS, SetTransform, DERIVATIVE)
def transform_without_inputs(state, event):
    return replace(event, inputs=())


@event_breaks(errors.Rule.DUPLICATE_INPUT, SetTransform, DERIVATIVE)
def transform_reads_a_dataset_twice(state, event):
    again = TransformInput(event.inputs[0].dataset_ref, "another alias")
    return replace(event, inputs=(*event.inputs, again))


@event_breaks(errors.Rule.DUPLICATE_INPUT, SetTransform, DERIVATIVE)
def transform_uses_an_alias_twice(state, event):
    again = TransformInput(an_id("stranger").text, event.inputs[0].alias)
    return replace(event, inputs=(*event.inputs, again))


@event_breaks(errors.Rule.UNRESOLVED_INPUT, SetTransform, DERIVATIVE)
def transform_names_its_input_by_name(state, event):
    return replace(event, inputs=(*event.inputs, TransformInput("trips", "t")))


@event_breaks(errors.Rule.UNRESOLVED_INPUT, SetTransform, DERIVATIVE)
def transform_spells_an_id_in_upper_case(state, event):
    upper = "did:odf:f" + an_id("stranger").text.removeprefix("did:odf:f").upper()
    return replace(event, inputs=(*event.inputs, TransformInput(upper, "t")))


@event_breaks(errors.Rule.UNALIASED_INPUT, SetTransform, DERIVATIVE)
def transform_without_an_alias(state, event):
    return replace(event, inputs=(*event.inputs, TransformInput(an_id("stranger").text)))


def _queries(event, *aliases):
    queries = tuple(SqlQueryStep(alias=alias, query="select 1") for alias in aliases)
    return replace(event, transform=replace(event.transform, queries=queries))


@event_breaks(errors.Rule.QUERY_ALIAS_MISPLACED, SetTransform, DERIVATIVE)
def last_query_has_an_alias(state, event):
    return _queries(event, "a", "b")


@event_breaks(errors.Rule.QUERY_ALIAS_MISPLACED, SetTransform, DERIVATIVE)
def query_before_the_last_has_no_alias(state, event):
    return _queries(event, "a", None, None)


# Rule 8


def next_schema(rule: errors.Rule):
    """Register a mutation that turns any block after the first schema into a change of it."""

    def register(change):
        def change_block(state, block):
            if state.schema is None:
                return None
            return replace(block, event=SetDataSchema(schema=change(state.schema)))

        MUTATIONS.append(Mutation(change.__name__, rule, ROOT, change_block))
        return change

    return register


def _with_field(schema, name, type_):
    fields = [replace(field, type=type_) if field.name == name else field for field in schema.fields]
    return replace(schema, fields=tuple(fields))


@next_schema(errors.Rule.SCHEMA_UNCHANGED)
def identical_schema(schema):
    return schema


@next_schema(errors.Rule.FIELD_REMOVED)
def field_removed(schema):
    return replace(schema, fields=tuple(field for field in schema.fields if field.name != "name"))


@next_schema(errors.Rule.FIELD_TYPE_CHANGED)
def field_type_changed(schema):
    return _with_field(schema, "name", s.DataTypeOption(s.DataTypeInt64()))


@next_schema(errors.Rule.FIELD_OPTIONALITY_CHANGED)
def field_made_required(schema):
    return _with_field(schema, "name", s.DataTypeString())


@next_schema(errors.Rule.FIELD_OPTIONALITY_CHANGED)
def field_made_optional(schema):
    return _with_field(schema, "offset", s.DataTypeOption(s.DataTypeInt64()))


@next_schema(errors.Rule.NEW_FIELD_REQUIRED)
def required_field_added(schema):
    return replace(schema, fields=(*schema.fields, s.DataField("fresh", s.DataTypeInt8())))


@next_schema(errors.Rule.DUPLICATE_FIELD)
def field_name_twice(schema):
    return replace(schema, fields=(*schema.fields, s.DataField("name", s.DataTypeOption(s.DataTypeString()))))


@next_schema(errors.Rule.FIELD_REMOVED)
def nested_field_removed(schema):
    return _with_field(schema, "tags", s.DataTypeList(s.DataTypeStruct(())))


@breaks(errors.Rule.SCHEMA_MISSING)
def schema_event_without_a_schema(state, block):
    return replace(block, event=SetDataSchema()) if state.head is not None else None


for data_mutation, broken in (
    (watermark_a_nanosecond_back, errors.Rule.WATERMARK_WENT_BACK),
    (watermark_dropped, errors.Rule.WATERMARK_LOST),
    (prev_offset_one_too_low, errors.Rule.PREV_OFFSET_MISMATCH),
    (prev_offset_missing, errors.Rule.PREV_OFFSET_MISMATCH),
    (prev_offset_out_of_nothing, errors.Rule.PREV_OFFSET_MISMATCH),
    (gap_before_the_data, errors.Rule.OFFSET_GAP),
    (data_overlaps, errors.Rule.OFFSET_GAP),
    (data_ends_before_it_starts, errors.Rule.INTERVAL_REVERSED),
    (data_before_schema, errors.Rule.DATA_BEFORE_SCHEMA),
    (prev_checkpoint_of_another_chain, errors.Rule.PREV_CHECKPOINT_MISMATCH),
    (prev_checkpoint_missing, errors.Rule.PREV_CHECKPOINT_MISMATCH),
):
    event_breaks(broken, AddData, ROOT)(data_mutation)
    event_breaks(broken, ExecuteTransform, DERIVATIVE)(data_mutation)
