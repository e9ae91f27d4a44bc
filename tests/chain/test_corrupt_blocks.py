"""Bytes that hold no block are refused with one kind of error, whatever they are, and soon."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import vectors
from conformance.blocks import any_block
from floodmark.chain import flatbuffers, wire
from floodmark.chain.events import MetadataBlock, SetDataSchema, SetInfo
from floodmark.chain.schema import DataField, DataSchema, DataTypeInt64, DataTypeList
from floodmark.chain.wire import decode, encode
from floodmark.errors import CorruptBlock, UnsupportedBlockVersion
from limits import set_limit
from profiles import examples

VECTORS = [vector for vector in vectors.load() if vector.version == 3]


def decode_or_refuse(data: bytes) -> None:
    """Decoding gives a block or one of the two errors; anything else fails the test."""
    with suppress(CorruptBlock, UnsupportedBlockVersion):
        assert isinstance(decode(data), MetadataBlock)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"case {v.case}")
def test_truncated_block_is_corrupt(vector):
    for size in range(len(vector.data)):
        if vector.data[size:].strip(b"\0"):  # the padding at the end is not missed
            with pytest.raises(CorruptBlock):
                decode(vector.data[:size])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"case {v.case}")
def test_any_changed_byte_gives_a_block_or_an_error(vector):
    for place in range(len(vector.data)):
        for mask in (0x01, 0x08, 0x80, 0xFF):
            data = bytearray(vector.data)
            data[place] ^= mask
            decode_or_refuse(bytes(data))


@given(
    block=any_block(),
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 2**32 - 1)), min_size=1, max_size=4),
    small=st.booleans(),
)
@settings(max_examples=examples(40))
def test_overwritten_references_give_a_block_or_an_error(block, edits, small):
    data = bytearray(encode(block))
    for place, word in edits:
        at = place % (len(data) // 4) * 4
        data[at : at + 4] = (word % (2 * len(data)) if small else word).to_bytes(4, "little")
    decode_or_refuse(bytes(data))


@given(st.binary(max_size=200))
@settings(max_examples=examples(66))
def test_random_bytes_give_an_error(data):
    with pytest.raises((CorruptBlock, UnsupportedBlockVersion)):
        decode(data)


def test_manifest_of_something_else_is_no_block():
    data = VECTORS[0].data.replace((0x400000).to_bytes(8, "little"), (0x400001).to_bytes(8, "little"))
    with pytest.raises(CorruptBlock, match="kind 0x400001"):
        decode(data)


TIME = struct.pack("<iHxxII", 2020, 1, 0, 0)


def forged(writer: flatbuffers.Writer, *entries: flatbuffers.SlotEntry) -> bytes:
    """A block with these slots, whatever they are."""
    content = writer.finished(writer.table([(0, 4, TIME), *entries]))
    return wire._written(wire._MANIFEST, wire._Manifest(wire.BLOCK_KIND, 3, content), 3)


def test_references_that_share_what_they_refer_to_do_not_multiply_the_work():
    # A struct of 16 structs of 16 structs …: 25 levels in a few kilobytes, 16^25 fields if each were read.
    writer = flatbuffers.Writer(4)
    name = writer.vector(b"a\0", 1)
    target, code = writer.table([]), 12
    for _ in range(25):
        field = writer.table([(0, 4, name), (1, 1, bytes([code])), (2, 4, target)])
        target, code = writer.table([(0, 4, writer.references([field] * 16))]), 21
    schema = writer.table([(0, 4, writer.references([field]))])
    data = forged(writer, (3, 1, bytes([10])), (4, 4, writer.table([(1, 4, schema)])))
    assert len(data) < 10_000
    with pytest.raises(CorruptBlock, match="Too many references"):
        decode(data)


def test_tables_nested_too_deep_are_corrupt(monkeypatch):
    type_ = DataTypeInt64()
    for _ in range(60):
        type_ = DataTypeList(type_)
    event = SetDataSchema(schema=DataSchema((DataField("deep", type_),)))
    with monkeypatch.context() as patch:
        set_limit(patch, "flat.max_depth", 100)
        data = encode(MetadataBlock(system_time=0, sequence_number=0, event=event))
    with pytest.raises(CorruptBlock, match="64 deep"):
        decode(data)


def test_union_without_a_value_is_corrupt():
    with pytest.raises(CorruptBlock, match="MetadataEvent has a type but no value"):
        decode(forged(flatbuffers.Writer(4), (3, 1, bytes([1]))))


def test_union_of_an_unknown_type_is_corrupt():
    writer = flatbuffers.Writer(4)
    event = writer.table([])
    with pytest.raises(CorruptBlock, match="MetadataEvent has no member 14"):
        decode(forged(writer, (3, 1, bytes([14])), (4, 4, event)))


def test_block_without_an_event_is_corrupt():
    with pytest.raises(CorruptBlock, match=r"MetadataBlock.event is missing"):
        decode(forged(flatbuffers.Writer(4)))


def test_enum_of_an_unknown_value_is_corrupt():
    writer = flatbuffers.Writer(4)
    dataset_id = writer.vector(bytes.fromhex("ed01") + bytes(32), 34)
    seed = writer.table([(0, 4, dataset_id), (1, 4, (2).to_bytes(4, "little"))])
    with pytest.raises(CorruptBlock, match=r"Seed.dataset_kind cannot be read: 2 is not a valid DatasetKind"):
        decode(forged(writer, (3, 1, bytes([3])), (4, 4, seed)))


def test_vtable_before_the_start_is_corrupt():
    data = bytearray(VECTORS[0].data)
    assert data[20:24] == (10).to_bytes(4, "little")  # how far before the root table its vtable is
    data[20:24] = (30).to_bytes(4, "little")
    data += data[10:20]  # where Python would look: 10 bytes before the start is 10 bytes before the end
    with pytest.raises(CorruptBlock, match="A table is outside the block"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ((2021, 366, 0, 0), "year 2021 has no day 366"),
        ((9999, 366, 0, 0), "year 9999 has no day 366"),
        ((2020, 367, 0, 0), "year 2020 has no day 367"),
        ((2020, 0, 0, 0), "year 2020 has no day 0"),
        ((0, 1, 0, 0), "year"),
        ((10_000, 1, 0, 0), "year"),
        ((2020, 1, 86_400, 0), "no second 86400"),
        ((2020, 1, 0, 10**9), "no second 0.1000000000"),
    ],
)
def test_time_that_does_not_exist_is_corrupt(time, reason):
    good = encode(MetadataBlock(system_time=1_577_836_800 * 10**9, sequence_number=0, event=SetInfo()))
    assert good.count(TIME) == 1
    with pytest.raises(CorruptBlock, match=reason):
        decode(good.replace(TIME, struct.pack("<iHxxII", *time)))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"\x03\0\0\0foo\0", b"\x03\0\0\0fo\xff\0", "SetInfo.description cannot be read"),
        (b"\x03\0\0\0foo\0", b"\x03\0\0\0foo!", "A string does not end with a zero byte"),
        (b"\x03\0\0\0foo\0", b"\xff\0\0\0foo\0", "outside the block"),
    ],
)
def test_string_that_is_not_one_is_corrupt(old, new, reason):
    (vector,) = [vector for vector in VECTORS if vector.case == "SetInfo"]
    assert vector.data.count(old) == 1
    with pytest.raises(CorruptBlock, match=reason):
        decode(vector.data.replace(old, new))
