"""A market: files of orders and goods, orders with their price, the tax on each, and totals by item."""

import time

import amounts
import gate
import pyarrow as pa
import pyarrow.compute as pc

from floodmark import BatchTransform, DatasetSpec, Pipeline, Required, Source

HELD = 334  # the order whose price waits at the gate; it is not among the first 200 that are committed

orders = DatasetSpec("orders", key="id")
goods = DatasetSpec("goods", key="item")
priced = DatasetSpec("priced", key=["id", "item"])


def price(orders: pa.Table, goods: pa.Table) -> pa.Table:
    """A slow join: what each order costs."""
    if HELD in orders["id"].to_pylist():
        gate.wait()
    time.sleep(0.02)
    both = orders.join(goods, "item", join_type="inner")
    return pa.table({"id": both["id"], "item": both["item"], "cents": pc.multiply(both["pieces"], both["cents"])})


pipeline = Pipeline(
    [
        Source(orders, files="data/orders-*.csv"),
        Source(goods, files="data/goods-*.csv"),
        BatchTransform(
            price, [orders, Required(goods)], [priced], transform_keys=["id", "item"], chunk_size=20, commit_every=200
        ),
    ]
)


@pipeline.column(priced, returns="int64")
def tax(cents: int) -> int:
    """Computed beside the rows of `priced`."""
    return amounts.tax_of(cents)


@pipeline.view()
def totals() -> str:
    """Refreshed by Spark."""
    return "select item, count(*) as orders, sum(cents) as cents, sum(tax) as tax from priced group by item"
