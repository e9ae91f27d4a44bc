"""Skip pointers know the newest block of each kind and every rare block, however the chain is cut in spans."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.strategies import a_hash, models
from floodmark.chain.events import kind
from floodmark.chain.ids import BlockRef
from floodmark.chain.walk import SkipPointers, merge
from floodmark.errors import CorruptBlock
from profiles import examples


def ref(number: int) -> BlockRef:
    return BlockRef(number, a_hash(number))


def naive(kinds: list[str], start: int) -> SkipPointers:
    """The pointers of the span from `start` to the end of a chain of these kinds."""
    return SkipPointers(
        at=ref(len(kinds) - 1),
        newest={name: ref(number) for number, name in enumerate(kinds)},
        non_routine=tuple(
            ref(number)
            for number, name in enumerate(kinds)
            if number >= start and name not in ("AddData", "ExecuteTransform")
        ),
    )


@given(models(), st.data())
@settings(max_examples=examples(13))
def test_pointers_are_the_same_however_the_chain_is_cut(model, data):
    kinds = [kind(block.event) for _, block in model.blocks]
    cuts = data.draw(st.sets(st.integers(1, len(kinds) - 1)))
    spans = [SkipPointers.first(ref(0), kinds[0])]
    for number, name in enumerate(kinds[1:], start=1):
        if number in cuts:
            spans.append(spans[-1].start_next_span(ref(number), name))
        else:
            spans[-1] = spans[-1].extended(ref(number), name)
    assert spans[-1] == naive(kinds, max(cuts, default=0))
    merged = spans[0]
    for span in spans[1:]:
        merged = merge(merged, span)
    assert merged == naive(kinds, 0)
    assert SkipPointers.from_json(json.loads(json.dumps(merged.to_json()))) == merged


def test_block_out_of_turn_is_refused():
    pointers = SkipPointers.first(ref(0), "Seed")
    for number in (0, 2):
        with pytest.raises(CorruptBlock, match="does not follow"):
            pointers.extended(ref(number), "AddData")
        with pytest.raises(CorruptBlock, match="does not follow"):
            pointers.start_next_span(ref(number), "AddData")


def test_spans_in_the_wrong_order_are_refused():
    older = SkipPointers.first(ref(0), "Seed")
    newer = older.start_next_span(ref(1), "AddData")
    with pytest.raises(CorruptBlock, match="not newer"):
        merge(newer, older)


@pytest.mark.parametrize(
    "damage",
    [
        None,
        {},
        [],
        {"at": [0, "f1620"], "newest": {}, "non_routine": []},
        {"at": [-1, a_hash(0).text], "newest": {}, "non_routine": []},
        {"at": [True, a_hash(0).text], "newest": {}, "non_routine": []},
        {"at": [0, 5], "newest": {}, "non_routine": []},
        {"at": [0, a_hash(0).text], "newest": [], "non_routine": []},
        {"at": [0, a_hash(0).text], "newest": {"Seed": [0]}, "non_routine": []},
        {"at": [0, a_hash(0).text], "newest": {}, "non_routine": 5},
    ],
)
def test_damaged_pointers_are_refused(damage):
    with pytest.raises(CorruptBlock, match="not skip pointers"):
        SkipPointers.from_json(damage)
