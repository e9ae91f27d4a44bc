"""Refresh views after a few of many rows changed, against their first refresh and plain Spark.

Run: python bench/view_refresh.py --rows 10000000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.engine.session import Session
from floodmark.view import View
from measuring import Curve, Figure, Growth, measured, seconds, without_spark
from trips import ROWS_PER_FILE, trips

CHANGED = 1_000
NEW = 100
MOVED = 100
"""Among the changed rows: the number of new rows, and of rows that move to another driver."""
ROWS_PER_DRIVER = 100
WARM_UP_ROWS = 100_000

SCORES = "select id, driver, fare / (distance + 1.0) per_km, upper(payment) payment from {} where passengers > 0"
TOTALS = (
    "select driver, count(*) trips, sum(fare) fares, max(distance) longest, avg(passengers) passengers"
    " from {} group by driver"
)
NOTHING_TO_DO = """
import json, sys, time
import floodmark as fm
lake = fm.Lake(sys.argv[1])
began = time.perf_counter()
views = [lake.view("scores"), lake.view("totals")]
done = [view.refresh() for view in views]
seconds = time.perf_counter() - began
assert all(d.nothing for d in done), done
print(json.dumps({"seconds": seconds, "spark": "pyspark" in sys.modules}))
"""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    title = f"Refreshing views after {CHANGED:,} rows have changed"
    growth = Growth("view_refresh", title, "rows", "seconds", x_scale="log", y_scale="log")
    with Session() as session:
        _warm_up(root / "warm", session)
        for rows_there in (args.rows // 10, args.rows):
            world = World.make(root / f"world{rows_there}", rows_there, session)
            first, rows, spark, groups = _times(world, args.repeats)
            growth.add("row-wise view", rows_there, rows)
            growth.add("its first refresh", rows_there, first)
            growth.add("grouped view", rows_there, groups)
            growth.add("Spark SQL over all rows and writing it", rows_there, spark)
        nothing = without_spark(NOTHING_TO_DO, root / f"world{args.rows}" / "lake", args.repeats)
    shape = f"{CHANGED:,} of {args.rows:,} rows changed"
    return [
        Figure(
            "rows",
            f"row-wise view, {shape} ÷ its first refresh",
            rows / first,
            f"{rows * 1000:.0f} ms ÷ {first:.1f} s = 1/{first / rows:.0f}",
        ),
        Figure(
            "groups",
            f"grouped view, {shape} ÷ Spark SQL over all rows and writing it",
            groups / spark,
            f"{groups * 1000:.0f} ms ÷ {spark:.2f} s; {_drivers(args.rows):,} groups",
        ),
        Figure(
            "nothing", "nothing to do, both views: seconds beyond importing", nothing, "no Spark; a separate process"
        ),
        growth.curve(),
    ]


def _times(world: World, repeats: int) -> list[float]:
    """The median times of a first refresh, a row-wise refresh, Spark's aggregation and a grouped refresh."""
    for view in world.views.values():
        view.refresh()
    durations: dict[str, list[float]] = {"first": [], "scores": [], "spark": [], "totals": []}
    for number in range(repeats + 1):
        drivers = world.change(seed=number)
        times: dict[str, Callable[[], float]] = {
            "first": world.first_refresh,
            "scores": partial(world.refresh, "scores"),
            "spark": world.aggregate,
            "totals": partial(world.refresh, "totals", drivers),
        }
        for what in sorted(times, reverse=bool(number % 2)):  # in turns; the first round only warms up
            took = times[what]()
            durations[what] += [took] if number else []
    world.check()
    return [median(durations[name]) for name in ("first", "scores", "spark", "totals")]


