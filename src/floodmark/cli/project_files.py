"""The files of a new project: small enough to read, and each line of them works."""

from __future__ import annotations

_TOML = """\
lake = "lake"
pipeline = "pipeline.py"

[defaults]
workers = 4                 # steps that run at a time

# [spark]                   # settings of the Spark session, for large work and for views
# "spark.master" = "local[4]"
"""

_PIPELINE = '''\
"""Sales of a few shops: files come in, prices are converted, and totals are kept up to date."""

import pyarrow as pa
import pyarrow.compute as pc

from floodmark import Dataset, Pipeline, Source

RATES = {"EUR": 1.0, "NOK": 0.085, "USD": 0.92}

sales = Dataset("sales", key="id", event_time="at")
in_euros = Dataset("in_euros", key="id")
totals = Dataset("totals", key="shop")

pipeline = Pipeline([sales, Source(sales, files="data/*.csv")])


@pipeline.transform(inputs=[sales], outputs=[in_euros])
def convert(sales: pa.Table) -> pa.Table:
    """Called with the sales that are new or changed, and with no others."""
    rates = pa.array([RATES[currency] for currency in sales["currency"].to_pylist()], pa.float64())
    return pa.table({"id": sales["id"], "shop": sales["shop"], "euros": pc.multiply(sales["price"], rates)})


@pipeline.table(inputs=[in_euros], outputs=[totals])
def total(sales: pa.Table) -> pa.Table:
    """Called with all sales, when there are new ones; only totals that differ are written."""
    grouped = sales.group_by("shop").aggregate([("euros", "sum"), ("euros", "count")])
    return pa.table(
        {
            "shop": grouped["shop"],
            "euros": pc.round(grouped["euros_sum"], 2),
            "sales": grouped["euros_count"],
        }
    )


@pipeline.column(sales, returns="string")
def size(price: float) -> str:
    """A column beside the rows of `sales`: computed once for each."""
    return "large" if price >= 100 else "small"


# A view is a query that is kept up to date. It is refreshed by Spark, which needs Java:
#
# @pipeline.view()
# def by_currency():
#     return "select currency, count(*) as sales from sales group by currency"
'''

_JANUARY = """\
id,at,shop,currency,price
1,2026-01-05T09:10:00Z,Oslo,NOK,249.0
2,2026-01-05T11:45:00Z,Rome,EUR,18.5
3,2026-01-06T14:20:00Z,Oslo,NOK,89.0
4,2026-01-08T16:05:00Z,Boston,USD,120.0
"""

_FEBRUARY = """\
id,at,shop,currency,price
5,2026-02-02T10:00:00Z,Rome,EUR,42.0
6,2026-02-03T12:30:00Z,Boston,USD,15.0
2,2026-01-05T11:45:00Z,Rome,EUR,19.5
"""

_README = """\
# {name}

```
floodmark run            # take in data/*.csv, convert, total, compute the column
floodmark run            # nothing to do
floodmark status         # how far everything is
floodmark graph          # who reads what
floodmark sql "select * from totals order by shop"
```

Put another file into `data/`, or change a line of one, and run again: only what changed is processed. Change `RATES` in
`pipeline.py`, and every sale is converted once more. `floodmark run --watch` goes on as files come.

`floodmark.toml` says where the lake is; `floodmark init` makes an empty one where this folder is copied to.
"""

FILES = {
    "floodmark.toml": _TOML,
    "pipeline.py": _PIPELINE,
    "data/2026-01.csv": _JANUARY,
    "data/2026-02.csv": _FEBRUARY,
    "README.md": _README,
    ".gitignore": "lake/\n__pycache__/\n",
}
