"""Blocks become bytes and come back; what has no room in the format is refused by name."""

from dataclasses import replace

import pytest

from chain.strategies import SCHEMA, a_hash
from floodmark.chain import schema as s
from floodmark.chain.events import AddData, MetadataBlock, SetDataSchema, SetInfo, SetLicense
from floodmark.chain.wire import decode, encode
from floodmark.errors import ChainError, UnsupportedBlockVersion

BLOCK = MetadataBlock(system_time=0, prev_block_hash=a_hash(0), sequence_number=3, event=AddData(prev_offset=0))
SECOND = 10**9
YEAR_10000 = 253_402_300_800 * SECOND


@pytest.mark.parametrize(
    "nanos",
    [
        0,
        -1,
        1,
        951_782_400 * SECOND,  # 2000-02-29
        1_735_603_200 * SECOND,  # 2024-12-31, day 366
        1_735_689_599_999_999_999,  # its last nanosecond
        -62_135_596_800 * SECOND,  # the first of year 1
        YEAR_10000 - 1,
    ],
)
def test_time_reads_back_to_the_nanosecond(nanos):
    assert decode(encode(replace(BLOCK, system_time=nanos))).system_time == nanos


def test_offset_0_is_not_the_same_as_no_offset():
    assert decode(encode(BLOCK)).event == AddData(prev_offset=0)
    assert decode(encode(replace(BLOCK, event=AddData()))).event == AddData(prev_offset=None)


def test_empty_list_is_not_the_same_as_no_list():
    for keywords in (None, (), ("",)):
        assert decode(encode(replace(BLOCK, event=SetInfo(None, keywords)))).event == SetInfo(None, keywords)


@pytest.mark.parametrize("version", [-1, 0, 1, 4])
def test_other_versions_are_refused(version):
    with pytest.raises(UnsupportedBlockVersion) as raised:
        encode(BLOCK, version)
    assert raised.value.version == version
    data = bytearray(encode(BLOCK))
    assert data[28:32] == (3).to_bytes(4, "little")
    data[28:32] = version.to_bytes(4, "little", signed=True)
    with pytest.raises(UnsupportedBlockVersion, match=f"version {version} "):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (replace(BLOCK, system_time=YEAR_10000), "MetadataBlock.system_time"),
        (replace(BLOCK, system_time=-(10**30)), "MetadataBlock.system_time"),
        (replace(BLOCK, sequence_number=-1), "MetadataBlock.sequence_number"),
        (replace(BLOCK, sequence_number=2**64), "MetadataBlock.sequence_number"),
        (replace(BLOCK, prev_block_hash="f1620"), "MetadataBlock.prev_block_hash"),
        (replace(BLOCK, event=SCHEMA), "is not a MetadataEvent"),
        (replace(BLOCK, event=SetInfo("\ud800")), "SetInfo.description"),
        (replace(BLOCK, event=SetInfo(5)), "SetInfo.description"),
        (replace(BLOCK, event=SetLicense(short_name="a", name=None, website_url="")), "SetLicense.name"),
        (replace(BLOCK, event=SetDataSchema(schema=BLOCK)), "Expected DataSchema"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_name(block, named):
    with pytest.raises(ChainError, match=named) as raised:
        encode(block)
    assert raised.value.message.startswith(f"Block {block.sequence_number}: ")


def nested(depth: int) -> MetadataBlock:
    """A block with a type of this many layers."""
    type_: s.DataType = s.DataTypeInt64()
    for _ in range(depth - 1):
        type_ = s.DataTypeList(type_)
    return replace(BLOCK, event=SetDataSchema(schema=s.DataSchema((s.DataField("deep", type_),))))


def test_types_nest_as_deep_as_other_readers_follow_and_no_deeper():
    deepest = nested(60)  # inside of block, event, schema and field
    assert decode(encode(deepest)) == deepest
    with pytest.raises(ChainError, match="64 deep"):
        encode(nested(61))
