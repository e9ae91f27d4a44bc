"""`floodmark view` declares views, describes them, and lists them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cli.conftest import DAILY, TOP, WINDY
from floodmark import Lake

pytestmark = pytest.mark.spark


def test_declared_view_says_what_a_refresh_goes_by_and_computes_nothing(run, flights, spark):
    answer = run("view", "daily", "--sql", DAILY)
    assert answer.code == 0
    assert answer.out == "daily: declared; a refresh computes changed groups (carrier, day) of flights\n"
    assert "it has no rows yet: `floodmark refresh daily` computes them" in answer.err
    assert Lake("lake")["daily"].snapshot().records == 0


def test_query_may_be_in_a_file(run, flights, folder, spark):
    (folder / "windy.sql").write_text(f"-- flights and wind\n{WINDY};\n")
    answer = run("view", "windy", "--file", "windy.sql", "--json")
    found = answer.json
    assert (answer.code, answer.err) == (0, "")
    assert (found["view"], found["done"], found["kind"]) == ("windy", "made", "join")
    assert (found["by"], found["sources"]) == (["origin"], ["flights", "weather"])
    assert found["query"].startswith("-- flights and wind")


def test_same_declaration_again_writes_nothing(run, flights, spark):
    run("view", "daily", "--sql", DAILY)
    head = Lake("lake")["daily"].snapshot().head
    answer = run("view", "daily", "--sql", DAILY)
    assert answer.out.startswith("daily: unchanged; ")
    assert "it has no rows yet" in answer.err
    assert Lake("lake")["daily"].snapshot().head == head


def test_other_declaration_says_that_readers_have_the_old_rows(run, flights, spark):
    run("view", "daily", "--sql", DAILY)
    run("refresh", "daily")
    assert "rows" not in run("view", "daily", "--sql", DAILY).err
    answer = run("view", "daily", "--sql", DAILY.replace("sum", "max"))
    assert answer.out.startswith("daily: redefined; ")
    assert "readers see the old rows until `floodmark refresh daily`" in answer.err
    assert run("view", "daily").lines[-1] == "must compute everything: its definition changed"


def test_view_that_is_computed_as_a_whole_says_why(run, flights, spark):
    run("view", "daily", "--sql", DAILY)
    answer = run("view", "top", "--sql", TOP)
    assert answer.out.startswith("top: declared; a refresh computes everything, because ")
    assert "may depend on the order of the rows" in answer.out


def test_view_is_described_with_its_query_and_how_far_it_is(run, flights, spark):
    run("view", "daily", "--sql", "select day,\n  count(*) n\nfrom flights group by day")
    assert run("view", "daily").lines == [
        "daily: a refresh computes changed groups (day) of flights",
        "  select day,",
        "    count(*) n",
        "  from flights group by day",
        "Aggregate by day: changes are added to the totals that are kept",
        "└─ Table flights: its changes since the last refresh",
        "never refreshed (4 new records)",
    ]
    run("refresh", "daily")
    assert run("view", "daily").lines[-1] == "up to date"
    flights.delete([4])
    assert run("view", "daily").lines[-1] == "behind (1 new record)"


def test_views_are_listed_with_how_far_they_are_behind(run, flights, spark):
    run("view", "windy", "--sql", WINDY)
    run("view", "daily", "--sql", DAILY)
    run("refresh", "daily")
    flights.write(pa.table({"id": [5], "carrier": ["UA"], "origin": ["LGA"], "day": [2], "delay": [1]}))
    assert run("view").lines == [
        "view   refreshed by           made from         behind  state",
        "daily  groups (carrier, day)  flights                1  behind",
        "windy  join keys (origin)     flights, weather       6  never refreshed",
    ]
    daily, windy = run("view", "--json").json["views"]
    assert (daily["view"], daily["behind"], daily["state"]) == ("daily", 1, "behind")
    assert (windy["kind"], windy["waiting"]) == ("join", 0)


def test_list_and_schema_call_a_view_a_view(run, flights, spark):
    run("view", "late", "--sql", "select delay / 60 hours from flights where delay > 0")
    assert "a refresh computes changed records of flights" in run("schema", "late").err
    assert "the first refresh sets them" in run("schema", "late").err
    run("refresh", "late")
    late = next(line for line in run("list").lines if line.startswith("late"))
    assert late.split()[:2] == ["late", "view"]
    assert [line.split()[0] for line in run("schema", "late").lines] == ["column", "hours"]


def test_query_that_spark_does_not_understand_is_said_and_makes_nothing(run, flights, spark):
    answer = run("view", "daily", "--sql", "select carier from flights")
    assert (answer.code, answer.out) == (1, "")
    assert "carier" in answer.err
    assert "carrier" in answer.err
    assert "Traceback" not in answer.err
    assert "daily" not in Lake("lake")


def test_dataset_that_is_no_view_cannot_become_one(run, flights, spark):
    answer = run("view", "weather", "--sql", DAILY)
    assert (answer.code, answer.out) == (1, "")
    assert "'weather' cannot become a view: it is a dataset that data is written to" in answer.err


def test_view_whose_source_is_gone_does_not_hide_the_others(run, flights, spark):
    run("view", "daily", "--sql", DAILY)
    run("view", "gusts", "--sql", "select * from weather")
    Lake("lake")._drop_alone("weather")
    answer = run("view")
    assert answer.code == 1
    assert [line.split()[0] for line in answer.lines] == ["view", "daily"]
    assert "error: gusts: " in answer.err
    assert "weather" in answer.err
