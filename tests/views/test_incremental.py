"""`refresh="incremental"` refuses a query that cannot be maintained in parts, with the operator and the reason."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session
from floodmark.errors import BadView
from floodmark.views.delta_cache import plan_of
from floodmark.views.table_changes import WholeInstead

WHOLE = {
    "select id, rand() r from t": r"it uses rand\(\), whose value differs in each run",
    "select id from t where d < current_date()": "whose value differs in each run",
    "select id from t where d < date'now'": "it uses a time such as 'now' or 'today'",
    "select id, ntile(2) over (order by n) p from t": r"it has a window without PARTITION BY.*\(Window",
    "select upper(c) c, collect_list(n) l from t group by upper(c)": r"collect_list\(\).* of the rows \(Aggregate",
    "select a.id from t a full join t b on a.n < b.n": r"full join without an equality.*\(Join full outer\)",
    "select n, id from t tablesample (50 percent)": r"it has TABLESAMPLE \(Sample\)",
    "select id from t where f > (select avg(f) from t)": "sums of floating-point numbers",
}
PARTS = {
    "select id, n + 1 m from t where c = 'a'": "rows",
    "select c, collect_list(n) l from t group by c": "groups",
    "select a.id, b.id other from t a join t b on a.n = b.n": "changes",
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, session: Session) -> fm.Lake:
    lake = fm.Lake(tmp_path_factory.mktemp("incremental"), runtime=Runtime(session=session))
    rows = {"id": [1, 2], "c": ["a", "b"], "n": [1, 2], "f": [0.5, 1.5], "d": pa.array([1, 2], pa.date32())}
    lake.create("t", key="id").write(pa.table(rows))
    return lake


@pytest.mark.spark
@pytest.mark.parametrize("sql", WHOLE)
def test_a_query_that_is_computed_whole_is_refused_and_accepted_without_the_policy(lake: fm.Lake, sql: str):
    name = f"w{list(WHOLE).index(sql)}"
    with pytest.raises(BadView, match=f"(?s)cannot be maintained in parts: .*{WHOLE[sql]}") as caught:
        lake.view(name, sql=sql, refresh="incremental")
    assert 'leave out refresh="incremental"' in caught.value.hint
    assert name not in lake
    view = lake.view(name, sql=sql)  # the hint works
    assert view.whole_reason is not None
    assert view.whole_reason in caught.value.message
    assert view.refresh().is_whole


@pytest.mark.spark
@pytest.mark.parametrize("sql", PARTS)
def test_a_query_that_is_maintained_in_parts_is_accepted(lake: fm.Lake, sql: str):
    view = lake.view(f"p{list(PARTS).index(sql)}", sql=sql, refresh="incremental")
    assert (view.refresh_kind, view.definition.refresh) == (PARTS[sql], "incremental")
    assert not view.refresh().nothing


@pytest.mark.spark
def test_another_definition_is_refused_too_and_the_view_stays(lake: fm.Lake):
    view = lake.view("stays", sql="select id from t", refresh="incremental")
    view.refresh()
    with pytest.raises(BadView, match="cannot be maintained in parts"):
        lake.view("stays", sql="select id, rand() r from t", refresh="incremental")
    assert lake.view("stays").definition.sql == "select id from t"
    assert lake.view("stays").refresh().nothing


@pytest.mark.parametrize(("policy", "said"), [("whole", "refresh='whole' is not known"), (1, "refresh=1 is not known")])
def test_an_unknown_policy_is_refused(tmp_path: Path, policy: Any, said: str):
    lake = fm.Lake(tmp_path)
    with pytest.raises(BadView, match=said):
        lake.view("v", sql="select 1", refresh=policy)
    with pytest.raises(BadView, match=said):
        fm.ViewSpec("v", sql="select 1", refresh=policy)


def test_through_spark_connect_a_refresh_is_whole_with_the_reason():
    connect = SimpleNamespace(get=lambda: object())
    with pytest.raises(WholeInstead, match="cannot be read through Spark Connect"):
        plan_of(cast("Any", SimpleNamespace()), [], cast("Any", connect))
