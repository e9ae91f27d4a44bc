"""`floodmark plan` says for views, too, what would be done and why."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cli.conftest import DAILY, TOP, WINDY
from floodmark import Lake

pytestmark = pytest.mark.spark


@pytest.fixture
def views(run, flights, spark):
    for name, query in {"daily": DAILY, "windy": WINDY}.items():
        assert run("view", name, "--sql", query).code == 0
    return Lake("lake")


def test_plan_before_the_first_refresh_has_everything(run, views):
    assert run("plan", "windy").lines == [
        "windy: everything to be computed, because it was never refreshed",
        "source   done up to  head  new records",
        "flights           -     3            4",
        "weather           -     0            1",
    ]


def test_plan_names_the_groups_that_changed(run, views, flights):
    run("refresh", "daily")
    flights.write(
        pa.table({"id": [1, 5], "carrier": ["UA", "DL"], "origin": ["JFK", "LGA"], "day": [1, 2], "delay": [5, 1]})
    )
    answer = run("plan", "daily")
    assert answer.lines[:4] == [
        "daily: 3 groups to be computed: 'flights' has new records",
        "source   done up to  head  new records",
        "flights           3     6            3",
        "",
    ]
    assert answer.lines[4].split() == ["carrier", "day"]
    assert sorted(answer.lines[5:]) == ["AA       1", "DL       2", "UA       1"]
    planned = run("plan", "daily", "--json").json["plans"][0]["plan"]
    done = run("refresh", "daily", "--json").json["refreshes"][0]
    assert (planned["records"], planned["keys"]) == (done["records"], done["keys"]) == (3, 3)


def test_plan_shows_some_of_many_keys(run, views, flights):
    run("view", "late", "--sql", "select id, delay from flights where delay > 0")
    run("refresh", "late")
    ids = list(range(10, 30))
    flights.write(pa.table({"id": ids, "carrier": ["UA"] * 20, "origin": ["JFK"] * 20, "day": [1] * 20, "delay": ids}))
    lines = run("plan", "late").lines
    assert lines[0] == "late: 20 rows to be computed: 'flights' has new records"
    assert lines[4] == "id"
    assert len(lines) == 16
    assert lines[-1] == "… and 10 more rows"


def test_plan_of_a_view_computed_as_a_whole_says_why(run, views, flights):
    run("view", "top", "--sql", TOP)
    run("refresh", "--all")
    assert run("plan", "top").lines[0] == "top: nothing to do"
    flights.delete([1])
    run("refresh", "daily")
    line = run("plan", "top").lines[0]
    assert line.startswith("top: everything to be computed: 'daily' has new records, and ")
    assert "may depend on the order of the rows" in line


def test_plan_without_names_shows_steps_and_views(run, views, orders):
    kinds = [one["kind"] for one in run("plan", "--json").json["plans"]]
    assert kinds == ["BatchGenerate", "BatchTransform", "DatatableTransform", "View", "View"]
    assert "total: waits: there is no dataset 'prices'" in run("plan").out
    answer = run("plan", "daily", "prices")
    assert [line.partition(":")[0] for line in answer.lines if ": " in line][:2] == ["daily", "prices"]


def test_views_are_planned_without_a_pipeline(run, views):
    assert [one["view"] for one in run("plan", "--json").json["plans"]] == ["daily", "windy"]
    assert run("plan", "daily").code == 0


def test_name_that_is_neither_is_a_did_you_mean_over_both(run, views, orders):
    answer = run("plan", "dialy")
    assert (answer.code, answer.out) == (1, "")
    assert "there is no step or view 'dialy'" in answer.err
    assert "did you mean 'daily'?" in answer.err
