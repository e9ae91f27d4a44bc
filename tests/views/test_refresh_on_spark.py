"""Refreshes whose queries Spark answers: little data and much, other columns, queries that fail."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.engine.session import Runtime, Session
from floodmark.errors import QueryFailed
from floodmark.ledger.spark_read import table_frame
from floodmark.views import attempt, changed_rows
from floodmark.views.evaluator import IsolatedSession
from limits import set_limit

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]


@pytest.fixture
def lake(tmp_path: Path, session: Session) -> fm.Lake:
    return fm.Lake(tmp_path, runtime=Runtime(session=session))


@pytest.fixture
def orders(lake: fm.Lake) -> Dataset:
    made = lake.create("orders", key="id")
    made.write(pa.table({"id": range(40), "c": [n % 7 for n in range(40)], "amount": range(40)}))
    return made


@pytest.fixture
def much(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a handful of rows were too many for memory."""
    set_limit(monkeypatch, "rows.small_rows", 2)
    set_limit(monkeypatch, "rows.few_rows", 2)
    set_limit(monkeypatch, "evaluate.held_rows", 2)


def change(orders: Dataset) -> None:
    orders.write(pa.table({"id": [1, 2, 3, 50], "c": [6, 6, 9, None], "amount": [1000, None, 5, 17]}))
    orders.delete(pa.table({"id": [10, 20]}))


def current(dataset: Dataset) -> Rows:
    return sorted(dataset.to_arrow().to_pylist(), key=str)


def from_scratch(lake: fm.Lake, sql: str) -> Rows:
    return sorted(lake.sql_spark(sql).toArrow().to_pylist(), key=str)


QUERIES = {
    "rows": "select id, amount * 2 as twice from orders where amount > 10",
    "groups": "select c, sum(amount) as s, count(*) as n from orders group by c having count(*) > 1",
    "join": "select o.c, o.amount, k.name from orders o left join customers k on o.c = k.c",
    "changes": "select max(amount) as m, count(*) as n from orders",
    "whole": "select amount, sum(amount) over (order by amount) as n from orders where c < 3",
}


@pytest.mark.parametrize("kind", QUERIES)
def test_more_rows_than_memory_should_hold_come_to_the_same(
    kind: str, lake: fm.Lake, orders: Dataset, much: None
) -> None:
    customers = lake.create("customers", key="c")
    customers.write(pa.table({"c": range(5), "name": list("abcde")}))
    view = lake.view("v", sql=QUERIES[kind])
    assert view.refresh_kind == kind
    view.refresh()
    assert current(view) == from_scratch(lake, QUERIES[kind])
    change(orders)
    customers.write(pa.table({"c": [5, 1], "name": ["f", "B"]}))
    done = view.refresh()
    assert done.is_whole == (kind == "whole") or kind == "changes"
    assert current(view) == from_scratch(lake, QUERIES[kind])


@fm.udf(returns="int64", on_error=fm.Skip(ValueError))
def halved(amount: int) -> int:
    if amount == 17:
        raise ValueError("seventeen")
    return amount // 2


