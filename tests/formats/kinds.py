"""A small lake with every kind of dataset and derived thing: `tools/format_lake.py` stores one, and tests read it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm

FOLDER = Path(__file__).parent
LAKE = FOLDER / "lake.tar.xz"
EXPECTED = FOLDER / "expected.json"


@fm.udf(returns="int64", version="1", name="doubled")
def doubled(n: pa.Array) -> pa.Array:
    return pc.multiply(n, 2)


def sums(orders: pa.Table) -> pa.Table:
    """One key fails, so that the step has a failed key."""
    if "c" in orders["c"].to_pylist():
        raise ValueError("c is refused")
    return orders.group_by("c").aggregate([("n", "sum")]).rename_columns(["c", "n"])


def total(orders: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "n": [pc.sum(orders["n"]).as_py()]})


def letters() -> Any:
    yield pa.table({"id": [1, 2], "text": ["x", "y"]})


STEPS = (
    fm.BatchTransform(sums, ["orders"], ["sums"], transform_keys=["c"], version="1", name="sums"),
    fm.DatatableTransform(total, ["orders"], [fm.OutputSpec("total", key="what")], version="1", name="total"),
    fm.BatchGenerate(letters, [fm.OutputSpec("letters", key="id")], name="letters"),
)

VIEWS = {
    "by_record": "select id, n * 2 as twice from orders where n > 1",
    "by_group": "select c, count(*) as n from orders group by c",
    "by_join_key": "select o.id, o.c, k.city from orders o left join clients k on o.c = k.c",
    "by_changes": "select k.city, sum(o.n) as n from orders o join clients k on o.c = k.c group by k.city",
    "by_window": "select c, id from (select *, rank() over (partition by c order by id) r from orders) where r = 1",
    "whole": "select id, ntile(2) over (order by id) as part from orders",
    "on_view": "select max(twice) as most from by_record",
}


def orders(first: int, count: int) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "c": ["abc"[i % 3] for i in ids], "n": [i * i % 7 for i in ids]})


def build(lake: fm.Lake) -> None:
    """Write everything, some of it twice, so that there are old versions."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    lake.create("events").write(pa.table({"n": [1, 2, 3], "f": [0.5, None, float("nan")]}))
    lake["events"].write(pa.table({"n": [4], "f": [-0.0]}), source="feed", state="1")
    lake.create("orders", key="id").write(orders(0, 6))
    lake["orders"].add_column("twice", doubled, ["n"])
    lake.create("clients", key="c").write(pa.table({"c": ["a", "b"], "city": ["Rome", "Oslo"]}))
    lake.create("stock", key="id", merge="snapshot").write(pa.table({"id": [1, 2], "n": [1, 2]}))
    lake["stock"].write(pa.table({"id": [2, 3], "n": [2, 3]}))
    lake.create("facts", key="id", merge="ledger").write(pa.table({"id": [1], "n": [1]}))
    feed = lake.create("feed", key="id", merge="changelog", schema={"id": "int64", "n": "int64"})
    feed.write(pa.table({"op": pa.array([0, 0], pa.int32()), "id": [1, 2], "n": [1, 2]}))
    sensors = lake.create("sensors", event_time="at", partition_by="day")
    for hours in ((1, 3, 5), (2, 30)):
        at = [day.replace(hour=h % 24, day=1 + h // 24) for h in hours]
        sensors.write(pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "n": list(hours)}))
    for name, sql in VIEWS.items():
        lake.view(name, sql=sql)
    lake.view("called", source="orders", select={"id": "id", "w": (doubled, ["n"])})
    run(lake)
    lake["orders"].write(orders(4, 4))
    lake["orders"].delete([1])
    run(lake)
    lake["clients"].write(pa.table({"c": ["a", "c"], "city": ["Bari", "Bonn"]}))
    lake["orders"].fold()
    lake.create("old", key="id").write(orders(0, 2))
    lake["old"].write(orders(1, 2))
    lake["old"].purge(before=2)
    lake.create("private", key="id").write(orders(0, 3))
    lake["private"].erase([1])
    run(lake)


def run(lake: fm.Lake) -> None:
    """Bring everything derived up to date."""
    for step in STEPS:
        step.run(lake)
    lake["orders"].backfill("twice", udf=doubled)
    for name in (*VIEWS, "called"):
        lake.view(name).refresh(udfs=[doubled])


def answers(lake: fm.Lake) -> dict[str, Any]:
    """What a lake answers, as JSON: rows with their offsets, all records, and which column or view is how far."""
    found: dict[str, Any] = {}
    for dataset in lake:
        found[dataset.name] = {
            "rows": _json(dataset.to_arrow()),
            "records": _json(dataset.changes_arrow()),
            "columns": {c.name: [c.done, c.rows] for c in dataset.columns()},
        }
    found["timeline"] = [repr(row) for row in lake["sensors"].timeline_batches().read_all().to_pylist()]
    found["positions"] = {view.name: dict(view.positions) for view in lake.views()}
    return found


def _json(table: pa.Table) -> list[list[str]]:
    """The columns and the sorted rows, without the times of commits."""
    plain = table.drop_columns([name for name in ("system_time", "event_time") if name in table.column_names])
    rows = [[repr(value) for value in row.values()] for row in plain.to_pylist()]
    return [plain.column_names, *sorted(rows)]
