"""The 22 queries of TPC-H as views after one in a thousand orders has changed, against Spark over all rows.

Run: python bench/tpch_refresh.py --orders 15000000    # scale 10
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

import floodmark as fm
import tpch
from floodmark.engine.session import Session
from floodmark.view import View
from measuring import Figure, measured, seconds

ORDERS_PER_SCALE = 1_500_000
SHARE = 0.001


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    with Session() as session:
        files = tpch.generate(root / "tables", args.orders / ORDERS_PER_SCALE)
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        tpch.load(lake, files)
        views = {name: lake.view(name, sql=sql) for name, sql in tpch.QUERIES.items()}
        plain = _Plain(session, root / "plain")
        plain.copy(lake)
        whole = {name: plain.time(name) for name in views}  # the first time of each only warms up
        whole = {name: plain.time(name) for name in views}
        first = {name: seconds(view.refresh) for name, view in views.items()}
        refreshed, all_rows = _rounds(lake, views, plain, args.repeats)
        _check(lake, views)
    ratios = {name: refreshed[name] / all_rows[name] for name in views}
    parts = sum(1 for view in views.values() if view.refresh_kind != "whole")
    shape = f"refresh after {SHARE:.1%} of {args.orders:,} orders changed ÷ Spark over all rows and writing it"
    scale = "ten" if args.orders >= 10 * ORDERS_PER_SCALE else "one"  # each has bars of its own
    slowest = max(ratios, key=ratios.__getitem__)
    return [
        Figure("parts", "queries that are refreshed in parts", parts, "of 22"),
        Figure(f"mean.{scale}", f"{shape}, geometric mean", _mean(ratios), _shown(refreshed, all_rows)),
        Figure(f"worst.{scale}", f"{shape}, slowest", ratios[slowest], slowest),
        Figure("first", "first refresh ÷ Spark, geometric mean", _mean({n: first[n] / whole[n] for n in views}), ""),
    ]


def _rounds(
    lake: fm.Lake, views: Mapping[str, View], plain: _Plain, repeats: int
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The median times of a refresh and of Spark; the first round only warms up."""
    refreshed: dict[str, list[float]] = {name: [] for name in views}
    whole: dict[str, list[float]] = {name: [] for name in views}
    for number in range(repeats + 1):
        tpch.change_orders(lake, number, SHARE)
        plain.copy(lake, ["orders", "lineitem"])
        for name, view in views.items():
            times = seconds(view.refresh), plain.time(name)
            if number:
                refreshed[name].append(times[0])
                whole[name].append(times[1])
    return {n: median(t) for n, t in refreshed.items()}, {n: median(t) for n, t in whole.items()}


class _Plain:
    """The same rows in plain Parquet files, and the queries over them by Spark alone."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._folder = folder

    def copy(self, lake: fm.Lake, tables: Sequence[str] = tuple(tpch.KEYS)) -> None:
        spark = self._session.get()
        for table in tables:
            lake[table].read().write.mode("overwrite").parquet(str(self._folder / table))
        for table in tpch.KEYS:
            spark.read.parquet(str(self._folder / table)).createOrReplaceTempView(table)

    def time(self, name: str) -> float:
        spark = self._session.get()
        target = str(self._folder / f"result-{name}")
        return seconds(lambda: spark.sql(tpch.QUERIES[name]).write.mode("overwrite").parquet(target))


def _check(lake: fm.Lake, views: Mapping[str, View]) -> None:
    for name, view in views.items():
        found, right = (sorted(map(repr, t.to_pylist())) for t in (view.to_arrow(), _from_scratch(lake, name)))
        assert found == right, name


def _from_scratch(lake: fm.Lake, name: str) -> pa.Table:
    return lake.sql_spark(tpch.QUERIES[name]).toArrow()


def _mean(ratios: Mapping[str, float]) -> float:
    return math.exp(sum(map(math.log, ratios.values())) / len(ratios))


def _shown(refreshed: Mapping[str, float], whole: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {refreshed[name]:.2f} ÷ {whole[name]:.2f} s" for name in refreshed)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, orders=ORDERS_PER_SCALE, repeats=3)
