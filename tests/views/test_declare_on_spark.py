"""Declared with Spark: views of every kind are made, read like datasets, and kept apart from what is no query."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.columns import garbage
from floodmark.errors import BadQuery, BadView, UnknownDataset
from floodmark.view import View

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path, session):
    made = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    flights = made.create("flights", key="id")
    flights.write(pa.table({"id": [1, 2, 3], "g": ["a", "a", None], "v": [1, 2, 3]}))
    return made


def rows(view: View) -> list[dict[str, object]]:
    return sorted(view.to_arrow().to_pylist(), key=str)


def test_a_view_with_hidden_columns_shows_what_its_query_has(lake):
    lake.create("events").write(pa.table({"g": ["a", "a", "b"]}))
    view = lake.view("seen", sql="select g from events")
    view.refresh()
    assert view.strategy.key == ("floodmark_offset",)
    assert rows(view) == [{"g": "a"}, {"g": "a"}, {"g": "b"}]
    assert view.read().columns == view.schema.names == ["g"]
    assert lake.sql("select * from seen").column_names == ["g"]
    assert lake.sql_spark("select * from seen").columns == ["g"]
    assert view.verify().ok


def test_a_bare_column_is_a_filter_and_no_alias(lake):
    lake.create("flags").write(pa.table({"flag": [True, False, None]}))
    view = lake.view("set", source="flags", where="flag")
    view.refresh()
    assert rows(view) == [{"flag": True}]


def test_an_event_time_that_is_passed_on_may_be_null(lake):
    lake.create("events", event_time="event_time").write(
        pa.table({"event_time": pa.array([1], pa.timestamp("us", "UTC")), "id": [1]})
    )
    view = lake.view("late", sql="select f.id, e.event_time from flights f left join events e using (id)")
    view.refresh()
    assert view.to_arrow().column("event_time").null_count == 2
    assert view.verify().ok


def test_columns_follow_the_order_of_the_newest_definition(lake):
    view = lake.view("daily", sql="select g, count(*) n from flights group by g")
    view.refresh()
    lake.view("daily", sql="select sum(v) s, g from flights group by g").refresh()
    assert view.schema.names == ["s", "g"]
    assert rows(view) == [{"s": 3, "g": "a"}, {"s": 3, "g": None}]
    lake.view("daily", sql="select g, count(*) n from flights group by g").refresh()
    assert rows(view) == [{"g": "a", "n": 2}, {"g": None, "n": 1}]
    assert view.verify().ok


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"sql": "select nope from flights"}, BadQuery),
        ({"sql": "select * from nope"}, UnknownDataset),
        ({"sql": "select id from flights where ("}, BadQuery),
        ({"sql": "with x as (select id from flights) insert into y select * from x"}, BadQuery),
        ({"sql": "select 1"}, BadView),
        ({"source": "flights", "select": {"a": "id, v"}}, BadQuery),
        ({"source": "flights", "select": {"a": "id as b"}}, BadQuery),
        ({"source": "flights", "where": "id > 1 group by id"}, BadQuery),
        ({"source": "flights", "where": "nope > 1"}, BadQuery),
    ],
)
def test_what_spark_refuses_makes_no_view(lake, given, error):
    with pytest.raises(error):
        lake.view("daily", **given)
    assert [d.name for d in lake] == ["flights"]


def test_values_of_functions_are_no_garbage_as_long_as_the_view_has_them(lake, monkeypatch):
    monkeypatch.setattr(garbage.find_garbage, "__defaults__", (-(10**18), *garbage.find_garbage.__defaults__[1:]))
    double = fm.udf(returns="int64", version="1")(lambda v: 2 * v)
    view = lake.view("doubled", source="flights", select={"id": "id", "d": double})
    assert view.refresh().called == 3
    kept = view.checkpoints.list_keys()
    assert kept
    for opened in (view, lake["doubled"]):
        assert opened.collect_garbage().checkpoints == ()
    assert view.checkpoints.list_keys() == kept
    lake.view("doubled", source="flights", select={"id": "id", "d": "v + v"})
    assert {info.key for info in lake["doubled"].collect_garbage().checkpoints} == set(kept)


def test_plan_and_report_are_values(lake):
    view = lake.view("daily", sql="select g, count(*) n from flights group by g")
    assert isinstance(view.plan_refresh(), fm.RefreshPlan)
    done = view.refresh()
    assert isinstance(done, fm.RefreshReport)
    assert dataclasses.replace(done, seconds=0) != done
    assert view.positions == {"flights": 2}
    assert view.errors().num_rows == 0
