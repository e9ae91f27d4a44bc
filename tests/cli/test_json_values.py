"""Every value survives JSON: nothing is rounded and nothing becomes null."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from floodmark.cli import output

VALUES = [
    ("12.50::decimal(9, 2)", "12.50"),
    ("'12345678901234567890.12345'::decimal(38, 5)", "12345678901234567890.12345"),
    ("'\\x00\\xFF'::blob", "00ff"),
    ("'nan'::double", "NaN"),
    ("'inf'::double", "Infinity"),
    ("'-inf'::double", "-Infinity"),
    ("9007199254740993::bigint", 9007199254740993),
    ("0.1::double", 0.1),
    ("null", None),
    ("true", True),
    ("'é\"\\'", 'é"\\'),
    ("timestamp '2026-01-02 03:04:05.678901'", "2026-01-02T03:04:05.678901"),
    ("timestamptz '2026-01-02 03:04:05+02'", "2026-01-02T01:04:05+00:00"),
    ("date '2026-01-02'", "2026-01-02"),
    ("time '03:04:05'", "03:04:05"),
    ("interval '14 months 3 days 1.5 seconds'", "P14M3DT1.5S"),
    ("uuid '6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("[1, null, 3]", [1, None, 3]),
    ("{'a': {'b': [1.5::decimal(2,1)]}, 'c': 'nan'::float}", {"a": {"b": ["1.5"]}, "c": "NaN"}),
    ("map {'k': 1, 'l': null}", [["k", 1], ["l", None]]),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES, ids=[v[0] for v in VALUES])
def test_value_of_a_query_survives(run, expression, expected):
    run("init")
    answer = run("sql", f"select {expression} as v", "--json")
    assert answer.code == 0, answer.err
    (row,) = json.loads(answer.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["rows"]
    assert row["v"] == expected


def test_dates_beyond_the_year_9999_survive(run):
    run("init")
    answer = run("sql", "select unnest([date '12345-06-07', date '2026-01-02', null]) d", "--json")
    assert [row["d"] for row in answer.json["rows"]] == ["12345-06-07", "2026-01-02", None]


def test_stored_values_survive(run, folder):
    from floodmark import Lake

    table = pa.table(
        {
            "d": pa.array([Decimal("1.10")], pa.decimal128(5, 2)),
            "b": pa.array([b"\x01\xfe"]),
            "f": pa.array([float("nan")]),
            "l": pa.array([[1, None]], pa.list_(pa.int64())),
            "s": pa.array([{"x": None, "y": "z"}], pa.struct({"x": pa.int64(), "y": pa.string()})),
            "t": pa.array([datetime(2026, 1, 2, tzinfo=UTC)]),
        }
    )
    Lake(folder / "lake").create("odd").write(table)
    (record,) = run("tail", "odd", "--json").json["records"]
    del record["offset"], record["op"], record["system_time"]
    assert record == {
        "d": "1.10",
        "b": "01fe",
        "f": "NaN",
        "l": [1, None],
        "s": {"x": None, "y": "z"},
        "t": "2026-01-02T00:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(seconds=90, microseconds=500_000), "PT90.5S"),
        (timedelta(seconds=-1.5), "PT-1.5S"),
        (timedelta(days=2), "PT172800S"),
        (time(1, 2), "01:02:00"),
        (date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_times_are_iso(value, expected):
    assert output.jsonable(value) == expected


def test_document_streams_its_lists(capsys):
    output.emit(name="x", empty=[], items=iter([{"a": 1}, {"a": "é"}]))
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": "x", "empty": [], "items": [{"a": 1}, {"a": "é"}]}
    assert out.isascii()
    assert '    {"a": 1},\n' in out
