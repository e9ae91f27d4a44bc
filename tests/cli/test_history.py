"""`floodmark history` shows what became of a key."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest

from floodmark import Lake


@pytest.fixture
def people(run, folder):
    """Three people: one was added, one changed, one is gone."""
    run("init")
    people = Lake("lake").create("people", key="id")
    people.write(pa.table({"id": [1, 2, 3], "city": ["London", "Paris", "Rome"]}))
    people.write(pa.table({"id": [2], "city": ["Berlin"]}))
    people.delete([3])
    return people


def test_history_shows_every_record_of_a_key_in_offset_order(run, people):
    head, *rows = run("history", "people", "id=2").lines
    assert head.split() == ["offset", "op", "system_time", "id", "city"]
    assert [(row.split()[0], row.split()[1], row.split()[-1]) for row in rows] == [
        ("1", "+A", "Paris"),
        ("3", "-C", "Paris"),
        ("4", "+C", "Berlin"),
    ]


def test_history_of_a_key_that_is_gone_ends_with_its_retraction(run, people):
    found = run("history", "people", "id=3", "--json").json
    assert [(r["offset"], r["op"], r["city"]) for r in found["records"]] == [(2, "+A", "Rome"), (5, "-R", "Rome")]
    assert (found["dataset"], found["keys"]) == ("people", [{"id": "3"}])
    assert datetime.fromisoformat(found["records"][0]["system_time"]).tzinfo is not None


def test_column_that_comes_again_begins_another_key(run, people):
    records = run("history", "people", "id=1", "id=3", "--json").json["records"]
    assert [(r["offset"], r["id"]) for r in records] == [(0, 1), (2, 3), (5, 3)]


def test_key_that_never_was_says_so(run, people):
    answer = run("history", "people", "id=99")
    assert (answer.code, answer.out) == (0, "")
    assert "no record ever had id=99" in answer.err
    assert run("history", "people", "id=99", "--json").json["records"] == []


def test_dataset_that_was_never_written_has_no_history(run, folder):
    Lake("lake").create("people", key="id")
    answer = run("history", "people", "id=7")
    assert (answer.code, answer.out) == (0, "")
    assert "no record ever had id=7" in answer.err


def test_what_is_purged_is_said(run, people):
    people.purge(before=3)
    answer = run("history", "people", "id=2")
    assert [line.split()[1] for line in answer.lines[1:]] == ["-C", "+C"]
    assert "before offset 3 are purged" in answer.err


def test_some_columns_of_a_key_stand_for_all_rows_that_have_them(run, folder):
    prices = Lake("lake").create("prices", key=["shop", "item"])
    prices.write(pa.table({"shop": [1, 1, 2], "item": ["a", "b", "a"], "price": [5, 6, 7]}))
    whole = run("history", "prices", "item=b", "shop=1", "--json").json["records"]
    assert [r["price"] for r in whole] == [6]
    assert [r["price"] for r in run("history", "prices", "shop=1", "--json").json["records"]] == [5, 6]


EIGHT = [datetime(2026, 11, 16, 8, tzinfo=UTC), datetime(2026, 11, 16, 9, tzinfo=UTC)]
TYPES = [
    (pa.int8(), [7, 8], "7"),
    (pa.uint64(), [2**64 - 1, 8], str(2**64 - 1)),
    (pa.string(), ["7=a b", "é"], "7=a b"),
    (pa.string(), ["", "é"], ""),
    (pa.bool_(), [True, False], "true"),
    (pa.date32(), [date(2026, 11, 16), date(2026, 11, 17)], "2026-11-16"),
    (pa.timestamp("us", "UTC"), EIGHT, "2026-11-16T08:00Z"),
    (pa.timestamp("us", "UTC"), EIGHT, "2026-11-16 08:00:00+00:00"),
    (pa.timestamp("us", "UTC"), EIGHT, "2026-11-16T09:00:00+01:00"),
    (pa.timestamp("us"), [datetime(2026, 11, 16, 8, 30, 0, 5), datetime(2026, 11, 16)], "2026-11-16T08:30:00.000005"),
    (pa.decimal128(10, 2), [Decimal("2.50"), Decimal("2.51")], "2.5"),
    (pa.binary(), [b"\x00\xff", b"ff"], "00ff"),
    (pa.time64("us"), [time(8, 30), time(8, 31)], "08:30:00"),
]


@pytest.mark.parametrize(("kind", "values", "text"), TYPES, ids=lambda v: None if isinstance(v, list) else repr(v))
def test_value_is_read_as_the_type_of_its_column(run, folder, kind, values, text):
    Lake("lake").create("things", key="k").write(pa.table({"k": pa.array(values, kind), "n": [1, 2]}))
    records = run("history", "things", f"k={text}", "--json").json["records"]
    assert [r["n"] for r in records] == [1]


@pytest.mark.parametrize(
    ("kind", "value", "text", "example"),
    [
        (pa.int64(), 1, "seven", "k=7"),
        (pa.int64(), 1, "7.5", "k=7"),
        (pa.int64(), 1, "", "k=7"),
        (pa.int8(), 1, "1000", "k=7"),
        (pa.bool_(), True, "maybe", "k=true"),
        (pa.date32(), date(2026, 1, 1), "16.11.2026", "k=2026-11-16"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), "yesterday", "k=2026-11-16T08:30:00Z"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00", "k=2026-11-16T08:30:00Z"),
        (pa.timestamp("us"), datetime(2026, 1, 1), "2026-01-01T00:00:00Z", "k=2026-11-16T08:30:00"),
        (pa.decimal128(4, 1), Decimal("1.5"), "1.55", "k=2.50"),
        (pa.binary(), b"1", "xyz", "k=00ff (hexadecimal)"),
    ],
    ids=str,
)
def test_value_that_does_not_fit_its_column_is_refused_with_an_example(run, folder, kind, value, text, example):
    Lake("lake").create("things", key="k").write(pa.table({"k": pa.array([value], kind)}))
    answer = run("history", "things", f"k={text}")
    assert (answer.code, answer.out) == (1, "")
    assert f"{text!r} does not fit the key column 'k', which is {kind}" in answer.err
    assert f"write it like {example}\n" in answer.err


def test_dataset_without_a_key_is_refused_with_a_way_out(run, trips):
    answer = run("history", trips, "id=1")
    assert answer.code == 1
    assert "'trips' has no key" in answer.err
    assert "floodmark changes trips" in answer.err


def test_column_that_is_not_of_the_key_is_refused(run, people):
    answer = run("history", "people", "city=Rome")
    assert answer.code == 1
    assert "'city' is not a key column of 'people'" in answer.err
    assert "give id=…" in answer.err


@pytest.mark.parametrize("given", [[], ["7"], ["=7"], ["id=7", "id=8", "day=1"]])
def test_what_is_no_key_is_a_usage_error(run, people, given):
    assert run("history", "people", *given).code == 2