@dataclass(frozen=True)
class World:
    """Trips with random drivers, two views of them, and the same rows in plain files."""

    lake: fm.Lake
    views: Mapping[str, View]
    session: Session
    rows: int
    plain: str

    @staticmethod
    def make(path: Path, rows: int, session: Session) -> World:
        lake = fm.Lake(path / "lake", runtime=fm.Runtime(session=session, fold_at=None))
        lake.create("trips", key="id", event_time="pickup_at").write(_write_files(path / "in", rows))
        queries = {"scores": SCORES, "totals": TOTALS}
        views = {name: lake.view(name, sql=query.format("trips")) for name, query in queries.items()}
        lake["trips"].read().write.parquet(str(path / "plain"))
        return World(lake, views, session, rows, str(path / "plain"))

    def change(self, seed: int) -> int:
        """Change fares and drivers of random trips, and add trips; returns the number of affected drivers."""
        rng = np.random.default_rng(seed)
        trips_now = self.lake["trips"]
        old = trips_now.get(pa.table({"id": rng.choice(self.rows, CHANGED - NEW, replace=False)}))
        drivers = old.column("driver").to_numpy()
        moved = (drivers + np.where(np.arange(len(drivers)) < MOVED, 1, 0)) % _drivers(self.rows)
        at = old.schema.get_field_index
        fares = pa.compute.add(old.column("fare"), 1.0)
        other = old.set_column(at("fare"), "fare", fares).set_column(at("driver"), "driver", pa.array(moved))
        new = _driven(self.rows + seed * NEW, NEW, self.rows).select(old.column_names).cast(old.schema)
        assert trips_now.write(pa.concat_tables([other, new])).changed == len(old)
        return len(np.unique(np.concatenate([drivers, moved, new.column("driver").to_numpy()])))

    def refresh(self, name: str, keys: int = CHANGED) -> float:
        done: list[fm.RefreshReport] = []
        took = seconds(lambda: done.append(self.views[name].refresh()))
        assert not done[0].is_whole, done
        assert done[0].keys == keys, done
        return took

    def first_refresh(self) -> float:
        """The time of the first refresh of a new row-wise view."""
        view = self.lake.view("scores_again", sql=SCORES.format("trips"))
        took = seconds(view.refresh)
        self.lake.drop("scores_again")
        return took

    def aggregate(self) -> float:
        """The time of the grouped view in plain Spark: over all rows, written as Parquet."""
        spark = self.session.get()

        def make() -> None:
            spark.read.parquet(self.plain).createOrReplaceTempView("plain_trips")
            spark.sql(TOTALS.format("plain_trips")).write.mode("overwrite").parquet(f"{self.plain}-totals")

        return seconds(make)

    def check(self) -> None:
        """Check both views against Spark SQL over the current trips."""
        spark = self.session.get()
        self.lake["trips"].read().createOrReplaceTempView("trips_now")
        for name, query, key in (("scores", SCORES, "id"), ("totals", TOTALS, "driver")):
            rows = self.lake[name].to_arrow().sort_by(key)
            expected = spark.sql(query.format("trips_now")).toArrow().sort_by(key)
            assert rows.column_names == expected.column_names, (rows.schema, expected.schema)
            for column, values in zip(rows.column_names, expected.columns, strict=True):
                if pa.types.is_floating(values.type):  # a sum depends on the order of its rows
                    assert np.allclose(rows.column(column).to_numpy(), values.to_numpy(), rtol=1e-12), column
                else:
                    assert rows.column(column).combine_chunks().equals(values.combine_chunks()), column


def _warm_up(path: Path, session: Session) -> None:
    """Do the same on a few rows, so that no measured refresh is the JVM's first work."""
    world = World.make(path, WARM_UP_ROWS, session)
    for view in world.views.values():
        view.refresh()
    drivers = world.change(seed=0)
    world.refresh("scores")
    world.refresh("totals", drivers)
    world.aggregate()


def _drivers(rows: int) -> int:
    return max(rows // ROWS_PER_DRIVER, 1)


def _driven(start: int, rows: int, of: int) -> pa.Table:
    """Trips with random drivers: no row order puts the trips of one driver together."""
    drivers = np.random.default_rng(start + 1).integers(0, _drivers(of), rows)
    return trips(start, rows).append_column("driver", pa.array(drivers))


def _write_files(folder: Path, rows: int) -> list[Path]:
    folder.mkdir(parents=True)
    paths = []
    for start in range(0, rows, ROWS_PER_FILE):
        paths.append(folder / f"trips-{start:012d}.parquet")
        pq.write_table(_driven(start, min(ROWS_PER_FILE, rows - start), rows), paths[-1])
    return paths


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, repeats=5)
