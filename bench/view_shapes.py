"""Views of everyday shapes after 1,000 of many rows have changed, against plain Spark over all rows.

Run: python bench/view_shapes.py --rows 10000000
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from floodmark.engine.session import Session
from floodmark.view import View
from measuring import Figure, measured, seconds

CHANGED = 1_000
PRODUCTS, STORES = 1_000, 100
ROWS_PER_CUSTOMER = 100
LEAST_SECONDS = 0.2
"""A refresh may take as long as this, however fast Spark is."""
SPARK_FRACTION = 1 / 15

SHAPES: Mapping[str, str] = {
    "dimension": "select s.id, s.amount, p.category from sales s join products p using (product)",
    "star": (
        "select s.id, s.amount, p.category, t.city from sales s join products p using (product)"
        " join stores t on s.store = t.store"
    ),
    "latest": (
        "select customer, id, amount from"
        " (select *, row_number() over (partition by customer order by at desc, id) r from sales) where r = 1"
    ),
    "union": "select id, amount from sales union all select id, amount from returns",
    "explode": "select id, tag from sales lateral view explode(tags) t as tag",
    "expression": "select store % 10 region, sum(amount) amount, count(*) sales from sales group by store % 10",
    "total": "select count(*) sales, sum(amount) amount from sales",
    "other_column": (
        "select p.category, sum(s.amount) amount from sales s join products p using (product) group by p.category"
    ),
    "in": "select id, amount from sales where product in (select product from products where category = 3)",
    "top": "select id, customer, amount from sales order by amount desc, id limit 10",
    "running": "select id, customer, sum(amount) over (partition by customer order by at, id) total from sales",
    "rollup": "select store, product % 10 kind, sum(amount) amount from sales group by rollup (store, product % 10)",
    "distinct": "select distinct store, product from sales",
    "count_distinct": "select customer, count(distinct product) products from sales group by customer",
    "decimals": "select customer, sum(amount) amount, avg(amount) mean, count(*) n from sales group by customer",
    "doubles": "select customer, sum(price) price, count(*) n from sales group by customer",
}


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    with Session() as session:
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        _load(lake, args.rows)
        views = {name: lake.view(name, sql=sql) for name, sql in SHAPES.items()}
        for view in views.values():
            view.refresh()
        refreshed: dict[str, list[float]] = {name: [] for name in views}
        whole: dict[str, list[float]] = {name: [] for name in views}
        for number in range(args.repeats + 1):  # the first round only warms up
            _change(lake, args.rows, number)
            _copy(lake, session, root / "plain")
            for name, view in views.items():
                times = seconds(view.refresh), _by_spark(session, name, root / "result")
                refreshed[name] += times[:1] if number else []
                whole[name] += times[1:] if number else []
        _check(lake, views)
    figures = [_figure(name, median(refreshed[name]), median(whole[name]), views[name]) for name in views]
    mean = math.exp(sum(math.log(median(refreshed[n]) / median(whole[n])) for n in views) / len(views))
    parts = sum(1 for view in views.values() if view.refresh_kind != "whole")
    worst = max(figures, key=lambda figure: figure.value)
    return [
        Figure("worst", f"the slowest: {worst.name}", worst.value, worst.detail),
        Figure("parts", "shapes that are refreshed in parts", parts, f"of {len(views)}"),
        Figure("mean", f"refresh after {CHANGED:,} of {args.rows:,} rows changed ÷ Spark, geometric mean", mean, ""),
        *figures,
    ]


def _figure(name: str, took: float, spark: float, view: View) -> Figure:
    bound = max(LEAST_SECONDS, spark * SPARK_FRACTION)
    said = f"{took * 1000:.0f} ms; Spark {spark:.2f} s; {view.refresh_kind}"
    return Figure(name, f"{name}: refresh ÷ the larger of 1/15 of Spark and 200 ms", took / bound, said)


def _load(lake: fm.Lake, rows: int) -> None:
    lake.create("sales", key="id").write(_sales(np.arange(rows), rows, 0))
    lake.create("returns", key="id").write(_sales(np.arange(rows // 100), rows, 1).select(["id", "amount"]))
    products = np.arange(PRODUCTS)
    lake.create("products", key="product").write(pa.table({"product": products, "category": products % 20}))
    stores = np.arange(STORES)
    cities = pa.array([f"city{n % 30}" for n in stores])
    lake.create("stores", key="store").write(pa.table({"store": stores, "city": cities}))


def _sales(ids: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    number = len(ids)
    cents = pa.array(rng.integers(1, 100_000, number)).cast(pa.decimal128(19, 0))
    tags = pa.array([f"tag{n}" for n in range(50)]).take(pa.array(rng.integers(0, 50, 2 * number)))
    return pa.table(
        {
            "id": ids,
            "customer": rng.integers(0, max(1, rows // ROWS_PER_CUSTOMER), number),
            "product": rng.integers(0, PRODUCTS, number),
            "store": rng.integers(0, STORES, number),
            "at": rng.integers(0, 10**9, number),
            "amount": pc.multiply(cents, pa.scalar(1, pa.decimal128(3, 2))).cast(pa.decimal128(12, 2)),
            "price": rng.random(number),
            "tags": pa.ListArray.from_arrays(np.arange(0, 2 * number + 1, 2, dtype=np.int32), tags),
        }
    )


def _change(lake: fm.Lake, rows: int, seed: int) -> None:
    """Nine of ten changed rows get other values, the others are new."""
    rng = np.random.default_rng(1000 + seed)
    some = rng.choice(rows, CHANGED * 9 // 10, replace=False)
    new = rows + seed * CHANGED + np.arange(CHANGED // 10)
    lake["sales"].write(_sales(np.concatenate([some, new]), rows, 2000 + seed))


def _copy(lake: fm.Lake, session: Session, folder: Path) -> None:
    spark = session.get()
    for name in ("sales", "returns", "products", "stores"):
        lake[name].read().write.mode("overwrite").parquet(str(folder / name))
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)


def _by_spark(session: Session, name: str, folder: Path) -> float:
    frame = session.get().sql(SHAPES[name])
    return seconds(lambda: frame.write.mode("overwrite").parquet(str(folder / name)))


def _check(lake: fm.Lake, views: Mapping[str, View]) -> None:
    for name, view in views.items():
        expected = lake.sql_spark(SHAPES[name]).toArrow()
        assert view.to_arrow().num_rows == expected.num_rows, name
        if name != "doubles":  # their last digits depend on the order of the rows
            found, right = (sorted(map(repr, table.to_pylist())) for table in (view.to_arrow(), expected))
            assert found == right, name


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, repeats=3)
