"""`floodmark refresh` brings views up to date, and says what it took."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from cli.conftest import DAILY, TOP, WINDY
from floodmark import Lake
from floodmark.cli.command import Invocation
from floodmark.view import View
from limits import set_limit
from waiting import PATIENCE

pytestmark = pytest.mark.spark

FLIGHT = {"id": [5], "carrier": ["DL"], "origin": ["LGA"], "day": [2], "delay": [1]}


@pytest.fixture
def views(run, flights, spark):
    """A view by groups, one by join keys, and one on the first that is computed as a whole."""
    for name, query in {"daily": DAILY, "windy": WINDY, "a_top": TOP}.items():
        assert run("view", name, "--sql", query).code == 0
    return Lake("lake")


def untimed(text):
    """A line without how long it took."""
    return text.rpartition(" (")[0]


def rows(name, by):
    return Lake("lake")[name].to_arrow().sort_by(by).to_pylist()


def test_first_refresh_says_that_everything_was_computed(run, views):
    answer = run("refresh", "daily")
    assert (answer.code, answer.err) == (0, "")
    assert untimed(answer.out) == "daily: everything was computed, because it was never refreshed; rows: 3 new"


def test_refresh_without_changes_has_nothing_to_do(run, views):
    run("refresh", "daily")
    head = views["daily"].snapshot().head
    answer = run("refresh", "daily")
    assert (answer.code, answer.out, answer.err) == (0, "daily: nothing to do\n", "")
    assert views["daily"].snapshot().head == head


def test_refresh_counts_what_it_touched(run, views, flights):
    run("refresh", "daily", "windy")
    flights.write(pa.table(FLIGHT))
    flights.delete([1, 2])  # all that AA had on this day
    answer = run("refresh", "daily", "windy")
    assert [untimed(line) for line in answer.lines] == [
        "daily: 3 new records in 2 groups; rows: 1 changed, 1 retracted",
        "windy: 3 new records with 2 join keys; rows: 1 new, 2 retracted",
    ]


def test_all_goes_in_the_order_of_what_views_are_made_from(run, views):
    answer = run("refresh", "--all")
    assert [line.partition(":")[0] for line in answer.lines] == ["daily", "a_top", "windy"]
    assert Lake("lake")["a_top"].to_arrow().to_pylist() == [{"carriers": ["AA", "DL"]}]


def test_named_views_go_in_that_order_too(run, views):
    answer = run("refresh", "a_top", "daily", "a_top")
    assert [line.partition(":")[0] for line in answer.lines] == ["daily", "a_top"]


def test_view_computed_as_a_whole_says_why_every_time(run, views, flights):
    run("refresh", "--all")
    flights.write(pa.table(FLIGHT))
    line = run("refresh", "--all").lines[1]
    assert line.startswith("a_top: everything was computed, because ")
    assert "may depend on the order of the rows" in line
    assert untimed(line).endswith("; rows: nothing changed")
    assert run("refresh", "a_top").out == "a_top: nothing to do\n"


def test_view_that_fails_does_not_stop_the_others(run, views):
    Lake("lake")._drop_alone("weather")
    answer = run("refresh", "windy", "daily")
    assert answer.code == 1
    assert [line.partition(":")[0] for line in answer.lines] == ["daily"]
    assert "error: windy: " in answer.err
    assert "weather" in answer.err
    answer = run("refresh", "--all", "--json")
    assert (answer.code, answer.err) == (1, "")
    found = {one["view"]: one for one in answer.json["refreshes"]}
    assert found["windy"]["error"]["type"] == "SourceGone"
    assert set(found) == {"a_top", "daily", "windy"}


def test_single_view_that_fails_is_the_error(run, views):
    Lake("lake")._drop_alone("weather")
    answer = run("refresh", "windy", "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "SourceGone"


def test_mistyped_view_is_a_did_you_mean_before_anything_runs(run, views):
    for command in ("refresh", "plan"):
        answer = run(command, "windy", "dialy")
        assert (answer.code, answer.out) == (1, "")
        assert "did you mean 'daily'?" in answer.err


def test_json_has_every_count(run, views, flights):
    run("refresh", "daily")
    flights.write(pa.table(FLIGHT))
    (found,) = run("refresh", "daily", "--json").json["refreshes"]
    assert found.pop("seconds") > 0
    assert found == {
        "view": "daily",
        "kind": "groups",
        "why": None,
        "stale": None,
        "records": 1,
        "keys": 1,
        "new": 0,
        "changed": 1,
        "retracted": 0,
        "called": 0,
        "reused": 0,
        "failed": 0,
        "waiting": 0,
        "commits": 1,
        "positions": {"flights": 4},
        "kept_as": None,
        "carried": 0,
    }


def test_view_with_another_key_is_made_anew_and_says_where_the_old_rows_are(run, views):
    run("refresh", "daily")
    run("view", "daily", "--sql", "select day, count(*) n from flights group by day")
    assert run("view", "daily").lines[-1].startswith("must compute everything: its key changed")
    assert len(rows("daily", "day")) == 3
    answer = run("refresh", "daily")
    assert untimed(answer.out).endswith("; rows: 2 new; the old rows are in daily-old-1")
    assert rows("daily", "day") == [{"day": 1, "n": 3}, {"day": 2, "n": 1}]
    assert len(rows("daily-old-1", "day")) == 3


def test_ctrl_c_says_that_the_view_is_as_it_was(run, views, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(View, "refresh", interrupted)
    answer = run("refresh", "--all")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "error: interrupted: daily is unchanged; run the same command again\n"


@pytest.mark.parametrize(("little", "opened"), [(0, 1), (1 << 20, 0)])
def test_much_data_gets_the_spark_that_works_faster(run, views, monkeypatch, little, opened):
    full = []
    set_limit(monkeypatch, "refresh.little", little)
    monkeypatch.setattr(Invocation, "lake", lambda call, given=Invocation.lake: full.append(given(call)) or full[-1])
    assert run("refresh", "windy").code == 0
    assert len(full) == opened
    assert len(rows("windy", "id")) == 4


def test_refresh_without_changes_needs_neither_spark_nor_pandas(run, views):
    run("refresh", "--all")
    code = (
        "import sys; from floodmark.cli.app import floodmark\n"
        "try: floodmark(['refresh', '--all'])\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, sorted({'pyspark', 'pandas', 'polars', 'sqlalchemy', 'duckdb'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert found.stdout.splitlines() == [
        "daily: nothing to do",
        "a_top: nothing to do",
        "windy: nothing to do",
        "0 []",
    ]
