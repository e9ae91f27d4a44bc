"""Every single change that breaks a rule is refused by that rule, and by no other."""

import pickle

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chain.mutations import MUTATIONS, Mutation
from chain.refusals import refused
from chain.strategies import DERIVATIVE, ROOT, Model, a_hash, a_slice, an_id, models
from floodmark import errors
from floodmark.chain import rules
from floodmark.chain.events import AddData, ExecuteTransform, ExecuteTransformInput, MetadataBlock
from floodmark.chain.state import EMPTY, apply_block
from floodmark.chain.walk import check_chain
from floodmark.errors import RuleBroken
from profiles import examples


def broken_blocks(model: Model, mutation: Mutation):
    """The chain's state before, and the mutated block, wherever the mutation applies."""
    state = EMPTY
    for hash_, block in model.blocks:
        mutated = mutation.change(state, block)
        if mutated is not None:
            yield state, mutated
        state = apply_block(state, hash_, block)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.name}-{m.kind.name.lower()}")
@given(data=st.data())
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.filter_too_much])
def test_broken_block_is_refused_by_the_rule_it_breaks(mutation, data):
    candidates = list(broken_blocks(data.draw(models(mutation.kind)), mutation))
    assume(candidates)
    for state, block in candidates:
        assert [problem.rule for problem in rules.problems(state, block)] == [mutation.breaks]
        with pytest.raises(RuleBroken) as raised:
            rules.check(state, block)
        assert raised.value.rule is mutation.breaks
        assert raised.value.sequence_number == block.sequence_number
        assert f"Block {block.sequence_number}" in str(raised.value)


def test_every_rule_that_can_be_broken_has_a_mutation():
    assert set(errors.Rule) == {mutation.breaks for mutation in MUTATIONS}


def test_rules_are_numbered_1_to_8():
    assert {mutation.breaks.number for mutation in MUTATIONS} == set(range(1, 9))


def test_execute_transform_on_a_root_is_refused():
    model = Model(ROOT)
    model.seed()
    (seed_hash, _) = model.blocks[0]
    state = apply_block(EMPTY, *model.blocks[0])
    event = ExecuteTransform((ExecuteTransformInput(an_id("x"), new_block_hash=a_hash("new")),))
    block = MetadataBlock(system_time=model.time, prev_block_hash=seed_hash, sequence_number=1, event=event)
    with refused(errors.Rule.WRONG_DATASET_KIND, match="root dataset cannot have ExecuteTransform"):
        rules.event_fits_the_kind_of_dataset(state, block)


def test_check_chain_reports_every_problem_and_goes_on():
    model = Model(ROOT)
    model.seed()
    model.set_schema()
    model.add(AddData(new_data=a_slice(1, 2)))  # a gap
    model.last_offset = 2
    model.data(2, 0, False, False, [])
    model.add(AddData(prev_offset=3, new_data=a_slice(5, 6), new_watermark=5), seconds=-100)
    model.last_offset = 6
    model.data(0, 1, True, False, [])
    found = [(problem.sequence_number, problem.rule) for problem in check_chain(model.blocks)]
    assert found == [
        (2, errors.Rule.OFFSET_GAP),
        (4, errors.Rule.SYSTEM_TIME_WENT_BACK),
        (4, errors.Rule.PREV_OFFSET_MISMATCH),
    ]


def test_what_one_block_lost_is_still_missed_in_the_next():
    model = Model(ROOT)
    model.seed()
    model.set_schema()
    model.data(2, 5, True, False, [])
    model.add(AddData(prev_offset=1, new_data=a_slice(2, 2)))
    model.add(AddData(prev_offset=2, new_data=a_slice(3, 3), new_watermark=model.watermark - 1))
    found = [(problem.sequence_number, problem.rule) for problem in check_chain(model.blocks)]
    assert found == [
        (3, errors.Rule.WATERMARK_LOST),
        (3, errors.Rule.SOURCE_STATE_LOST),
        (4, errors.Rule.WATERMARK_WENT_BACK),
        (4, errors.Rule.SOURCE_STATE_LOST),
    ]


def test_errors_carry_facts_and_survive_pickling():
    model = Model(DERIVATIVE)
    model.seed()
    block = MetadataBlock(system_time=model.time, sequence_number=7, event=model.blocks[0][1].event)
    (error, *_) = [p for p in rules.problems(EMPTY, block) if p.rule is errors.Rule.SEQUENCE_BROKEN]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is RuleBroken
    assert copy.rule is errors.Rule.SEQUENCE_BROKEN
    assert (copy.expected, copy.actual, copy.sequence_number, copy.rule.number) == (0, 7, 7, 1)
    assert str(copy) == "Block 7: the sequence number should be 0 in an empty chain."
