"""Walking back from the head gives every block, checked, and ends whatever it finds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from chain.refusals import refused
from chain.strategies import ROOT, Model, a_hash, models
from floodmark.chain.events import MetadataBlock, SetInfo
from floodmark.chain.ids import Multihash
from floodmark.chain.walk import walk_back
from floodmark.chain.wire import encode
from floodmark.errors import CorruptBlock, Rule
from profiles import examples


def stored(*blocks: MetadataBlock) -> dict[Multihash, bytes]:
    return {Multihash.sha3_256(data): data for data in map(encode, blocks)}


@pytest.fixture
def model() -> Model:
    model = Model(ROOT)
    model.seed()
    model.set_schema()
    model.data(3, 1, True, True, [])
    return model


@given(models())
@settings(max_examples=examples(10))
def test_walk_gives_every_block_newest_first(model):
    objects = stored(*(block for _, block in model.blocks))
    walked = list(walk_back(objects.__getitem__, model.blocks[-1][0]))
    assert [(hash_, block) for hash_, _, block in walked] == model.blocks[::-1]
    assert all(objects[hash_] == data for hash_, data, _ in walked)


def test_damaged_block_is_named_after_the_sound_ones_were_given(model):
    objects = stored(*(block for _, block in model.blocks))
    damaged = model.blocks[0][0]
    objects[damaged] = objects[damaged][:-1] + b"x"
    walk = walk_back(objects.__getitem__, model.blocks[-1][0])
    assert [next(walk)[2].sequence_number, next(walk)[2].sequence_number] == [2, 1]
    with pytest.raises(CorruptBlock, match=str(damaged)) as raised:
        next(walk)
    assert raised.value.expected == damaged
    assert raised.value.actual == Multihash.sha3_256(objects[damaged])


def test_what_is_no_block_is_corrupt_even_under_its_right_name():
    name = Multihash.sha3_256(b"not a block at all")
    with pytest.raises(CorruptBlock, match=str(name)):
        list(walk_back(lambda _: b"not a block at all", name))


def test_number_that_does_not_go_down_by_one_ends_the_walk(model):
    (first, _), (_, second), *_ = model.blocks
    wrong = replace(second, sequence_number=2, prev_block_hash=first)
    objects = stored(model.blocks[0][1], wrong)
    with refused(Rule.SEQUENCE_BROKEN) as raised:
        list(walk_back(objects.__getitem__, Multihash.sha3_256(encode(wrong))))
    assert (raised.value.expected, raised.value.actual) == (1, 0)


@pytest.mark.parametrize(
    ("number", "prev", "rule"),
    [(0, None, Rule.SEED_MISSING), (0, a_hash(1), Rule.PREV_BLOCK_MISMATCH), (5, None, Rule.PREV_BLOCK_MISMATCH)],
)
def test_chain_that_does_not_end_in_a_seed_is_refused(number, prev, rule):
    block = MetadataBlock(system_time=0, prev_block_hash=prev, sequence_number=number, event=SetInfo())
    with refused(rule):
        list(walk_back(stored(block).__getitem__, Multihash.sha3_256(encode(block))))


def test_store_s_own_error_for_a_missing_block_comes_through(model):
    objects = stored(model.blocks[-1][1])
    with pytest.raises(KeyError):
        list(walk_back(objects.__getitem__, model.blocks[-1][0]))
