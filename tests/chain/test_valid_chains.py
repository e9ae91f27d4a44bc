"""Chains that follow the rules pass them all, and their state is what a plain account of them says."""

from hypothesis import given, settings

from chain.strategies import DERIVATIVE, Model, an_id, models
from floodmark.chain import rules
from floodmark.chain.events import kind
from floodmark.chain.state import EMPTY, ChainState, InputPosition, apply_block
from floodmark.chain.walk import check_chain

quick = settings(max_examples=60, deadline=None)


def folded(model: Model) -> ChainState:
    state = EMPTY
    for hash_, block in model.blocks:
        state = apply_block(state, hash_, block)
    return state


@given(models())
@quick
def test_valid_chain_breaks_no_rule(model):
    assert list(check_chain(model.blocks)) == []


@given(models())
@quick
def test_state_is_what_the_blocks_add_up_to(model):
    state = folded(model)
    assert state.head is not None
    assert (state.head.hash, state.head.sequence_number) == (model.blocks[-1][0], len(model.blocks) - 1)
    assert (state.system_time, state.dataset_id, state.dataset_kind) == (model.time, an_id("this"), model.kind)
    assert (state.last_offset, state.checkpoint) == (model.last_offset, model.checkpoint)
    assert (state.watermark, state.source_state) == (model.watermark, model.source_state)
    assert (state.schema, state.vocab, state.transform) == (model.schema, model.vocab, model.transform)
    assert {(p.dataset_id, p.block_hash, p.offset) for p in state.inputs} == {
        (an_id(name), *model.inputs[name]) for name in model.executed
    }


@given(models())
@quick
def test_newest_block_of_each_kind_alone_gives_the_same_state(model):
    newest = {kind(block.event): block for _, block in model.blocks}
    assert ChainState.from_newest(model.blocks[-1], newest) == folded(model)


def test_next_inputs_follow_the_transform_and_start_empty_where_it_is_new():
    model = Model(DERIVATIVE)
    model.seed()
    model.set_transform(("x", "y"))
    model.data(0, 0, False, False, [3, 1])
    model.set_transform(("z", "x"))
    left = InputPosition(an_id("x"), *model.inputs["x"])
    assert folded(model).next_inputs == (InputPosition(an_id("z"), None, None), left)
    assert left.offset == 1


def test_empty_state_expects_block_0_and_offset_0():
    assert (EMPTY.next_sequence_number, EMPTY.next_offset, EMPTY.head_hash) == (0, 0, None)


def test_every_rule_has_a_name_of_its_own():
    assert len({rule.__name__ for rule in rules.RULES}) == len(rules.RULES)