def test_functions_of_more_rows_than_memory_should_hold(lake: fm.Lake, orders: Dataset, much: None) -> None:
    view = lake.view("v", source=orders, select={"h": halved, "id": "id"}, where="amount > 10")
    first = view.refresh()
    assert (first.called, first.failed, first.new) == (29, 1, 29)
    change(orders)
    done = view.refresh()
    assert (done.called, done.failed) == (2, 1)
    wanted = {n: None if n == 17 else n // 2 for n in range(11, 40) if n != 20} | {1: 500, 50: None}
    assert {row["id"]: row["h"] for row in view.to_arrow().to_pylist()} == wanted
    assert view.to_arrow().column_names == ["h", "id"]
    assert view.errors().column("offset").to_pylist() == [17, 46]


def test_rows_that_failed_are_tried_again_when_asked_for(lake: fm.Lake, orders: Dataset) -> None:
    view = lake.view("v", source=orders, select={"id": "id", "h": halved})
    view.refresh()
    assert view.refresh().nothing
    again = view.refresh(retry_errors=True)
    assert (again.called, again.failed, again.keys, again.changed) == (1, 1, 1, 0)
    orders.write(pa.table({"id": [17, 18], "c": [0, 0], "amount": [170, 180]}))
    done = view.refresh(retry_errors=True)
    assert (done.called, done.failed, done.keys) == (2, 0, 2)
    assert view.errors().num_rows == 0
    assert view.refresh(retry_errors=True).nothing


def test_new_column_of_a_source_shows_where_the_query_takes_all(lake: fm.Lake, orders: Dataset) -> None:
    every, some = lake.view("every", sql="select * from orders"), lake.view("some", sql="select id, c from orders")
    for view in (every, some):
        view.refresh()
    orders.evolve({"note": "string"})
    orders.write(pa.table({"id": [1], "c": [1], "amount": [1], "note": ["new"]}))
    done = every.refresh()
    assert (done.stale, done.changed) == ("the columns of its sources changed", 1)
    assert current(every) == from_scratch(lake, "select * from orders")
    done = some.refresh()
    assert (done.stale, done.keys, done.changed) == (None, 1, 0)
    assert some.refresh().nothing
    assert some.to_arrow().column_names == ["id", "c"]


@pytest.mark.parametrize("kind", ["groups", "whole"])
def test_new_column_that_a_query_does_not_use_is_noted_and_nothing_computed(
    kind: str, lake: fm.Lake, orders: Dataset
) -> None:
    view = lake.view("v", sql=QUERIES[kind])
    view.refresh()
    orders.evolve({"later": "string"})
    before = len(list(view.log()))
    report = view.refresh()
    assert (report.commits, report.nothing, report.is_whole, report.changed) == (1, False, False, 0)
    assert len(list(view.log())) > before
    assert view.refresh().nothing


def test_column_that_the_definition_drops_is_gone_until_it_is_back(lake: fm.Lake, orders: Dataset) -> None:
    lake.view("v", sql="select id, amount, c from orders").refresh()
    view = lake.view("v", sql="select c, id from orders")
    done = view.refresh()
    assert (done.stale, done.changed) == ("its definition changed", 40)
    assert view.to_arrow().column_names == ["c", "id"]
    assert view.refresh().nothing
    view = lake.view("v", sql="select id, amount, c from orders")
    view.refresh()
    assert view.to_arrow().column_names == ["id", "amount", "c"]
    assert current(view) == from_scratch(lake, "select id, amount, c from orders")


def test_query_that_fails_on_the_data_says_so_and_leaves_the_view(lake: fm.Lake, orders: Dataset) -> None:
    view = lake.view("v", sql="select id, 100 div (amount - 100) as d from orders")
    view.refresh()
    before = current(view)
    orders.write(pa.table({"id": [60], "c": [1], "amount": [100]}))
    with pytest.raises(QueryFailed, match=r"the query of view 'v': Division by zero\. "):
        view.refresh()
    assert current(view) == before
    orders.delete(pa.table({"id": [60]}))
    assert view.refresh().positions == {"orders": 41}


@pytest.mark.usefixtures("much")
def test_source_that_is_purged_while_spark_reads_it_is_read_again(
    lake: fm.Lake, orders: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.write(pa.table({"id": range(100, 130), "c": [1] * 30, "amount": [70] * 30}))
    orders.delete([0])
    view = lake.view("v", sql=QUERIES["rows"])
    whole_of, tries = changed_rows.read_all_rows, []

    def purging(*args: Any) -> Any:
        found = whole_of(*args)
        tries.append(found)
        if len(tries) == 1:
            orders.purge(before=40)
        return found

    monkeypatch.setattr(attempt, "read_all_rows", purging)
    assert view.refresh().new == 29 + 30
    assert len(tries) == 2
    assert current(view) == from_scratch(lake, QUERIES["rows"])


def test_answer_that_a_few_rows_explode_into_is_not_held(
    lake: fm.Lake, orders: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(monkeypatch, "evaluate.held_rows", 100)
    view = lake.view("v", sql="select a.id, b.id as other from orders a cross join orders b")
    assert view.refresh().new == 1600
    assert view.to_arrow().num_rows == 1600


def test_settings_of_the_session_count_and_stay(lake: fm.Lake, orders: Dataset, session: Session) -> None:
    spark = session.get()
    before = dict(spark.conf.getAll)
    assert before["spark.sql.shuffle.partitions"] == "2"  # as the fixture has it, whatever was refreshed until now
    sql = "select id, cast(timestamp '2026-01-01 00:00:00Z' as string) as t from orders"
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        view = lake.view("v", sql=sql)
        view.refresh()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before["spark.sql.session.timeZone"])
    assert view.to_arrow().column("t").to_pylist()[0] == "2026-01-01 09:00:00"
    assert dict(spark.conf.getAll) == before
    assert not spark.catalog.listTables()


def test_batches_without_rows_are_not_taken_for_the_end(session: Session) -> None:
    part = pa.table({"a": [1, 2]})
    table = pa.concat_tables([part.schema.empty_table(), part, part.schema.empty_table(), part])
    assert [row.a for row in table_frame(table, session.get()).collect()] == [1, 2, 1, 2]


def test_values_of_all_types_reach_spark_and_come_back(session: Session) -> None:
    little = IsolatedSession(session)
    little.use_few_tasks()
    columns: dict[str, Any] = {
        "small": pa.array([1, None], pa.uint8()),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "text": ["é", None],
        "data": pa.array([b"\x00", None], pa.binary()),
        "day": pa.array([dt.date(1, 1, 1), None]),
        "clock": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
        "local": pa.array([dt.datetime(1899, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
        "instant": pa.array([dt.datetime(1600, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
        "money": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "many": pa.array([[1, None], None], pa.list_(pa.int64())),
        "pair": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
    }
    table = pa.table(columns)
    for spark in (session.get(), little.get()):
        back = table_frame(table, spark).toArrow()
        assert back.cast(table.schema).to_pylist() == table.to_pylist()
