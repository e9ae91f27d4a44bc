"""Spark reads the current rows as Arrow does: through its own reader with a mask, and through reading tasks."""

from __future__ import annotations

from datetime import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import floodmark as fm
from floodmark.engine.session import Session
from floodmark.ledger import spark_read
from floodmark.ledger.selection import DataFile, Selection
from limits import set_limit
from rows.current_worlds import lived_in, people, replayed, rows

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path, spark):
    return fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=Session(spark), fold_at=None))


@pytest.fixture(params=["mask", "masks", "tasks", "too large a mask"])
def way(request, monkeypatch):
    """One bitmap, one for each few offsets, and both reasons for tasks."""
    match request.param:
        case "masks":
            set_limit(monkeypatch, "spark_mask.stretch_offsets", 50)
        case "tasks":
            set_limit(monkeypatch, "spark_read.native_slices", 0)
        case "too large a mask":
            set_limit(monkeypatch, "spark_read.mask_bytes", 1)
    return request.param


def collected(frame):
    return sorted((row.asDict() for row in frame.collect()), key=lambda r: r["id"])


def expected(dataset, end=None):
    return sorted(rows(dataset, end), key=lambda r: r["id"])


def test_current_rows_and_the_past_before_and_after_a_fold(lake, way):
    dataset = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=11, writes=8)
    middle = dataset.last_offset // 2
    if way not in ("mask", "tasks"):
        dataset.fold()  # once before is enough
        lived_in(dataset, seed=12, writes=2)
    for _ in range(2 if way in ("mask", "tasks") else 1):
        assert collected(dataset.read()) == expected(dataset)
        assert collected(dataset.read(as_of=middle)) == expected(dataset, middle + 1)
        assert dataset.read().where("id < 10").count() == sum(r["id"] < 10 for r in expected(dataset))
        offsets = sorted(row["offset"] for row in dataset.read(system=True).collect())
        assert offsets == sorted(r["offset"] for r in replayed(dataset).values())
        dataset.fold()
        lived_in(dataset, seed=12, writes=2)
    assert [row["offset"] for row in dataset.changes().collect()] == list(range(dataset.last_offset + 1))
    answer = lake.sql_spark("select count(*) c, count(distinct id) d from p").collect()[0]
    assert (answer["c"], answer["d"]) == (dataset.count(), dataset.count())


def test_slices_without_dead_records_are_read_without_a_mask(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(100), "a"))
    assert "getbit" not in plan_of(dataset.read())
    dataset.write(people(range(100, 200), "b"))
    dataset.write(people([5], "c"))
    plan = plan_of(dataset.read().select("v"))
    assert plan.count("Filter (coalesce(cast(getbit") == 1  # one of two scans
    assert "Union" in plan
    assert collected(dataset.read()) == expected(dataset)
    dataset.fold()
    assert "getbit" not in plan_of(dataset.read())


def test_columns_and_filters_still_reach_the_parquet_reader(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(100), "a"))
    dataset.write(people([5], "b"))
    plan = plan_of(dataset.read().where("id = 7").select("id"))
    assert "EqualTo(id,7)" in plan
    assert "ReadSchema: struct<offset:bigint,id:bigint>" in plan


def plan_of(frame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_times_of_day_and_columns_added_later(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    at = pa.array([time(1, 2, 3), time(4, 5, 6)], pa.time64("us"))
    dataset.write(people([1, 2], "a").append_column("t", at))
    dataset.evolve({"w": "int64"})
    dataset.write(people([2], "b").append_column("t", at.slice(0, 1)).append_column("w", pa.array([9])))
    for _ in range(2):
        assert [(r["id"], r["v"], r["w"]) for r in collected(dataset.read())] == [(1, "a1", None), (2, "b2", 9)]
        dataset.fold()


def test_dataset_of_dead_records_only_is_empty(lake):
    dataset = lake.create("p", key=["id"], merge="upsert")
    dataset.write(people(range(3), "a"))
    dataset.delete([0, 1, 2])
    for _ in range(2):
        assert dataset.read().collect() == []
        assert dataset.read().columns == ["id", "v"]
        dataset.fold()


def test_much_data_is_folded_by_spark(lake, monkeypatch):
    set_limit(monkeypatch, "fold.spark_bytes", 0)
    dataset = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=13, writes=5)
    assert dataset.fold().rows == dataset.count()
    assert dataset.to_arrow().to_pylist() == rows(dataset)
    assert collected(dataset.read()) == expected(dataset)


@given(st.integers(0, 300), st.integers(1, 300), st.sets(st.integers(0, 299)))
def test_bitmap_has_a_bit_for_each_dead_offset(start, length, dead):
    inside = sorted(start + d for d in dead if d < length)
    words = spark_read.bitmap(np.array(inside, np.int64), start, start + length)
    bits = [start + 64 * w + i for w, word in enumerate(words.tolist()) for i in range(64) if word >> i & 1]
    assert bits == inside


def test_masked_and_unmasked_files_share_the_selection():
    files = tuple(DataFile(str(i), 10 * i, 10 * i + 10, 10, 1) for i in range(4))
    selection = Selection(2, 38, files, np.array([12, 31]))
    assert [f.key for f in spark_read.without_dead(selection).files] == ["0", "2"]
    assert not spark_read.without_dead(selection).is_whole  # offsets 0 and 1 are not asked for
    [stretch] = spark_read.masked_stretches(selection)
    assert ([f.key for f in stretch.files], stretch.start, stretch.end) == (["1", "3"], 10, 38)
    assert stretch.dead.tolist() == [12, 31]
