"""`why` of views against a naive oracle: rows that it does not name are taken away one by one, and nothing changes."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.engine.session import Runtime, Session

pytestmark = pytest.mark.spark

QUERIES = {
    "big": "select id, c, amount * 2 as twice from orders where amount > 15",
    "sums": "select c, count(*) as n, sum(amount) as s from orders group by c",
    "cities": "select o.id, o.c, o.amount, k.city from orders o left join clients k on o.c = k.c",
    "by_city": "select k.c, k.city, sum(o.amount) as s from orders o join clients k on o.c = k.c group by k.c, k.city",
}
ON_TOP = "select c, max(twice) as most from big group by c"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, session: Session) -> fm.Lake:
    lake = fm.Lake(tmp_path_factory.mktemp("removing"), runtime=Runtime(session=session))
    orders, clients = lake.create("orders", key="id"), lake.create("clients", key="c")
    orders.write(pa.table({"id": [1, 2, 3, 4, 5], "c": ["a", "b", "a", "b", None], "amount": [16, 32, 64, 8, 128]}))
    clients.write(pa.table({"c": ["a", "b", "x"], "city": ["Rome", "Oslo", "Bonn"]}))
    names = {**QUERIES, "on_top": ON_TOP}
    for name, sql in names.items():
        lake.view(name, sql=sql).refresh()
    orders.write(pa.table({"id": [3, 6], "c": ["b", "a"], "amount": [256, 512]}))
    orders.delete([1])
    clients.write(pa.table({"c": ["a"], "city": ["Bari"]}))
    for name in names:
        lake.view(name).refresh()
    return lake


def _tables(lake: fm.Lake) -> dict[str, Rows]:
    """The sources' rows with their offsets."""
    return {name: lake[name].scan().to_table().to_pylist() for name in ("orders", "clients")}


def _asked(tables: dict[str, Rows], query: str) -> Rows:
    """The answer to a query as another engine has it."""
    types = {"orders": {"id": pa.int64(), "c": pa.string(), "amount": pa.int64()}, "clients": None}
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            columns = types[name] or {"c": pa.string(), "city": pa.string()}
            schema = pa.schema(list(columns.items()))
            connection.register(name, pa.Table.from_pylist([{n: row[n] for n in columns} for row in rows], schema))
        connection.execute(f"create view big as {QUERIES['big']}")
        return list(connection.sql(query).to_arrow_table().to_pylist())


@pytest.mark.parametrize("name", [*QUERIES, "on_top"])
def test_a_row_that_is_not_named_has_no_part_in_it_and_one_of_those_named_has(name: str, lake: fm.Lake) -> None:
    query, tables = {**QUERIES, "on_top": ON_TOP}[name], _tables(lake)
    shown = lake[name].scan().to_table().to_pylist()
    answer = _asked(tables, query)
    assert len(shown) == len(answer) > 1
    for row in shown:
        record = {column: row[column] for column in answer[0]}
        assert record in answer
        named = lake.why(name, row["offset"], rows=100).offsets()
        matters = []
        for source, rows in tables.items():
            for one in rows:
                others = {**tables, source: [other for other in rows if other is not one]}
                is_the_same = record in _asked(others, query)
                is_named = one["offset"] in named.get(source, set())
                assert is_the_same or is_named, (record, source, one)
                matters += [] if is_the_same else [one["offset"]]
        assert matters, record
