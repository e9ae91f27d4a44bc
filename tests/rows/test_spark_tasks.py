"""Large batches are merged by Spark's tasks, with the same outcome as in this process."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.rows import merge
from limits import set_limit

pytestmark = pytest.mark.spark


@pytest.fixture
def by_tasks(monkeypatch):
    """Everything is large, and no core is near enough for threads."""
    set_limit(monkeypatch, "stage.here_bytes", 0)
    set_limit(monkeypatch, "stage.few_cores", 0)
    set_limit(monkeypatch, "parts.part_bytes", 1 << 12)
    set_limit(monkeypatch, "intake.part_bytes", 1 << 12)
    set_limit(monkeypatch, "buckets.part_bytes", 1 << 15)  # few slices: each is a task
    here = []
    monkeypatch.setattr(merge, "thread_runner", lambda: here.append(True) or pytest.fail("not a task of Spark's"))


def rows(start, end, value):
    return pa.table({"id": range(start, end), "v": [f"{value}{n % 7}" for n in range(start, end)]})


def files(folder, table, name):
    (folder / name).mkdir()
    pq.write_table(table, folder / name / "rows.parquet", row_group_size=100)
    return str(folder / name)


def current(dataset):
    return sorted(dataset.to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["upsert", "snapshot", "ledger"])
def test_files_and_frames_are_merged_by_tasks(tmp_path, session, spark, by_tasks, kind):
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    d = lake.create("d", key="id", merge=kind)
    first = d.write(files(tmp_path, rows(0, 1000, "a"), "first"))
    assert (first.new, first.slices > 1) == (1000, True)
    changed = pa.concat_tables([rows(200, 500, "a"), rows(500, 600, "b"), rows(1000, 1100, "a")])
    second = d.write(spark.createDataFrame(changed.to_pandas()))
    by_key = {row["id"]: row for row in rows(0, 1000, "a").to_pylist()}
    batch = {row["id"]: row for row in changed.to_pylist()}
    if kind == "ledger":
        assert (second.new, second.unchanged) == (100, 400)
        expected = {**batch, **by_key}
    else:
        assert (second.new, second.changed, second.unchanged) == (100, 100, 300)
        assert second.retracted == (600 if kind == "snapshot" else 0)
        expected = batch if kind == "snapshot" else {**by_key, **batch}
    assert current(d) == [expected[key] for key in sorted(expected)]
    assert d.verify().ok


def test_changelog_is_merged_by_tasks(tmp_path, session, spark, by_tasks):
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    d = lake.create("d", key="id", merge="changelog")
    new = rows(0, 600, "a")
    d.write(spark.createDataFrame(new.append_column("op", pa.array([0] * 600, pa.int32())).to_pandas()))
    gone = rows(100, 300, "a").append_column("op", pa.array([1] * 200, pa.int32()))
    assert d.write(files(tmp_path, gone, "gone")).retracted == 200
    assert [row["id"] for row in current(d)] == [*range(100), *range(300, 600)]
    assert d.verify().ok
