"""Schemas in the old form are Arrow schemas; they are read as the same columns in the present form."""

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.arrow_schemas import raw_schema
from floodmark.chain import schema as s
from floodmark.chain.arrow_schema import read_arrow_schema
from floodmark.chain.events import SetDataSchema
from floodmark.errors import CorruptBlock
from floodmark.ledger.types import field_to_odf
from profiles import examples

PLAIN = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.date32(), pa.binary()),
    *(pa.binary(7), pa.decimal128(10, 2), pa.decimal256(50, 3), pa.time32("s"), pa.time32("ms"), pa.time64("us")),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns")),
]

types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        st.builds(lambda t, null: pa.list_(pa.field("element", t, null)), inner, st.booleans()),
        st.builds(lambda t, null: pa.list_(pa.field("element", t, null), 3), inner, st.booleans()),
        st.builds(
            lambda ts: pa.struct([pa.field(f"m{i}", t, null) for i, (t, null) in enumerate(ts)]),
            st.lists(st.tuples(inner, st.booleans()), max_size=3),
        ),
    ),
    max_leaves=5,
)
schemas = st.lists(st.tuples(st.text(max_size=5), types, st.booleans()), max_size=6).map(
    lambda columns: pa.schema([pa.field(name, type_, null) for name, type_, null in columns])
)


@given(schemas)
@settings(max_examples=examples(100))
def test_columns_are_those_that_arrow_reads(schema):
    assert read_arrow_schema(raw_schema(schema)) == s.DataSchema(tuple(field_to_odf(f) for f in schema))


@pytest.mark.parametrize(
    ("encoded", "same"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.field("element", pa.int8())), pa.list_(pa.field("element", pa.int8()))),
    ],
    ids=str,
)
def test_encodings_are_not_types(encoded, same):
    assert read_arrow_schema(raw_schema(pa.schema({"c": encoded}))) == read_arrow_schema(
        raw_schema(pa.schema({"c": same}))
    )


def test_maps_durations_and_nulls_are_read():
    types = {"m": pa.map_(pa.string(), pa.int8()), "d": pa.duration("ms"), "e": pa.duration("ns"), "n": pa.null()}
    m, d, e, n = (field.type.inner for field in read_arrow_schema(raw_schema(pa.schema(types))).fields)
    assert m == s.DataTypeMap(s.DataTypeString(), s.DataTypeOption(s.DataTypeInt8()))
    assert n == s.DataTypeNull()
    assert (d, e) == (s.DataTypeDuration(s.TimeUnit.MILLISECOND), s.DataTypeDuration(s.TimeUnit.NANOSECOND))


@pytest.mark.parametrize("type_", [pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.int8())], ids=str)
def test_type_without_a_place_in_the_format_is_refused_by_column(type_):
    raw = raw_schema(pa.schema({"a": pa.int8(), "odd": type_}))
    with pytest.raises(CorruptBlock, match="'odd'"):
        read_arrow_schema(raw)
    assert SetDataSchema(raw).columns is None


WIDE = raw_schema(pa.schema({"a": pa.int64(), "b": pa.struct({"c": pa.list_(pa.timestamp("us", "UTC"))})}))


@given(st.integers(0, len(WIDE) - 1), st.integers(1, 255))
@settings(max_examples=examples(300))
def test_damaged_bytes_are_read_or_refused(at, flip):
    for damaged in (WIDE[:at], WIDE[:at] + bytes([WIDE[at] ^ flip]) + WIDE[at + 1 :]):
        with suppress(CorruptBlock):
            assert isinstance(read_arrow_schema(damaged), s.DataSchema)


@pytest.mark.parametrize("data", [b"", b"arrow", bytes(8), bytes(100)])
def test_bytes_that_are_no_schema_are_refused(data):
    with pytest.raises(CorruptBlock):
        read_arrow_schema(data)


def test_new_form_comes_first():
    schema = s.DataSchema((s.DataField("n", s.DataTypeInt8()),))
    assert SetDataSchema(schema=schema).columns is schema
    assert SetDataSchema().columns is None
    assert SetDataSchema(WIDE).columns == read_arrow_schema(WIDE)
