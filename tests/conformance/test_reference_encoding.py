"""Blocks of every kind are encoded as the flatbuffers package encodes them, and decode to what they were."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import reference
from conformance.blocks import blocks_around, blocks_with
from conformance.wire import FIELDS, MEMBERS
from floodmark.chain.wire import decode, encode
from profiles import examples

every_event = pytest.mark.parametrize("event", MEMBERS["MetadataEvent"])


@every_event
@given(data=st.data(), version=st.sampled_from([2, 3]))
@settings(max_examples=examples(8))
def test_block_is_encoded_as_the_reference_does_and_decodes_back(event, data, version):
    block = data.draw(blocks_with(event))
    encoded = encode(block, version)
    assert encoded == reference.encode(block, version)
    assert decode(encoded) == block


@pytest.mark.parametrize(
    ("union", "member"),
    [
        (union, member)
        for union in ("DataType", "FetchStep", "EventTimeSource", "PrepStep", "ReadStep", "MergeStrategy")
        for member in MEMBERS[union]
    ],
)
@given(data=st.data())
@settings(max_examples=examples(8))
def test_every_member_of_a_union_is_encoded_as_the_reference_does(union, member, data):
    block = data.draw(blocks_around(union, member))
    encoded = encode(block)
    assert encoded == reference.encode(block, 3)
    assert decode(encoded) == block


def test_every_table_is_reachable_from_a_block():
    reached, waiting = set(), ["MetadataBlock"]
    while waiting:
        name = waiting.pop().strip("[]")
        if name in MEMBERS:
            waiting.extend(MEMBERS[name])
        elif name in FIELDS and name not in reached:
            reached.add(name)
            waiting.extend(field.kind for field in FIELDS[name])
    assert reached == set(FIELDS)
