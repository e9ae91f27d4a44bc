"""A column of a database has one Arrow type, whatever its rows are."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql

from floodmark.errors import SourceFailed
from floodmark.sources.external_table import SourceColumn, arrow_type, to_arrow_column

EAST = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("declared", "expected", "given", "kept"),
    [
        (types.Integer(), pa.int64(), 2**31, 2**31),
        (types.SmallInteger(), pa.int64(), 1, 1),
        (types.Integer(), pa.int64(), 5.0, 5),
        (mysql.TINYINT(1), pa.int64(), True, 1),
        (types.Float(), pa.float64(), 1.5, 1.5),
        (postgresql.DOUBLE_PRECISION(), pa.float64(), 1.5, 1.5),
        (types.Numeric(10, 2), pa.decimal128(10, 2), Decimal("1.25"), Decimal("1.25")),
        (types.Numeric(), pa.decimal128(38, 9), Decimal("1.25"), Decimal("1.250000000")),
        (types.Numeric(60, 2), pa.decimal128(38, 2), Decimal("1.25"), Decimal("1.25")),
        (types.Boolean(), pa.bool_(), True, True),
        (types.Date(), pa.date32(), date(2024, 1, 2), date(2024, 1, 2)),
        (types.Time(), pa.time64("us"), time(1, 2, 3), time(1, 2, 3)),
        (types.DateTime(), pa.timestamp("us"), datetime(2024, 1, 2, 3), datetime(2024, 1, 2, 3)),
        (
            types.DateTime(timezone=True),
            pa.timestamp("us", "UTC"),
            datetime(2024, 1, 2, 3, tzinfo=EAST),
            datetime(2024, 1, 1, 22, tzinfo=UTC),
        ),
        (postgresql.TIMESTAMP(timezone=True), pa.timestamp("us", "UTC"), None, None),
        (mysql.DATETIME(fsp=6), pa.timestamp("us"), None, None),
        (types.String(20), pa.string(), "x", "x"),
        (types.Enum("a", "b"), pa.string(), "a", "a"),
        (types.LargeBinary(), pa.binary(), b"x", b"x"),
        (types.JSON(), pa.string(), {"b": 1, "a": [None]}, '{"a": [null], "b": 1}'),
        (types.Uuid(), pa.string(), uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (postgresql.ARRAY(types.Integer()), pa.list_(pa.int64()), [1, None], [1, None]),
        (postgresql.INET(), pa.string(), "10.0.0.1", "10.0.0.1"),
        (types.NullType(), pa.string(), 5, "5"),
    ],
)
def test_a_type_and_a_value_of_it(declared, expected, given, kept):
    assert arrow_type(declared) == expected
    column = to_arrow_column([given, None], SourceColumn("c", expected), "t")
    assert column.type == expected
    assert column.to_pylist() == [kept, None]
    assert to_arrow_column([None], SourceColumn("c", expected), "t").type == expected


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), "many"),
        (pa.int64(), "5"),
        (pa.int64(), 2**63),
        (pa.decimal128(5, 2), Decimal("1.234")),
        (pa.date32(), "2024-01-01"),
        (pa.timestamp("us"), "now"),
        (pa.bool_(), "yes"),
        (pa.string(), b"\xff"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_column(type_, value):
    with pytest.raises(SourceFailed, match=r"column 'c' of t has values that are not") as caught:
        to_arrow_column([None, value], SourceColumn("c", type_), "t")
    assert caught.value.column == "c"
