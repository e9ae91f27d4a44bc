"""All parts of Floodmark on ten rows: run it, and read it from top to bottom. Add --spark for views."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa

import floodmark as fm

ORDERS = """id,at,client,price
1,2026-11-01T09:00:00Z,ada,10
2,2026-11-01T09:30:00Z,bob,20
3,2026-11-01T10:00:00Z,ada,30
4,2026-11-01T11:00:00Z,cyd,-4
5,2026-11-02T09:00:00Z,bob,50
6,2026-11-02T09:10:00Z,ada,60
7,2026-11-02T12:00:00Z,dee,70
8,2026-11-03T08:00:00Z,bob,80
9,2026-11-03T09:00:00Z,cyd,90
10,2026-11-03T10:00:00Z,ada,100
"""

# 1. Declare datasets, sources and functions. You can call and test the functions directly.
orders = fm.DatasetSpec("orders", key="id", event_time="at", partition_by="day")
totals = fm.DatasetSpec("totals", key="client")
pipeline = fm.Pipeline([])


@pipeline.source(orders)
def csv() -> pa.Table:
    frame = pd.read_csv("orders.csv", parse_dates=["at"])
    return pa.Table.from_pandas(frame.assign(at=frame["at"].astype("datetime64[us, UTC]")), preserve_index=False)


@pipeline.transform(inputs=[orders], outputs=[totals], transform_keys=["client"])
def add_up(orders: pd.DataFrame) -> pd.DataFrame:  # all rows of some clients: called for changed clients
    if (orders["price"] < 0).any():
        raise ValueError("a negative price")
    return orders.groupby("client", as_index=False).agg(price=("price", "sum"))


@pipeline.column(orders, returns="string")
def size(price: int) -> str:  # one row: called once per row
    return "large" if price >= 50 else "small"


@pipeline.table(inputs=[totals], outputs=[fm.DatasetSpec("best", key="client")])
def best(totals: pa.Table) -> pa.Table:  # all rows at once
    return totals.sort_by([("price", "descending")]).slice(0, 1)


def main() -> None:
    # 2. Run. Order 4 fails, so its client gets no total; all others do.
    Path("orders.csv").write_text(ORDERS, "utf-8")
    ran = pipeline.run(lake := fm.Lake("lake"))
    assert lake["totals"].to_pandas().set_index("client")["price"].to_dict() == {"ada": 200, "bob": 150, "dee": 70}
    step = pipeline["add_up"]
    assert isinstance(step, fm.BatchTransform)
    [failed] = step.errors(lake).to_pylist()
    print(f"ran {len(ran.outcomes)} steps; failed: client={failed['client']}, {failed['message']}")

    # 3. Run again: only the failed client is retried. Correct the row: only its client is computed.
    idle = pipeline.run(lake)
    assert {one.node.name for one in idle.outcomes if one.state != "nothing"} == {"add_up"}, (ran, idle)
    Path("orders.csv").write_text(ORDERS.replace("-4", "40"), "utf-8")
    again = pipeline.run(lake)
    print(f"corrected: {again['ingest_orders'].rows} row came in, {again['add_up'].rows} total was computed")

    # 4. The ledger: every record has an offset and is never overwritten, so earlier states can be read.
    live = lake["orders"]
    assert live.changes_arrow(since=9)["op"].to_pylist() == [2, 3]  # order 4 before and after the change
    assert live.to_arrow(as_of=9)["price"].to_pylist()[3] == -4
    assert live.history([4])["price"].to_pylist() == [-4, -4, 40]
    first = live.write(rows(11, "eve", 5), source="shop", state="page 1")
    assert live.write(rows(11, "eve", 5), source="shop", state="page 1") == first  # the same delivery: written once
    live.delete([11])

    # 5. The timeline: a late row is read in its place.
    live.write(rows(12, "ada", 1, hour=9))
    morning = live.timeline_batches("2026-11-01T00:00Z", "2026-11-01T10:30Z", columns=["id"]).read_all()
    assert morning["id"].to_pylist() == [1, 12, 2, 3]
    print(f"morning of the first day: {morning['id'].to_pylist()}, 12 came last")

    # 6. The column: only new rows are computed.
    plan = live.plan_backfill("size")
    pipeline.run(lake)
    print(f"column size: {plan.missing} row was missing, {plan.done} were done")
    assert lake.sql("select size from orders where id > 9 order by id")["size"].to_pylist() == ["large", "small"]

    # 7. Provenance of a row, and verification of all hashes.
    made_of = lake.why("totals", {"client": "ada"})
    print(f"ada's total is made of the orders at offsets {sorted(made_of.offsets()['orders'])}")
    assert all(dataset.verify().ok for dataset in lake.datasets())


def rows(number: int, client: str, price: int, hour: int = 12) -> pa.Table:
    at = pa.array([datetime(2026, 11, 1, hour, 10, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    return pa.table({"id": [number], "at": at, "client": [client], "price": [price]})


def with_spark(lake: fm.Lake) -> None:
    """Spark refreshes views, and reads any dataset as a frame or a stream."""
    lake.view("daily", sql="select date(at) as day, sum(price) as price from orders group by date(at)").refresh()
    spark = lake["orders"].read().sparkSession
    fm.register(spark, lake=lake)
    frame = spark.read.format("floodmark").load("daily")
    print(f"daily: {[(str(row.day), row.price) for row in frame.orderBy('day').collect()]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        main()
        if "--spark" in sys.argv:
            with_spark(fm.Lake("lake"))
