"""SQL over the datasets of a lake answers without a JVM; what it cannot answer is said."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadName, BadQuery, NoSchema, UnknownDataset
from ledger.worlds import numbers


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    lake = fm.Lake(tmp_path_factory.mktemp("lake"))
    trips = lake.create("trips", event_time="at")
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    trips.write(pa.table({"at": pa.array(times[:2], pa.timestamp("us", "UTC")), "who": [1, 2], "fare": [1.5, 2.0]}))
    trips.write(pa.table({"at": pa.array(times[2:], pa.timestamp("us", "UTC")), "who": [1, None], "fare": [4.0, None]}))
    lake.create("Who-is-who").write(pa.table({"who": [1, 2], "name": ["Ada", "Bob"]}))
    lake.create("empty", schema={"n": "int64"})
    lake.create("new")
    return lake


ANSWERS = [
    ("select count(*) c, sum(fare) s from trips", [{"c": 4, "s": 7.5}]),
    (
        "select who, sum(fare) s from trips group by who order by who nulls last",
        [{"who": 1, "s": 5.5}, {"who": 2, "s": 2.0}, {"who": None, "s": None}],
    ),
    (
        'select name, sum(fare) s from trips join "Who-is-who" using (who) group by 1 order by 1',
        [{"name": "Ada", "s": 5.5}, {"name": "Bob", "s": 2.0}],
    ),
    ('select count(*) c from TRIPS natural join "WHO-IS-WHO"', [{"c": 3}]),
    (
        "select a.fare x, b.fare y from trips a join TRIPS b on a.who = b.who and a.fare < b.fare",
        [{"x": 1.5, "y": 4.0}],
    ),
    ("select (select max(fare) from trips) m", [{"m": 4.0}]),
    ("with t as (select * from trips where fare > 1.8), u as (select * from t) select count(*) c from u", [{"c": 2}]),
    ("with trips as (select fare from trips where who = 1) select count(*) c from trips", [{"c": 2}]),
    ("select count(*) c from trips where \"at\" >= '2026-01-02' and \"at\" < '2026-01-04'", [{"c": 2}]),
    ("from trips select who where fare = 4", [{"who": 1}]),
    ("select * from empty", []),
    ("select n from empty union all select who from trips where who = 2", [{"n": 2}]),
    ("select * from range(2)", [{"range": 0}, {"range": 1}]),
    ("select current_setting('TimeZone') tz", [{"tz": "UTC"}]),
    ("select 1 as one", [{"one": 1}]),
]


@pytest.mark.parametrize(("query", "answer"), ANSWERS, ids=[q for q, _ in ANSWERS])
def test_query_is_answered(lake, query, answer):
    table = lake.sql(query)
    assert isinstance(table, pa.Table)
    assert table.to_pylist() == answer


def test_star_gives_the_data_columns_in_the_user_s_order(lake):
    assert lake.sql("select * from trips").column_names == ["at", "who", "fare"]
    assert lake.sql("select * from trips").schema.field("at").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("query", "error", "word"),
    [
        ("select * from trip", UnknownDataset, "did you mean 'trips'?"),
        ("select * from trips join nowhere using (who)", UnknownDataset, "nowhere"),
        ("selec", BadQuery, "selec"),
        ("select nope from trips", BadQuery, "nope"),
        ("select * from trips where fare = 'x'", BadQuery, "x"),
        ("select * from new", NoSchema, "new"),
        ('select * from "no name"', BadName, "no name"),
        ("drop table trips", BadQuery, "DROP"),
        ("", BadQuery, ""),
    ],
)
def test_query_that_cannot_be_answered_says_why(lake, query, error, word):
    with pytest.raises(error) as refused:
        lake.sql(query)
    assert word in str(refused.value)


def test_local_variables_of_the_product_are_no_tables(lake):
    for name in ("lake", "query", "connection", "datasets"):
        with pytest.raises(UnknownDataset):
            lake.sql(f"select * from {name}")


def test_query_does_not_see_purged_records(lake):
    dataset = lake.create("purged")
    dataset.write(numbers(0, 2))
    dataset.write(numbers(2, 5))
    dataset.purge(before=2)
    assert lake.sql("select count(*) c, min(n) m from purged").to_pylist() == [{"c": 3, "m": 2}]


def test_query_over_many_slices(lake):
    dataset = lake.create("many")
    for i in range(12):
        dataset.write(numbers(i * 25, i * 25 + 25))
    assert lake.sql("select sum(n)::bigint s, count(*) c from many").to_pylist() == [{"s": sum(range(300)), "c": 300}]


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to '{file}'",
        "create view v as select 1",
        "set threads = 1",
        "select 1; select 2",
        "with x as (copy (select 1) to '{file}') select 1",
        "explain analyze copy (select 1) to '{file}'",
        "",
    ],
)
def test_sql_only_answers_questions(lake, tmp_path, query):
    file = tmp_path / "out.csv"
    with pytest.raises(BadQuery, match="only a single SELECT"):
        lake.sql(query.format(file=file))
    assert not file.exists()


@pytest.mark.parametrize(
    "query",
    [
        "explain analyze copy (select 1) to '{file}'",
        "EXPLAIN (ANALYZE) copy (select 1) to '{file}'",
        "/* x */ explain analyze copy (select 1) to '{file}'",
        "with x as (copy (select 1) to '{file}') select 1",
        "with x as (with y as (copy (select 1) to '{file}') select 1) select * from x",
        "select (with x as (copy (select 1) to '{file}') select 1)",
        "explain with x as (copy (select 1) to '{file}') select 1",
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/hostname'",
        "select * from glob('/etc/*')",
        "select * from read_csv('https://example.com/a.csv')",
        "select * from sniff_csv('/etc/hostname')",
        "explain analyze create table x as select 1",
        "explain set threads = 1",
        "attach '{file}' as other",
        "install httpfs",
        "load httpfs",
        "pragma threads = 1",
        "call pragma_version()",
        "export database '{file}'",
        "import database '{file}'",
        "prepare p as select 1",
    ],
)
def test_query_reaches_nothing_outside_of_the_lake(lake, tmp_path, query):
    file = tmp_path / "out.csv"
    with pytest.raises((BadQuery, UnknownDataset, BadName)):
        lake.sql(query.format(file=file))
    assert not file.exists()


def test_filter_reaches_nothing_outside_of_the_lake(lake, tmp_path):
    for where in (
        "who in (select 1 from read_text('/etc/hostname'))",
        f"who in (with x as (copy (select 1) to '{tmp_path}/out.csv') select 1)",
        f"true); copy (select 1) to '{tmp_path}/out.csv'; select (1",
    ):
        with pytest.raises(BadQuery):
            lake["trips"].to_batches(where=where).read_all()
    assert not list(tmp_path.iterdir())


def test_plan_of_a_query_is_shown(lake):
    assert lake.sql("explain select * from trips where fare > 1").num_rows
    assert lake.sql("EXPLAIN ANALYZE select count(*) from trips").num_rows
    assert lake.sql("describe trips").column("column_name").to_pylist() == ["at", "who", "fare"]


def test_large_query_uses_temporary_files_of_its_own(lake, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    from floodmark.ledger.duckdb_table import connect

    connection = connect()
    [(folder,)] = connection.sql("select current_setting('temp_directory')").fetchall()
    assert folder.startswith(str(tmp_path))
    connection.close()
    assert not list(tmp_path.iterdir())
