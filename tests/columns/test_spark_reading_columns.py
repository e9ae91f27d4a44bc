"""Spark shows computed columns as Arrow does, and reads records by itself where a query cannot mean them."""

from __future__ import annotations

from datetime import time

import pyarrow as pa
import pytest

import floodmark as fm
from columns.column_worlds import ROWS, definition
from columns.reading_worlds import damage, fill_half, put, shown
from floodmark.columns import definition as define
from floodmark.columns.catalog import ColumnObjects
from floodmark.engine.session import Session
from limits import set_limit
from rows.current_worlds import lived_in, people, replayed

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path, spark):
    return fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=Session(spark), fold_at=None))


@pytest.fixture
def dataset(lake):
    made = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=5, writes=5)
    fill_half(made)
    return made


@pytest.fixture(params=["few tasks", "many tasks"])
def way(request, monkeypatch):
    if request.param == "many tasks":
        set_limit(monkeypatch, "spark_read.least_bytes", 1)
        set_limit(monkeypatch, "spark_read.task_bytes", 1500)
        set_limit(monkeypatch, "spark_read.row_group_rows", 7)


def collected(frame):
    return [row.asDict() for row in frame.collect()]


def by_python(frame) -> bool:
    return "MapInArrow" in frame._jdf.queryExecution().toString()


def test_computed_columns_are_read_with_the_rest(dataset, way):
    for _ in range(2):
        rows = shown(dataset)
        assert collected(dataset.read()) == rows
        assert collected(dataset.read(as_of=50)) == shown(dataset, 51)
        assert collected(dataset.read(columns=["w"])) == [{"w": r["w"]} for r in rows]
        system = dataset.read(system=True)
        assert system.columns == ["offset", "op", "system_time", "id", "v", "w"]
        assert [r["offset"] for r in collected(system)] == sorted(r["offset"] for r in replayed(dataset).values())
        assert dataset.read(columns=["w", "id"], system=True).columns == ["offset", "op", "system_time", "w", "id"]
        assert dataset.changes().columns == ["offset", "op", "system_time", "id", "v"]
        dataset.fold()
        dataset.delete([2, 4])


def test_records_alone_are_read_by_spark_itself(dataset):
    frame = dataset.read(columns=["v", "id"])
    assert not by_python(frame)
    assert frame.columns == ["v", "id"]
    assert sorted(r["id"] for r in frame.collect()) == sorted(r["id"] for r in shown(dataset))
    assert by_python(dataset.read())


def test_query_reads_computed_columns_only_when_it_can_mean_them(lake, dataset):
    rows = shown(dataset)
    there = [r["w"] for r in rows if r["w"] is not None]
    alone = lake.sql_spark("select count(*) c, sum(id) s from p")
    assert not by_python(alone)
    assert collected(alone) == [{"c": len(rows), "s": sum(r["id"] for r in rows)}]
    assert collected(lake.sql_spark("select sum(W) s, count(w) n from p")) == [{"s": sum(there), "n": len(there)}]
    assert lake.sql_spark("select * from p").columns == ["id", "v", "w"]
    assert lake.sql_spark("from p |> limit 1").columns == ["id", "v", "w"]  # which only Spark can parse


def test_times_of_day_are_shown(lake):
    dataset = lake.create("t")
    dataset.write(pa.table({"n": [1, 2, 3]}))
    objects = ColumnObjects(dataset.snapshot().objects)
    define.add(objects, definition("at", inputs=("n",), data_type=pa.time64("us")), ("n",), ROWS)
    put(objects, "at", {0: [time(1, 2, 3), time(23)]}, set())
    rows = [{"n": 1, "at": time(1, 2, 3)}, {"n": 2, "at": time(23)}, {"n": 3, "at": None}]
    assert collected(dataset.read()) == rows


def test_damaged_file_is_told_by_the_task_that_reads_it(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(40), "a"))
    fill_half(dataset)
    damage(dataset)
    with pytest.raises(Exception, match="offsets 8–15"):
        dataset.read().collect()
    assert dataset.read(columns=["id"]).count() == 40
