"""A lake does the same in a folder, in memory and in a bucket."""

from __future__ import annotations

import time
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import floodmark as fm
from floodmark.errors import DatasetExists, RecordsPurged, TypeMismatch, UnknownColumns, UnknownDataset
from floodmark.storage.cloud import CloudStore
from floodmark.storage.memory import MemoryStore
from ledger.s3_server import s3_bucket
from ledger.worlds import START, events, keys, numbers
from limits import set_limit


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as made:
        yield made


@pytest.fixture(params=["folder", "memory", "bucket"])
def lake(request, tmp_path, clock):
    runtime = fm.Runtime(clock=clock)
    if request.param == "folder":
        return fm.Lake(tmp_path / "lake", runtime=runtime)
    if request.param == "memory":
        return fm.Lake(MemoryStore(), runtime=runtime)
    url, options = request.getfixturevalue("bucket")
    return fm.Lake(CloudStore(f"{url}/lake-{time.time_ns()}", **options), runtime=runtime)


@pytest.mark.slow
def test_life_of_a_dataset(lake, clock, tmp_path, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 200)
    trips = lake.create("trips", event_time="at")
    with pytest.raises(DatasetExists):
        lake.create("TRIPS")

    first = trips.write(events(3, 1, 2), source="k", state="1")
    assert trips.write(events(3, 1, 2), source="k", state="1") == first
    pq.write_table(events(*range(10, 40)), tmp_path / "a.parquet", row_group_size=10)
    second = trips.write(tmp_path / "a.parquet")
    assert (second.start, second.end) == (3, 33)
    assert second.slices > 1
    trips.advance_watermark(START + timedelta(days=1))
    clock.tick(60)
    trips.evolve({"tip": "float64"})
    trips.write(events(50).append_column("tip", pa.array([1.5])))

    opened = fm.Lake(lake.store)["trips"]
    assert opened.count() == 34
    table = opened.to_arrow()
    assert table.column("i").to_pylist() == [1, 2, 0, *range(30), 0]
    assert table.column("tip").to_pylist() == [None] * 33 + [1.5]
    assert opened.changes_arrow(since=31).column("offset").to_pylist() == [32, 33]
    assert opened.to_arrow(as_of=2).num_rows == 3
    assert opened.to_arrow(as_of=START).num_rows == 33
    assert opened.to_batches(columns=["offset"], where="tip > 1").read_all().column(0).to_pylist() == [33]
    assert lake.sql("select count(*) c, sum(tip) t from trips").to_pylist() == [{"c": 34, "t": 1.5}]
    assert [entry.kind for entry in opened.log()][-1] == "Seed"

    report = opened.verify()
    assert (report.ok, report.slices) == (True, len(keys(opened, "data")))
    purge = opened.purge(before=3)
    assert (purge.slices, purge.records) == (1, 3)
    with pytest.raises(RecordsPurged):
        opened.changes_arrow()
    assert trips.count() == 31
    assert trips.verify().purged_slices == 1

    assert lake.rename("trips", "rides").count() == 31
    with pytest.raises(UnknownDataset):
        lake["trips"]
    lake.drop("rides")
    assert lake.datasets() == []
    assert [info.key for info in lake.store.list("datasets")] == []


def test_refusals_leave_nothing_in_any_store(lake):
    dataset = lake.create("d", schema={"n": "int8"})
    assert dataset.write(numbers(0, 0)).rows == 0
    for data, error in ((pa.table({"m": [1]}), UnknownColumns), (pa.table({"n": [1000]}), TypeMismatch)):
        with pytest.raises(error):
            dataset.write(data)
    assert keys(dataset, "data") == keys(dataset, "staging") == []
    assert list(lake.store.staging().iterdir()) == []


def test_address_of_a_lake_opens_it_again(tmp_path, clock):
    lake = fm.Lake(str(tmp_path / "lake"))
    lake.create("d").write(numbers(0, 3))
    assert fm.Lake(lake.store.url)["d"].count() == 3
    assert fm.Lake((tmp_path / "lake").as_uri())["d"].count() == 3
    assert repr(lake) == f"Lake({str(tmp_path / 'lake')!r})"
    assert "Dataset('d'" in repr(lake["d"])
