"""Arrow's types become the chain's and come back; encodings of a type are one type, and what has no place is named."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import UnsupportedType
from floodmark.ledger.types import canonical_type, check_supported, field_from_odf, field_to_odf
from ledger.arrow_types import data_types


@given(data_types(), st.booleans())
def test_every_type_survives_the_way_through_the_chain(data_type, nullable):
    field = pa.field("x", data_type, nullable)
    back = field_from_odf(field_to_odf(field))
    assert back.equals(field)
    assert str(back.type) == str(field.type)


@given(data_types())
def test_canonical_types_stay_what_they_are(data_type):
    assert canonical_type(data_type, "x").equals(data_type)
    check_supported(data_type, "x")


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()),
        (pa.timestamp("s"), pa.timestamp("ms")),
        (pa.timestamp("ns", "UTC"), pa.timestamp("us", "UTC")),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time32("ms")),
        (pa.time64("ns"), pa.time64("us")),
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.field("item", pa.int8(), nullable=False), 2), pa.list_(pa.field("element", pa.int8()), 2)),
        (
            pa.struct([pa.field("a", pa.timestamp("ns"), nullable=False)]),
            pa.struct([pa.field("a", pa.timestamp("us"))]),
        ),
    ],
    ids=str,
)
def test_encodings_of_a_type_are_kept_as_one_type(given_type, kept):
    assert canonical_type(given_type, "x").equals(kept)


@pytest.mark.parametrize(
    ("data_type", "hint"),
    [
        (pa.map_(pa.string(), pa.int64()), "cast it to"),
        (pa.duration("us"), "cast it to"),
        (pa.month_day_nano_interval(), "cast it to"),
        (pa.float16(), "float32"),
        (pa.decimal256(50, 2), "38 digits"),
        (pa.null(), "schema="),
        (pa.struct([]), "leave the column out"),
        (pa.list_(pa.struct([("a", pa.int64())])), "cast it to"),
    ],
    ids=str,
)
def test_type_that_cannot_be_held_is_refused_by_column(data_type, hint):
    with pytest.raises(UnsupportedType, match="'fare'") as refused:
        check_supported(canonical_type(data_type, "fare"), "fare")
    assert refused.value.column == "fare"
    assert hint in refused.value.hint


def test_member_of_a_struct_is_named_with_its_path():
    with pytest.raises(UnsupportedType) as refused:
        canonical_type(pa.struct([("inner", pa.struct([("took", pa.duration("s"))]))]), "trip")
    assert refused.value.column == "trip.inner.took"
