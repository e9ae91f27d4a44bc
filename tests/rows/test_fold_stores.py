"""Current rows, their past and their folds are the same in a folder, in memory and in a bucket."""

from __future__ import annotations

import time

import pytest

import floodmark as fm
from floodmark.storage.cloud import CloudStore
from floodmark.storage.memory import MemoryStore
from ledger.s3_server import s3_bucket
from ledger.worlds import keys
from rows.current_worlds import lived_in, people, rows


@pytest.fixture(scope="module")
def bucket():
    with s3_bucket() as made:
        yield made


@pytest.fixture(params=["folder", "memory", "bucket"])
def lake(request, tmp_path, clock):
    runtime = fm.Runtime(clock=clock, fold_at=None)
    if request.param == "folder":
        return fm.Lake(tmp_path / "lake", runtime=runtime)
    if request.param == "memory":
        return fm.Lake(MemoryStore(), runtime=runtime)
    url, options = request.getfixturevalue("bucket")
    return fm.Lake(CloudStore(f"{url}/lake-{time.time_ns()}", **options), runtime=runtime)


@pytest.mark.slow
def test_life_of_a_fold(lake):
    dataset = lived_in(lake.create("p", key=["id"], merge="upsert"), seed=21, writes=3, keys=10)
    middle = dataset.last_offset
    past = dataset.to_arrow()
    dataset.fold()
    assert len(keys(dataset, "info/fold/files")) == 1
    dataset.write(people(range(5), "later"))

    opened = fm.Lake(lake.store, runtime=fm.Runtime(fold_at=None))["p"]
    assert opened.to_arrow().to_pylist() == rows(dataset)
    assert opened.to_arrow(as_of=middle).equals(past)
    assert opened.to_batches(where="id >= 3").read_all().to_pylist() == [r for r in rows(dataset) if r["id"] >= 3]
    assert lake.sql("select count(*) c from p").to_pylist() == [{"c": opened.count()}]
    assert opened.fold().rows == opened.count()
    assert opened.to_arrow().to_pylist() == rows(dataset)
    assert opened.verify().ok

    current = opened.to_arrow().to_pylist()
    opened.purge(before=10**6)
    assert keys(opened, "info/fold/files") == []
    assert sorted(r["id"] for r in opened.to_arrow().to_pylist()) == sorted(r["id"] for r in current)
    lake.drop("p")
    assert [info.key for info in lake.store.list("datasets")] == []
    assert list(lake.store.staging().iterdir()) == []
