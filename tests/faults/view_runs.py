"""Processes that refresh views and one that reads them, to be killed and raced.

All rows of the source are of one generation, each write brings the next, and so all rows of every view must be of one
generation at any instant.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from columns.counting import Calls
from columns.worlds import TENFOLD
from faults.mortal import MortalFileSystem
from floodmark.engine.session import ArchiveUse, Session
from floodmark.engine.spark_launch import Profile
from floodmark.storage.file_system import OsFileSystem
from floodmark.storage.local import LocalStore

ROWS = 60
GROUPS = 5
SETTINGS = {"spark.master": "local[2,3]", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
VIEWS = {
    "by_row": "select id, v from flights where v >= 0",
    "by_group": "select g, min(v) as v, max(v) as most, count(*) as n from flights group by g",
    "by_partner": "select f.id, f.g, f.v, w.t from flights f join weather w on f.g = w.g",
    "at_once": "select count(*) as n, min(v) as v, max(v) as most from flights",
}
TURNS = (  # of even and of odd generations: each is made anew
    "select id, min(v) as v, max(v) as most from flights group by id",
    "select g, min(v) as v, max(v) as most from flights group by g",
)
COUNTS = {"by_row": ROWS, "by_group": GROUPS, "by_partner": ROWS, "at_once": 1, "by_call": ROWS, "by_turns": 0}


def open_lake(folder: Path, session: Session | None = None) -> fm.Lake:
    runtime = None if session is None else fm.Runtime(session=session, checkpoint_seconds=0.001)
    return fm.Lake(folder / "lake", runtime=runtime)


def generation(lake: fm.Lake, number: int) -> None:
    """All rows at once become those of a generation."""
    ids = range(ROWS)
    table = {"id": pa.array(ids), "g": [f"g{i % GROUPS}" for i in ids], "v": pa.array([number] * ROWS, pa.int64())}
    lake["flights"].write(pa.table(table))


def make(folder: Path, session: Session) -> fm.Lake:
    """The lake with its first generation, and the views refreshed."""
    lake = open_lake(folder, session)
    lake.create("flights", key="id")
    lake.create("weather", key="g")
    lake["weather"].write(pa.table({"g": [f"g{i}" for i in range(GROUPS)], "t": pa.array(range(GROUPS))}))
    generation(lake, 1)
    for name, sql in VIEWS.items():
        lake.view(name, sql=sql)
    udf = TENFOLD.udf(Calls(folder))
    lake.view("by_call", source="flights", select={"id": "id", "v": "v", "w": udf})
    refresh_all(lake, folder)
    return lake


def refresh_all(lake: fm.Lake, folder: Path) -> dict[str, Any]:
    udf = TENFOLD.udf(Calls(folder))
    lake.view("by_turns", sql=TURNS[lake["flights"].to_arrow()["v"][0].as_py() % 2])
    reports = {name: lake.view(name).refresh(udfs=[udf]) for name in COUNTS}
    return {name: {"nothing": report.nothing} for name, report in reports.items()}


def problem(name: str, table: pa.Table) -> str | None:
    """What is wrong with what a view shows, if anything: it is of one generation and has all its rows."""
    found = sorted(set(table["v"].to_pylist()))
    if "most" in table.column_names:
        found = sorted({*found, *table["most"].to_pylist()})
    if "w" in table.column_names:
        found = sorted({*found, *(w // 10 for w in table["w"].to_pylist())})
    wanted = COUNTS[name] if name != "by_turns" else (ROWS, GROUPS)[found[0] % 2 if found else 0]
    if len(found) == 1 and table.num_rows == wanted:
        return None
    return f"{name} has {table.num_rows} rows of the generations {found}"


# The two processes


def refresh(folder: Path, orders: Connection) -> None:
    """Refresh the views once for each order: before which change of the disk to be killed."""
    with Session(settings=SETTINGS, profile=Profile.SHORT, archive=ArchiveUse.USE) as session:
        session.get().range(1).count()
        orders.send("ready")
        while True:
            runtime = fm.Runtime(session=session, checkpoint_seconds=0.001)
            lake = fm.Lake(LocalStore(folder / "lake", MortalAtHome(orders.recv())), runtime=runtime)
            orders.send(refresh_all(lake, folder))


class MortalAtHome(MortalFileSystem):
    """Kills this process; in those of Spark, which know no tests, it is an ordinary file system."""

    def __reduce__(self) -> tuple[Any, ...]:
        return OsFileSystem, ()


def read(folder: Path, orders: Connection) -> None:
    """Look until an order comes, and once more; generations only grow, also through another object."""
    looks, latest, problems = 0, dict.fromkeys(COUNTS, 0), []
    kept = open_lake(folder)
    is_last = False
    while not is_last and not problems:
        is_last = orders.poll(0.02)
        lake = kept if looks % 2 else open_lake(folder)
        for name in COUNTS:
            table = lake[name].to_arrow()
            if found := problem(name, table):
                problems.append(found)
            elif table["v"][0].as_py() < latest[name]:
                problems.append(f"{name} went back from {latest[name]} to {table['v'][0].as_py()}")
            else:
                latest[name] = table["v"][0].as_py()
        looks += 1
    orders.send({"latest": latest, "problems": problems})
