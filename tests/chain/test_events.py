"""A data event alone says where the chain stands."""

import pytest

from chain.strategies import a_hash, a_slice, an_id
from floodmark.chain import events
from floodmark.chain.events import (
    AddData,
    Checkpoint,
    DataEvent,
    ExecuteTransform,
    ExecuteTransformInput,
    SetInfo,
    SourceState,
)
from floodmark.chain.schema import ExtraAttributes

STATE = SourceState("source", "kind", "value")


@pytest.mark.parametrize(
    ("event", "last", "following", "rows"),
    [
        (AddData(), None, 0, 0),
        (AddData(prev_offset=9), 9, 10, 0),
        (AddData(new_data=a_slice(0, 0)), 0, 1, 1),
        (ExecuteTransform((), prev_offset=9, new_data=a_slice(10, 14)), 14, 15, 5),
    ],
)
def test_offsets_after_an_event(event: DataEvent, last, following, rows):
    assert (events.last_offset(event), events.next_offset(event), events.rows(event)) == (last, following, rows)


def test_checkpoint_after_an_event_is_the_new_one_or_else_the_previous():
    assert events.checkpoint(AddData()) is None
    assert events.checkpoint(AddData(prev_checkpoint=a_hash(1))) == a_hash(1)
    assert events.checkpoint(AddData(a_hash(1), new_checkpoint=Checkpoint(a_hash(2), 5))) == a_hash(2)


def test_source_state_is_that_of_add_data():
    assert events.source_state(AddData(new_source_state=STATE)) == STATE
    assert events.source_state(ExecuteTransform(())) is None


def test_input_position_after_a_transaction_is_new_or_else_prev():
    still = ExecuteTransformInput(an_id("x"), a_hash(1), None, 5, None)
    moved = ExecuteTransformInput(an_id("x"), a_hash(1), a_hash(2), 5, 0)
    assert (still.last_block_hash, still.last_offset) == (a_hash(1), 5)
    assert (moved.last_block_hash, moved.last_offset) == (a_hash(2), 0)


def test_kind_is_the_class_name_and_only_data_is_routine():
    assert events.kind(SetInfo()) == "SetInfo"
    assert {"AddData", "ExecuteTransform"} == events.ROUTINE_KINDS


def test_extra_attributes_are_compact_json_with_sorted_top_level_keys():
    extra = ExtraAttributes.of({"b": {"z": 1, "a": "ö"}, "a": [1, 2]})
    assert extra.entries == '{"a":[1,2],"b":{"z":1,"a":"ö"}}'
    assert extra.parsed == {"a": [1, 2], "b": {"z": 1, "a": "ö"}}


def test_extra_attributes_that_are_no_object_do_not_parse():
    with pytest.raises(ValueError, match="not a JSON object"):
        _ = ExtraAttributes("[1]").parsed
