"""What a query over a lake may use: built-in functions without side effects, and tables of the lake; nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from floodmark.errors import BadQuery, BadView
from floodmark.ledger.spark_builtins import FUNCTIONS, TABLE_FUNCTIONS
from floodmark.ledger.spark_query import parse_query, parse_select
from floodmark.views.analysis import InputSchema
from floodmark.views.classification import check_resolved
from floodmark.views.spark_sql import isolated_session, plan_query

pytestmark = pytest.mark.spark

MARK = "floodmark.test.mark"
SET = f"'java.lang.System', 'setProperty', '{MARK}', 'set'"


@pytest.fixture
def mark(spark: SparkSession) -> Iterator[Any]:
    """Whether a query has run code: a call that it must not make sets a property of the JVM."""
    system: Any = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.clearProperty(MARK)
    yield lambda: system.getProperty(MARK)
    system.clearProperty(MARK)


CODE = [
    f"select reflect({SET}) x from t",
    f"select REFLECT({SET}) x from t",
    f"select `reflect`({SET}) x from t",
    f"select java_method({SET}) x from t",
    f"select try_reflect({SET}) x from t",
    f"select builtin.reflect({SET}) x from t",
    f"select system.builtin.reflect({SET}) x from t",
    f"select `system`.`builtin`.`java_method`({SET}) x from t",
    f"select reflect /* a comment */ ({SET}) x from t",
    f"select upper(reflect({SET})) x from t",
    f"select transform(array(1), x -> reflect({SET})) x from t",
    f"select aggregate(array(1), 0, (a, b) -> 1, a -> reflect({SET})) x from t",
    f"select case when id > 0 then reflect({SET}) end x from t",
    f"select sum(id) over (partition by reflect({SET}) order by id) x from t",
    f"select sum(id) over w x from t window w as (order by reflect({SET}))",
    f"select sum(id) filter (where reflect({SET}) = '') x from t",
    f"select listagg(g, ',') within group (order by reflect({SET})) x from t",
    f"select id from t where exists (select 1 from t where reflect({SET}) = '')",
    f"select id from t where id in (select length(java_method({SET})) from t)",
    f"select (select reflect({SET})) x from t",
    f"with c as (select reflect({SET}) x from t) select x from c",
    f"with c as (with d as (select reflect({SET}) x) select * from d) select x from c",
    f"select x from t, lateral (select reflect({SET}) x)",
    f"select * from values (reflect({SET})) as v(x)",
    f"select id from t order by reflect({SET})",
    f"select id from t group by all having reflect({SET}) = ''",
    f"select id, row_number() over (order by id) n from t qualify reflect({SET}) = ''",
    f"select id from t limit length(reflect({SET}))",
    f"select x from t lateral view explode(array(reflect({SET}))) v as x",
    f"select x from explode(array(java_method({SET}))) v(x)",
    f"select id from t tablesample (1 rows) where java_method({SET}) = ''",
    f"select * from t pivot (max(java_method({SET})) for g in ('a'))",
    f"from t |> where reflect({SET}) = ''",
    f"from t |> extend reflect({SET}) as x",
    f"select /*+ broadcast(t) */ java_method({SET}) x from t",
    f"select identifier('reflect')({SET}) x from t",
    f"select identifier('ref' || 'lect')({SET}) x from t",
    f"select id from t union all select length(reflect({SET})) from t",
    f"select struct(reflect({SET})).col1 x from t",
    f"select map(1, reflect({SET}))[1] x from t",
    f"select cast(reflect({SET}) as string) x from t",
    f"select extract(year from cast(reflect({SET}) as date)) x from t",
    f'execute immediate "select reflect({SET})"',
    f"begin select reflect({SET}); end",
]


@pytest.mark.parametrize("query", CODE)
def test_query_that_would_run_code_is_refused_before_it_does(spark: SparkSession, mark: Any, query: str) -> None:
    with pytest.raises(BadQuery):
        parse_select(spark, query, ["t"])
    assert mark() is None


OUTSIDE = [
    "select * from parquet.`/etc`",
    "select * from text.`/etc/passwd`",
    "select * from `text`.`/etc/passwd`",
    "select * from csv.`/etc/passwd`",
    "select * from binaryFile.`/etc/passwd`",
    "select * from default.t",
    "select * from spark_catalog.default.t",
    "select * from global_temp.t",
    "select * from t, text.`/etc/passwd`",
    "select id from t where id in (select length(value) from text.`/etc/passwd`)",
    "with t as (select * from text.`/etc/passwd`) select * from t",
    "select * from other",
    "table other",
    "select * from identifier('text.`/etc/passwd`')",
    "select * from identifier('oth' || 'er')",
    "select * from read_files('/etc/passwd')",
    "select * from t version as of 1",
    "select * from stream t",
    "select transform(id) using 'cat' as (x) from t",
    "from t map id using 'cat' as x",
    "from t reduce id using 'cat' as x",
    "select input_file_name() x from t",
    "select input_file_block_start() x from t",
    "select current_user() x from t",
    "select session_user() x from t",
    "select user() x from t",
    "select current_catalog() x from t",
    "select current_database() x from t",
    "select current_schema() x from t",
    "select version() x from t",
    "select from_avro(g, '', map('avroSchemaUrl', 'file:///etc/passwd')) x from t",
    "select from_protobuf(g, 'M', '/etc/passwd') x from t",
    "select from_xml(g, 'a int', map('rowValidationXSDPath', '/etc/passwd')) x from t",
    "select xpath_string(g, '/a') x from t",
    "select own_function(id) x from t",
    "select spark_catalog.default.own_function(id) x from t",
    "select session.own_function(id) x from t",
    "select :parameter x from t",
    "select ? x from t",
    "insert into t select * from t",
    "insert overwrite directory '/tmp/x' using csv select * from t",
    "from t insert into t select *",
    "with c as (select 1) insert into t select * from c",
    "create table x as select * from t",
    "create temporary function f as 'java.lang.String'",
    "explain select * from t",
    "show tables",
    "set spark.sql.ansi.enabled = false",
    "set variable x = 1",
    "add jar '/tmp/x.jar'",
    "use default",
    "call system.f()",
    "select 1; select 2",
]


@pytest.mark.parametrize("query", OUTSIDE)
def test_query_that_would_reach_outside_of_the_lake_is_refused(spark: SparkSession, query: str) -> None:
    with pytest.raises(BadQuery):
        parse_select(spark, query, ["t"])


HARMLESS = [
    "select now() a, current_timestamp() b, current_timestamp c, current_date d, rand() e, uuid() f from t",
    "select system.builtin.upper(g) x, BUILTIN.lower(g) y, `abs`(id) z from t",
    "select * except (g) from t where id between 1 and 2 and g like 'a%' or g is not null and not id <> 3",
    "select a.id, b.g from t a left join t b using (id) where a.id in (1, 2) order by 1 nulls last limit 3 offset 1",
    "with recursive r as (select 1 n union all select n + 1 from r where n < 5) select n from r, t",
    "select g, count(*) n, sum(id) filter (where id > 1) s from t group by rollup(g) having count(*) > 0",
    "select g, listagg(g, ',') within group (order by id) x from t group by g",
    "select g, percentile_cont(0.5) within group (order by id) y from t group by g",
    "select sum(id) over (partition by g order by id rows between 1 preceding and current row) s from t",
    "select rank() over w r from t window w as (order by id) qualify r = 1",
    "select transform(array(1, 2), x -> x + 1)[0] x, map('a', 1)['a'] y, named_struct('a', 1).a z from t",
    "select x from t lateral view outer explode(array(1, 2)) e as x",
    "select * from range(3), values (1, 'a') v(n, s), lateral (select n + 1 m)",
    "select * from t pivot (sum(id) for g in ('a', 'b'))",
    "select * from t unpivot (v for k in (id))",
    "select * from t tablesample (10 percent)",
    "select extract(year from date '2026-01-01') y, position('a' in g) p, trim(both ' ' from g) q,"
    " cast(id as string) s, id::int i, substring(g from 1 for 2) u, overlay(g placing 'x' from 1) o,"
    " timestampadd(day, 1, now()) a from t",
    "select case id when 1 then 'a' else 'b' end x, if(id > 1, 1, 2) y, nvl(g, '') z, id div 2 d, ~id n from t",
    "select first(g) f, last(g) ignore nulls l, any_value(g) a, count(distinct id) c from t",
    "select /*+ broadcast(t) */ distinct id from t cluster by id",
    "from t |> where id > 1 |> aggregate sum(id) as s group by g |> order by g",
    "select id from t union select id from t intersect select id from t except select 1",
    "select g collate utf8_binary c, g ilike any ('a%', 'b%') l, date '2026-01-01' + interval 1 day d from t",
    "select interval '1' day i, x'00' b, 1.5bd d, timestamp '2026-01-01' t from t",
    "select id from t where exists (select 1 from t u where u.id = t.id) and id = (select max(id) from t)",
    "table t",
    "select sum(1) n from t group by grouping sets ((g), ())",
    "select try_cast(g as int) n, parse_json(g):a v, id is distinct from 1 d from t",
]


@pytest.mark.parametrize("query", HARMLESS)
def test_harmless_query_is_allowed(spark: SparkSession, query: str) -> None:
    parse_select(spark, query, ["T"])


def test_error_names_the_function_and_what_to_do(spark: SparkSession) -> None:
    with pytest.raises(BadQuery, match=r"calls System\.Builtin\.Reflect\(\), which is not") as refused:
        parse_query(spark, "select System.Builtin.Reflect('a', 'b')")
    assert "built-in functions without side effects" in refused.value.hint
    assert refused.value.facts["function"] == "System.Builtin.Reflect"
    with pytest.raises(BadQuery) as misspelled:
        parse_query(spark, "select uper('a')")
    assert "did you mean upper()?" in misspelled.value.hint


def test_function_of_the_session_is_refused(spark: SparkSession) -> None:
    spark.udf.register("own_function", lambda x: x)
    with pytest.raises(BadQuery, match="own_function"):
        parse_query(spark, "select own_function(1)")


def test_query_that_is_nested_without_end_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadQuery):
        parse_query(spark, f"select {'(' * 20_000}1{')' * 20_000}")


def _source(**columns: str) -> InputSchema:
    import pyarrow as pa

    return InputSchema("did", "t", pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()]))


def test_name_of_the_user_is_a_column_or_refused(spark: SparkSession) -> None:
    isolated = isolated_session(spark)
    source = _source(user="string", id="int64")
    planned = plan_query(isolated, "select user, id from t", {"t": source.schema}, ["t"])
    check_resolved(planned.plan, ["t"])
    for query in (
        "select (select current_user) x from t",
        "select session_user x from t",
        "select (select user) x from t",
    ):
        planned = plan_query(isolated, query, {"t": _source(id="int64").schema}, ["t"])
        with pytest.raises(BadView, match="value of the session"):
            check_resolved(planned.plan, ["t"])


def test_variable_of_the_session_is_refused(spark: SparkSession) -> None:
    isolated = isolated_session(spark)
    isolated.sql("declare variable secret = 'x'")
    planned = plan_query(isolated, "select secret x from t", {"t": _source(id="int64").schema}, ["t"])
    with pytest.raises(BadView, match="value of the session"):
        check_resolved(planned.plan, ["t"])


def test_name_of_with_that_means_a_table_of_the_session_is_refused(spark: SparkSession) -> None:
    isolated = isolated_session(spark)
    isolated.range(3).createOrReplaceTempView("other")
    query = "select o.id from other o, (with other as (select 1 x) select x from other) i, t"
    planned = plan_query(isolated, query, {"t": _source(id="int64").schema}, ["t"])
    with pytest.raises(BadView, match="'other', which is not a dataset"):
        check_resolved(planned.plan, ["t"])


def test_settings_of_a_view_change_only_the_meaning_of_queries(spark: SparkSession) -> None:
    for name in ("spark.sql.catalog.evil", "spark.sql.warehouse.dir", "spark.sql.extensions"):
        with pytest.raises(BadView, match="not a setting that affects"):
            isolated_session(spark, {name: "x"})


REVIEWED_AND_REFUSED = """
    ! != % & * + - / < << <= <=> <> = == > >= >> >>> ^ | || ~
    collations current_catalog current_database current_path current_schema current_user from_avro from_protobuf
    from_xml input_file_block_length input_file_block_start input_file_name java_method measure python_worker_logs
    reflect schema_of_avro schema_of_xml session_user sql_keywords to_avro to_protobuf try_reflect user version xpath
    xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string
"""


def test_every_built_in_function_was_reviewed(spark: SparkSession) -> None:
    rows = isolated_session(spark).sql("show system functions").collect()
    known = {row[0] for row in rows}
    allowed, refused = FUNCTIONS | TABLE_FUNCTIONS, set(REVIEWED_AND_REFUSED.split())
    assert known - allowed == refused & known
    assert allowed - known == set(), "misspelled"
    assert not allowed & refused
