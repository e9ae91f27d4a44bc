"""A definition that was found in a lake is checked by every refresh: whoever wrote it may not be who refreshes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from floodmark import Lake
from floodmark.engine.session import Runtime, Session
from floodmark.errors import BadQuery, BadView
from floodmark.views.replacement import find_view, redefine
from floodmark.views.stored_definition import require_stored_view

pytestmark = pytest.mark.spark

MARK = "floodmark.test.mark"
CALL = f"java_method('java.lang.System', 'setProperty', '{MARK}', 'set')"


@pytest.fixture
def mark(spark: SparkSession) -> Iterator[Any]:
    """Whether a query has run code: a call that it must not make sets a property of the JVM."""
    system: Any = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.clearProperty(MARK)
    yield lambda: system.getProperty(MARK)
    system.clearProperty(MARK)


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> Lake:
    lake = Lake(tmp_path, runtime=Runtime(session=session))
    lake.create("t", key="id").write(pa.table({"id": [1, 2], "g": ["a", "b"]}))
    lake.view("honest", sql="select id, upper(g) g from t")
    lake.view("forged", sql="select id, upper(g) g from t")
    return lake


def forge(lake: Lake, query: str, **settings: str) -> None:
    """Store a query as the analysed one, which refreshes run."""
    stored = require_stored_view("forged", find_view(lake, "forged").refreshed.state)
    analysis = replace(stored.analysis, query=query, settings={**stored.analysis.settings, **settings})
    redefine(lake, "forged", replace(stored, analysis=analysis))


@pytest.mark.parametrize(
    "query",
    [
        f"select id, {CALL} g from t",
        f"select id, {CALL.upper()} g from t",
        f"select id, system.builtin.{CALL} g from t",
        "select id, value g from t, text.`/etc/passwd`",
        "select id, g from t, (select 1 from default.other)",
    ],
)
def test_query_that_reaches_outside_is_refused_by_the_refresh(lake: Lake, mark: Any, query: str) -> None:
    forge(lake, query)
    with pytest.raises(BadQuery, match="view 'forged': "):
        lake.view("forged").refresh()
    assert mark() is None
    lake.view("honest").refresh()
    assert lake["honest"].count() == 2


def test_query_is_refused_after_the_columns_of_its_input_changed(lake: Lake, mark: Any) -> None:
    stored = require_stored_view("forged", find_view(lake, "forged").refreshed.state)
    definition = replace(stored.definition, sql=f"select id, {CALL} g from t")
    redefine(lake, "forged", replace(stored, definition=definition))
    lake["t"].evolve({"h": "string"})
    with pytest.raises(BadQuery, match="view 'forged': the query calls java_method"):
        lake.view("forged").refresh()
    assert mark() is None


def test_name_that_means_a_value_of_the_session_is_refused_by_the_refresh(lake: Lake) -> None:
    forge(lake, "select id, current_user g from t")
    with pytest.raises(BadView, match=r"view 'forged': .* value of the session"):
        lake.view("forged").refresh()


def test_setting_that_does_more_than_change_the_meaning_is_refused_by_the_refresh(lake: Lake) -> None:
    forge(lake, "select id, upper(g) g from t", **{"spark.sql.catalog.evil": "evil.Catalog"})
    with pytest.raises(BadView, match="not a setting that affects"):
        lake.view("forged").refresh()


def test_declaring_says_what_is_refused_and_what_to_do(lake: Lake, mark: Any) -> None:
    for declaration in (
        {"sql": f"select {CALL} x from t"},
        {"source": "t", "select": {"x": CALL}},
        {"source": "t", "where": f"{CALL} = ''"},
        {"source": "t", "where": f"id in (select length({CALL}) from t)"},
    ):
        with pytest.raises(BadQuery, match=r"calls java_method\(\)") as refused:
            lake.view("new", **declaration)
        assert "built-in functions without side effects" in refused.value.hint
    assert "new" not in lake
    assert mark() is None


def test_queries_by_spark_may_use_what_views_may_use(lake: Lake, mark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for query in (
        f"select {CALL} x from t",
        "select * from text.`/etc/passwd`",
        f"insert overwrite directory '{out}' using csv select * from t",
        f"create table x using csv location '{out}' as select * from t",
        "drop table t",
        "select 1; select 2",
    ):
        with pytest.raises(BadQuery):
            lake.sql_spark(query)
    assert not out.exists()
    assert mark() is None
    assert lake.sql_spark(
        "with x as (select id from T) select count(*) n, max(now()) > '2020-01-01' b from x"
    ).collect()
