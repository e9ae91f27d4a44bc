"""Cursors of every kind come back from the chain as they were, start where they should, and believe no future."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import BadSource
from floodmark.sources.polling import Cursor, greatest_value, last_value
from floodmark.sources.update_external_table import UpdateExternalTable
from floodmark.storage.local import LocalStore
from sources.databases import Shop, notes

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.decimal128(38, 9),
    "time": pa.timestamp("us"),
    "utc": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "text": pa.string(),
    "bytes": pa.binary(),
}
VALUES = {
    "int": st.integers(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    "time": st.datetimes(),
    "utc": st.datetimes(timezones=st.just(UTC)),
    "date": st.dates(),
    "text": st.text(),
    "bytes": st.binary(),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_cursor_comes_back_from_the_chain_as_it_was(kind):
    @given(VALUES[kind])
    def check(value):
        cursor = Cursor("c", value)
        back = Cursor.from_text(cursor.to_text(), "c", TYPES[kind])
        assert back == cursor
        assert type(back.value) is type(value)

    check()


def test_a_cursor_of_another_column_or_type_is_none():
    text = Cursor("updated_at", 5).to_text()
    assert Cursor.from_text(text, "changed_at", pa.int64()) is None
    assert Cursor.from_text(text, "updated_at", pa.timestamp("us")) is None
    assert Cursor.from_text(Cursor("c", NOON).to_text(), "c", pa.timestamp("us")) is None  # had a zone, has none now
    assert all(Cursor.from_text(text, "c", pa.int64()) is None for text in ("", "{}", "[]", "null", "42", "{"))


def test_a_time_of_another_zone_is_the_same_time():
    there = NOON.astimezone(timezone(timedelta(hours=-7)))
    assert Cursor("c", there).to_text() == Cursor("c", NOON).to_text()


@pytest.mark.parametrize(
    ("value", "overlap", "start"),
    [
        (NOON, None, NOON - timedelta(minutes=10)),
        (NOON, timedelta(0), NOON),
        (NOON, timedelta(hours=1), NOON - timedelta(hours=1)),
        (datetime(1, 1, 1, 0, 5), None, datetime.min),
        (date(2024, 1, 2), None, date(2024, 1, 1)),  # ten minutes before midnight is the day before
        (date(2024, 1, 2), timedelta(0), date(2024, 1, 2)),
        (date(2024, 1, 2), timedelta(days=1), date(2024, 1, 1)),
        (date.min, None, date.min),
        (100, None, 100),
        (100, 10, 90),
        (100, 0.5, 99),
        (1.5, 1, 0.5),
        (Decimal("1.5"), 1, Decimal("0.5")),
        ("abc", None, "abc"),
        (b"\x01", None, b"\x01"),
    ],
)
def test_the_next_poll_starts_so_much_before_the_cursor(value, overlap, start):
    assert Cursor("c", value).start(overlap) == start


def test_a_time_that_no_clock_can_show_yet_is_not_believed():
    hours = [timedelta(hours=h) for h in (-1, 0, 1)]
    aware = pa.array([*(NOON + h for h in hours), None], pa.timestamp("us", "UTC"))
    assert greatest_value(aware, NOON) == NOON
    here = NOON.replace(tzinfo=None)  # without a zone it may be noon anywhere: in Kiribati it is 14 hours later
    naive = pa.array([here + timedelta(hours=h) for h in (-1, 13, 15)], pa.timestamp("us"))
    assert greatest_value(naive, NOON) == here + timedelta(hours=13)
    assert greatest_value(pa.array([date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 3)]), NOON) == date(2024, 1, 2)
    assert greatest_value(pa.array([NOON + timedelta(days=1)], pa.timestamp("us", "UTC")), NOON) is None


def test_what_is_no_number_is_not_the_greatest():
    assert greatest_value(pa.array([1.0, float("nan"), float("inf"), 2.0, None]), NOON) == 2.0
    assert greatest_value(pa.array([], pa.int64()), NOON) is None
    assert greatest_value(pa.nulls(3, pa.int64()), NOON) is None


def test_text_has_the_order_that_the_database_gave_it():
    assert last_value(pa.array(["a", "B", None])) == "B"
    assert last_value(pa.nulls(2, pa.string())) is None


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("integer", [1, 5, 9]),
        ("bigint", [2**40, 2**41, 2**42]),
        ("real", [0.5, 1.5, 2.5]),
        ("date", ["2024-01-01", "2024-01-02", "2024-02-01"]),
        ("timestamp", ["2024-01-01 00:00:00.500000", "2024-01-01 00:00:00.600000", "2024-01-01 00:00:01"]),
        ("text", ["2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z", "2024-01-02T00:00:00Z"]),
        ("text collate nocase", ["a", "B", "c"]),
        ("blob", [b"\x00", b"\x01", b"\xff"]),
    ],
)
def test_a_table_is_followed_by_a_cursor_of_any_type(tmp_path, type_, values):
    shop = Shop(tmp_path / "shop.db", type_)
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    step = UpdateExternalTable("orders", shop.source)
    first, second, third = values
    shop.put((1, "a", first), (2, "b", second))
    step.run(lake)
    shop.put((3, "tie", second), (4, "later", third))
    assert step.plan(lake).start is not None
    step.run(lake)
    assert notes(lake) == shop.rows()
    shop.put((5, "last", third))
    step.run(lake)
    assert notes(lake) == shop.rows()
    assert step.run(lake).nothing


@pytest.mark.parametrize("type_", ["boolean", "time"])
def test_a_column_without_a_useful_order_is_refused_as_a_cursor(tmp_path, type_):
    shop = Shop(tmp_path / "shop.db", type_)
    with pytest.raises(BadSource, match="cannot be a cursor"):
        UpdateExternalTable("orders", shop.source).run(fm.Lake(tmp_path / "lake"))
