"""`view.explain()` and `floodmark view NAME` show how operators are maintained, and what the last refresh did there."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import floodmark as fm
from cli.conftest import invoke
from floodmark.engine.session import Runtime, Session
from floodmark.views.explanation import KeptState, RefreshWork, TableRead

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake", runtime=Runtime(session=session))
    sales = pd.DataFrame({"id": range(8), "k": [0, 0, 1, 1, 2, 2, 3, 3], "n": range(8)})
    lake.create("sales", key="id").write(sales)
    lake.create("products", key="k").write(pd.DataFrame({"k": range(4), "name": ["a", "b", "c", "d"]}))
    return lake


LATEST = (
    "select p.name, s.n from (select *, row_number() over (partition by k order by n desc) r from sales) s "
    "join products p on s.k = p.k where r = 1"
)


def lines(view: fm.View) -> list[str]:
    return [line.strip("│├└─ ") for line in view.explain().lines()]


def test_each_operator_has_its_rule_and_what_the_last_refresh_read_and_computed(lake: fm.Lake):
    view = lake.view("latest", sql=LATEST)
    before = lines(view)
    assert any(line.startswith("Window by k: the partitions that changed") for line in before)
    assert "Table sales: its changes since the last refresh" in before
    assert not any("last refresh read" in line or "last refresh:" in line for line in before)
    view.refresh()
    assert lines(view)[-1] == "the last refresh computed everything, because it was never refreshed"

    lake["sales"].write(pd.DataFrame({"id": [9, 10], "k": [1, 1], "n": [9, 10]}))
    assert not view.refresh().is_whole
    after = lines(view)
    at = next(number for number, line in enumerate(after) if line.startswith("Window"))
    assert after[at + 1] == "last refresh: 1 key"
    at = after.index("Table sales: its changes since the last refresh")
    assert after[at + 1].startswith("last refresh read 2 changes, 4 rows by k, 2 rows by k as before")
    assert not any("computed everything" in line for line in after)
    assert str(view.explain()).count("\n") == len(after) - 1


def test_an_operator_without_a_rule_is_named_with_its_reason(lake: fm.Lake):
    sql = "select name, count(*) n from products tablesample (50 percent) group by name"
    view = lake.view("some", sql=sql)
    assert "Sample: whole, because it has TABLESAMPLE" in lines(view)
    view.refresh()
    lake["products"].write(pd.DataFrame({"k": [9], "name": ["e"]}))
    view.refresh()
    assert lines(view)[-1].startswith("the last refresh computed everything, because ")


def test_views_by_records_groups_and_join_keys_have_a_tree_too(lake: fm.Lake):
    by_k = lake.view("by_k", sql="select k, max(n) n from sales group by k")
    by_k.refresh()
    lake["sales"].write(pd.DataFrame({"id": [9], "k": [1], "n": [9]}))
    by_k.refresh()
    assert lines(by_k) == [
        "Query: the groups (k) that changed, from all their rows",
        "Table sales",
        "last refresh read 3 rows by k",
    ]
    assert by_k.explain().to_json()["tree"]["children"][0]["reads"] == (
        {"table": "sales", "version": "now", "rows": 3, "by": ("k",)},
    )
    small = lake.view("small", sql="select id, n from sales where n < 3")
    assert lines(small) == ["Query: the records that changed", "Table sales"]


def test_the_command_shows_the_same_as_text_and_json(lake: fm.Lake, tmp_path: Path):
    view = lake.view("latest", sql=LATEST, description="The newest sale of each product.")
    view.refresh()
    shown = invoke("view", "latest", "--lake", str(tmp_path / "lake"))
    assert shown.out.splitlines()[1] == "The newest sale of each product."
    assert all(line in shown.out for line in view.explain().lines())
    parsed = json.loads(invoke("view", "latest", "--json", "--lake", str(tmp_path / "lake")).out)
    assert parsed["explained"] == json.loads(json.dumps(view.explain().to_json()))
    assert parsed["explained"]["last_whole"] == "it was never refreshed"


def test_work_survives_a_note():
    reads = (TableRead("t", "changes", 1), TableRead("t", "now", 2000, ("a", "b")), TableRead("t", "before", 3))
    work = RefreshWork("because", reads, {2: 5}, {1: KeptState(10, 2000)})
    assert RefreshWork.from_json(json.loads(json.dumps(work.to_json()))) == work
    assert [str(read) for read in reads] == ["1 change", "2,000 rows by a, b", "all 3 rows as before"]
    assert str(KeptState(10, 2000)) == "10 rows, 2,000 bytes"
