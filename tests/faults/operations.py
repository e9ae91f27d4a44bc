"""Every operation that changes a lake, each small and repeatable: for tests that disturb it at each of its calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import floodmark as fm
from floodmark.dataset import Dataset
from floodmark.errors import CodeLocation
from floodmark.maintenance.gc import FailedCollection, collect_garbage
from floodmark.sources.files import IngestFiles
from transforms.worlds import MAP, TWO_OUTPUTS, Calls, Case, World
from views import refresh_worlds

VIEW = "select g, count(*) as n, sum(v) as s from k group by g"
CARRIED = "select k.g, a.v from k join k a on k.v = a.v union all select g, v from k"
START = datetime(2026, 3, 1, tzinfo=UTC)
MONTH = 31 * 86_400.0


@dataclass(frozen=True)
class Place:
    """A lake, and a folder for files outside it."""

    lake: fm.Lake
    folder: Path


Act = Callable[[Place], object]


@dataclass(frozen=True)
class Operation:
    """What is done to a lake, after others that happened long ago. Doing it again must lead to the same end.

    `ages`: what was prepared is older than the grace period. `spark`: it needs a JVM. `once`: if it is said to have
    failed, it must not have happened, because a user would do it again.
    """

    name: str
    prepare: tuple[Act, ...]
    run: Act
    ages: bool = False
    spark: bool = False
    once: bool = False

    def __str__(self) -> str:
        return self.name


# What readers see

Seen = dict[str, Any]


def look(lake: fm.Lake) -> Seen:
    """Everything that readers of a lake see, dataset by dataset."""
    return {dataset.name: _shown(dataset) for dataset in lake}


def _shown(dataset: Dataset) -> Any:
    if dataset.schema is None:
        return None
    rows = dataset.to_arrow()
    assert dataset.count() == rows.num_rows
    system = dataset.system_columns
    records = dataset.changes_arrow(since=dataset.snapshot().purged_before - 1 or None)
    kept = [name for name in records.column_names if name != system[2]]
    found = [rows.column_names, _texts(rows), _texts(records.select(kept))]
    if "times" in dataset.name:
        found.append([row for batch in dataset.timeline_batches() for row in batch.to_pylist()])
    return found


def _texts(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def problems(lake: fm.Lake) -> list[str]:
    """What verify says of every dataset."""
    return [f"{dataset.name}: {problem}" for dataset in lake for problem in dataset.verify().problems]


# Steps


def keyed(place: Place) -> None:
    dataset = place.lake.create("k", key="id")
    dataset.write(_rows((1, "a", 1), (2, "b", 2), (3, "a", 3)))
    dataset.write(_rows((2, "b", 20), (4, "c", 4)))


def more(place: Place) -> None:
    place.lake["k"].write(_rows((1, "c", 10), (5, "b", 5), (4, "c", 4)))


def emptied(place: Place) -> None:
    place.lake["k"].delete([3])


def appended(place: Place) -> None:
    log = place.lake.create("log", event_time="at")
    log.write(_events(1, 2))
    log.write(_events(3))


def append(place: Place) -> None:
    place.lake["log"].write(_events(4, 5), source="kafka", state="7")


def create(place: Place) -> None:
    place.lake.create("z", key="id", schema={"id": "int64", "v": "string"}, exist_ok=True)


def drop(place: Place) -> None:
    if "k" in place.lake:
        place.lake.drop("k")


def rename(place: Place) -> None:
    if "k" in place.lake:
        place.lake.rename("k", "z")


def purge(place: Place) -> None:
    place.lake["k"].purge(before=3)


def purge_log(place: Place) -> None:
    place.lake["log"].purge(before=2)


def erase(place: Place) -> None:
    place.lake.erase("k", [2])


def fold(place: Place) -> None:
    place.lake["k"].fold()


def evolve(place: Place) -> None:
    if "note" not in place.lake["log"].snapshot().require_layout("log").data.names:
        place.lake["log"].evolve({"note": "string"})


def advance(place: Place) -> None:
    place.lake["log"].advance_watermark(START + timedelta(days=3))


@fm.udf(returns="int64", version="1", max_checkpoint_size=2)
def tenfold(v: int) -> int:
    return v * 10


def add_column(place: Place) -> None:
    place.lake["k"].add_column("w", tenfold, fragment_rows=4, exist_ok=True)


def backfill(place: Place) -> None:
    place.lake["k"].backfill("w", udf=tenfold)


def drop_column(place: Place) -> None:
    dataset = place.lake["k"]
    if any(column.name == "w" for column in dataset.columns()):
        dataset.drop_column("w")


def _world(place: Place, case: Case) -> World:
    return World(case, place.lake, Calls(place.folder))


def of_step(place: Place) -> None:
    MAP.create(place.lake)
    _world(place, MAP).write("a", (1, 1), (2, 2), (3, 3))


def run(place: Place) -> None:
    MAP.step(Calls(place.folder)).run(place.lake)


def run_of_two(place: Place) -> None:
    TWO_OUTPUTS.step(Calls(place.folder)).run(place.lake)


def changed(place: Place) -> None:
    world = _world(place, MAP)
    world.write("a", (2, 7), (4, 4))
    world.delete("a", 3)


def reset(place: Place) -> None:
    MAP.step(Calls(place.folder)).reset(place.lake)


def timed(place: Place) -> None:
    times = place.lake.create("times", event_time="at", partition_by="day", row_group_size=4)
    times.write(_events(*range(0, 24, 2)))


def late(place: Place) -> None:
    place.lake["times"].write(_events(3, 7, 30), source="kafka", state="8")


def fold_timeline(place: Place) -> None:
    place.lake["times"].fold()


def files(place: Place) -> None:
    (place.folder / "pipeline.py").touch()
    for name, text in (("one", "1,10\n2,20\n"), ("two", "2,30\n3,40\n")):
        (place.folder / f"{name}.csv").write_text("id,price\n" + text)


def ingest(place: Place) -> None:
    at = CodeLocation(str(place.folder / "pipeline.py"), 1)
    IngestFiles("in", "orders", ["*.csv"], None, None, fm.DatasetSpec("orders", key="id"), at).run(place.lake)


def view(place: Place) -> None:
    place.lake.view("v", sql=VIEW)


def view_carried(place: Place) -> None:
    assert place.lake.view("v", sql=CARRIED).refresh_kind == "changes"


def refresh(place: Place) -> None:
    place.lake.view("v").refresh()


def viewed(place: Place) -> None:
    """A view whose query a few lines of Arrow answer instead of Spark."""
    source = refresh_worlds.orders(place.lake)
    refresh_worlds.write(source, {1: 5, 2: 20, 3: 30})
    refresh_worlds.view_of(place.lake, source)


def sold(place: Place) -> None:
    refresh_worlds.write(place.lake["orders"], {2: 1, 4: 40})


def refresh_answered(place: Place) -> None:
    [name] = [dataset.name for dataset in place.lake if dataset.name != "orders"]
    with refresh_worlds.Answers().instead_of_spark():
        place.lake.view(name).refresh()


def strays(place: Place) -> None:
    """Objects that nothing uses: of lost commits, of stopped runs, and of an index that was replaced."""
    store, [folder] = (
        place.lake.store,
        {info.key.rsplit("/", 2)[0] for info in place.lake.store.list("datasets") if info.key.endswith("/refs/head")},
    )
    for key in ("data/f16200", "blocks/f16200", "info/keys/files/old", "info/columns/files/old"):
        store.put_if_absent(f"{folder}/{key}", b"left by a crash")


def collect(place: Place) -> None:
    failed = [found for found in collect_garbage(place.lake) if isinstance(found, FailedCollection)]
    if failed:
        raise fm.FloodmarkError(failed[0].error, hint=failed[0].hint)


def lagging(place: Place) -> None:
    """Lose the key index, as a crash may."""
    for info in list(place.lake.store.list("datasets")):
        if "/info/keys/" in info.key:
            place.lake.store.delete(info.key)


def read(place: Place) -> None:
    assert place.lake["k"].get([1, 2]).num_rows == 2


def _rows(*rows: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("id", "g", "v"), row, strict=True)) for row in rows])


def _events(*hours: int) -> pa.Table:
    at = pa.array([START + timedelta(hours=hour) for hour in hours], pa.timestamp("us", "UTC"))
    return pa.table({"n": pa.array(hours, pa.int64()), "at": at})


OPERATIONS = [
    Operation("create", (), create, once=True),
    Operation("append", (appended,), append, once=True),
    Operation("upsert", (keyed,), more, once=True),
    Operation("delete", (keyed,), emptied, once=True),
    Operation("fold", (keyed, more, emptied), fold),
    Operation("purge", (appended,), purge_log),
    Operation("purge keyed", (keyed, more), purge),
    Operation("erase", (keyed, more), erase),
    Operation("drop", (keyed,), drop),
    Operation("rename", (keyed,), rename),
    Operation("evolve", (appended,), evolve, once=True),
    Operation("watermark", (appended,), advance, once=True),
    Operation("add column", (keyed,), add_column, once=True),
    Operation("backfill", (keyed, add_column), backfill),
    Operation("backfill more", (keyed, add_column, backfill, more), backfill),
    Operation("drop column", (keyed, add_column, backfill), drop_column),
    Operation("first run", (of_step,), run),
    Operation("run", (of_step, run, changed), run),
    Operation("run of two outputs", (of_step,), run_of_two),
    Operation("reset", (of_step, run), reset),
    Operation("timeline", (timed,), late, once=True),
    Operation("timeline fold", (timed, late), fold_timeline),
    Operation("ingest", (files,), ingest),
    Operation("gc", (keyed, more, strays), collect, ages=True),
    Operation("read without an index", (keyed, lagging), read),
    Operation("first refresh", (viewed,), refresh_answered),
    Operation("refresh", (viewed, refresh_answered, sold), refresh_answered),
    Operation("declare", (keyed,), view, spark=True),
    Operation("refresh by Spark", (keyed, view, refresh, more), refresh, spark=True),
    Operation("refresh by changes", (keyed, view_carried, refresh, more), refresh, spark=True),
]
