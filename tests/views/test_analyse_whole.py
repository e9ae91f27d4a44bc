"""Queries that are answered as a whole, and why; and those that cannot be views at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from floodmark import udf
from floodmark.errors import BadColumnName, BadQuery, BadView, FloodmarkError, UnsupportedType
from floodmark.views.analysis import COPY_COLUMN, ROW_COLUMN, Analysis, InputSchema
from floodmark.views.analyzer import analyse, table_names
from floodmark.views.definition import ViewDefinition, define
from floodmark.views.spark_sql import isolated_session
from views.analysed_queries import SOURCES, WHOLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def ours(spark: SparkSession) -> SparkSession:
    return isolated_session(spark)


def analysed(spark: SparkSession, sql: str, sources: Mapping[str, InputSchema] = SOURCES) -> Analysis:
    return analyse(spark, ViewDefinition(sql=sql), sources)


@pytest.mark.parametrize(("sql", "why"), WHOLE.items(), ids=list(WHOLE))
def test_query_outside_the_subset_is_whole_and_says_why(ours: SparkSession, sql: str, why: str) -> None:
    analysis = analysed(ours, sql)
    assert Analysis.from_json(analysis.to_json()) == analysis
    assert analysis.query == sql
    if analysis.kind == "changes":  # it has no T, but a rule for each operator
        assert analysis.rules is not None
        assert analysis.rules.whole_text is None
        return
    assert analysis.kind == "whole"
    assert why in (analysis.why or "")
    assert (analysis.t, analysis.key) == ((), (ROW_COLUMN, COPY_COLUMN))
    assert analysis.identity


REFUSED: dict[str, tuple[type[FloodmarkError], str]] = {
    "select 1 as x": (BadView, "names no dataset"),
    "select id, n as id from t": (BadColumnName, "'id'"),
    "select t.*, e.* from t join e using (id)": (BadColumnName, "'id'"),
    "select n, k as N from t": (BadColumnName, "'N'"),
    "select id as offset from t": (BadColumnName, "'offset'"),
    "select id as floodmark_row from t": (BadView, "'floodmark_row'"),
    "select id, n as Floodmark_x from t": (BadView, "'Floodmark_x'"),
    "select id, map(id, k) m from t": (UnsupportedType, "'m'"),
    "select id, null as x from t": (UnsupportedType, "'x'"),
    "select id, interval 1 day as x from t": (UnsupportedType, "'x'"),
    "select nothing from t": (BadQuery, "`nothing`"),
    "select id from t where and": (BadQuery, "line 1"),
    "select id from t join e using (id) where g = k": (BadQuery, "`k`"),
    "select id from": (BadQuery, ""),
    "drop view t": (BadQuery, "not a SELECT"),
    "create table floodmark_never (a int) using parquet": (BadQuery, "not a SELECT"),
    "with c as (select 1) insert into t select * from c": (BadQuery, "not a SELECT"),
    "explain select id from t": (BadQuery, "not a SELECT"),
    "set spark.sql.ansi.enabled = false": (BadQuery, "not a SELECT"),
    "select * from json.`/etc/hostname`": (FloodmarkError, ""),
}


@pytest.mark.parametrize("sql", REFUSED)
def test_query_that_cannot_be_a_view_is_refused(ours: SparkSession, sql: str) -> None:
    kind, said = REFUSED[sql]
    with pytest.raises(kind) as caught:
        analysed(ours, sql)
    assert said in caught.value.message
    assert caught.value.hint


def test_table_of_the_users_session_is_no_dataset(spark: SparkSession, ours: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("mine")
    spark.range(3).createOrReplaceGlobalTempView("t")
    try:
        with pytest.raises(BadQuery):
            analysed(ours, "select * from mine")
        with pytest.raises(BadQuery, match="not a dataset of the lake"):
            analysed(ours, "select * from global_temp.t")
    finally:
        spark.catalog.dropTempView("mine")
        spark.catalog.dropGlobalTempView("t")


def test_dataset_without_columns_is_refused(ours: SparkSession) -> None:
    with pytest.raises(BadView, match="no columns yet"):
        analysed(ours, "select * from t", {"t": InputSchema("did:t", "t", pa.schema([]))})


def test_only_the_columns_that_matter_are_read(ours: SparkSession) -> None:
    analysis = analysed(ours, "select id, w from t join `u-x` using (id)")
    assert [(use.alias, use.columns, use.computed) for use in analysis.sources] == [
        ("t", ("id",), ()),
        ("u-x", ("id", "w"), ()),
    ]
    [use] = analysed(ours, "select count(*) z from t").sources
    assert use.columns == ("id",)
    [use] = analysed(ours, "select x.k from (select k, id, n from t) x").sources
    assert use.columns == ("id", "k", "n")  # named in the query, so they have to be there
    [use] = analysed(ours, "select id, c + 1 as d from t").sources
    assert use.computed == ("c",)


def test_names_that_a_query_defines_are_no_datasets(ours: SparkSession) -> None:
    sql = "with c as (select * from `u-x`) select * from c where id in (select id from E) and exists (select 1 from e)"
    assert table_names(ViewDefinition(sql=sql), ours) == ("E", "u-x")
    shadowed = analysed(ours, "with e as (select id from t) select id from e")
    assert [use.alias for use in shadowed.sources] == ["t"]


def test_settings_of_the_session_are_taken_over(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert isolated_session(spark).conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


@udf(returns=pa.int64())
def twice(n: int) -> int:
    return 2 * n


def test_functions_stand_where_the_user_put_them(ours: SparkSession) -> None:
    definition = define("v", source="t", select={"b": twice, "i": "id", "c2": (twice, ["c"])}, where="n > 1 -- hi")
    analysis = analyse(ours, definition, {"t": SOURCES["t"]})
    assert analysis.columns == pa.schema({"b": pa.int64(), "i": pa.int32(), "c2": pa.int64()})
    assert (analysis.kind, analysis.t, analysis.key) == ("rows", ("i",), ("i",))
    assert analysis.inject == {"t": (("floodmark_offset", "offset"),)}
    assert len(analysis.hidden) == 0
    [use] = analysis.sources
    assert (use.columns, use.computed) == (("id", "n"), ("c",))


def test_view_of_nothing_but_functions_goes_by_what_its_source_does(ours: SparkSession) -> None:
    of_keyed = analyse(ours, define("v", source="t", select={"b": twice}), {"t": SOURCES["t"]})
    assert of_keyed.t == ("floodmark_key_id",)
    assert of_keyed.inject == {"t": (("floodmark_offset", "offset"), ("floodmark_key_id", "id"))}
    assert of_keyed.hidden == pa.schema({"floodmark_key_id": pa.int32()})
    of_log = analyse(ours, define("v", source="e", select={"b": (twice, ["w"])}), {"e": SOURCES["e"]})
    assert (of_log.t, of_log.inject) == (("floodmark_offset",), {"e": (("floodmark_offset", "offset"),)})


@pytest.mark.parametrize(
    ("select", "where"),
    [({"b": twice, "m": "max(n)"}, None), ({"b": twice}, "rand() > 0.5"), ({"b": twice}, "n in (select 1)")],
)
def test_functions_need_rows(ours: SparkSession, select: dict[str, object], where: str | None) -> None:
    with pytest.raises(BadView, match="single rows"):
        analyse(ours, define("v", source="t", select=select, where=where), {"t": SOURCES["t"]})


@pytest.mark.parametrize("text", ["n, id", "n as m", "*", "n from t union select 1", ""])
def test_column_of_select_is_one_expression(ours: SparkSession, text: str) -> None:
    with pytest.raises(FloodmarkError):
        analyse(ours, define("v", source="t", select={"x": text}), {"t": SOURCES["t"]})
    with pytest.raises(FloodmarkError):
        analyse(ours, define("v", source="t", select={"x": text, "b": twice}), {"t": SOURCES["t"]})
