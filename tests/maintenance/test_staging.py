"""Unfinished files go after a day, unless their writer lives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.lake import Lake
from floodmark.maintenance import staging
from floodmark.spark_source.writer import commit_task_files, write_task_files
from floodmark.storage.memory import MemoryStore
from floodmark.storage.scratch import staging_area
from floodmark.storage.store import ObjectInfo
from maintenance.worlds import collected

DAYS = 86_400.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    lake.create("kept").write(pa.table({"n": [1]}))
    return lake


def aged(path: Path, days: float) -> None:
    moment = time.time() - days * DAYS
    for one in (*path.rglob("*"), path):
        os.utime(one, (moment, moment))


def test_files_and_folders_of_killed_writers_go_after_a_day(lake: Lake):
    root = lake.store.staging()
    (root / "old").write_bytes(b"12345")
    (root / "young").write_bytes(b"1")
    folder = root / "write-killed"
    folder.mkdir()
    (folder / "part").write_bytes(b"123")
    (folder / ".owner").touch()
    aged(root / "old", 1.1)
    aged(folder, 1.1)
    assert sum(info.size for info in staging.find(lake.store, time.time())) == 8
    assert collected(lake)[None, "staging"] == 2
    assert [path.name for path in root.iterdir()] == ["young"]


def test_a_folder_that_was_written_to_lately_stays(lake: Lake):
    folder = lake.store.staging() / "write-killed"
    folder.mkdir()
    aged(folder, 2)
    part = folder / "part"
    part.write_bytes(b"123")
    aged(folder, 2)
    os.utime(part)
    assert collected(lake) == {}
    assert part.exists()


def test_a_folder_whose_writer_lives_stays_however_old(lake: Lake):
    with staging_area(lake.store) as folder:
        (folder / "part").write_bytes(b"123")
        aged(folder, 9)
        assert collected(lake) == {}
        assert (folder / "part").exists()


def test_a_store_without_a_folder_of_its_own_has_no_leftovers():
    assert staging.collect(MemoryStore(), time.time()) == ()


class Aged(MemoryStore):
    """A bucket some of whose objects are as many days old as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.days: dict[str, float] = {}

    def _old(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified=info.modified - self.days.get(info.key, 0) * DAYS)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return map(self._old, super().list(prefix))

    def stat(self, key: str) -> ObjectInfo | None:
        info = super().stat(key)
        return None if info is None else self._old(info)


def test_objects_that_jobs_staged_in_a_bucket_go_when_nobody_came_back_to_them_for_a_week():
    store = Aged()
    lake = Lake(store)
    dataset = lake.create("kept", schema={"n": "int64"})
    objects = dataset.snapshot().objects
    rows = pa.table({"n": pa.array([1, 2], pa.int64())})
    forgotten = write_task_files(objects, iter(rows.to_batches()), rows.schema)
    under_way = write_task_files(objects, iter(rows.to_batches()), rows.schema)
    room = f"{objects.folder}/staging/run-killed"
    for part, days in (("old", 9), ("older", 30)):
        store.put_derived(f"{room}/{part}", b"12")
        store.days[f"{room}/{part}"] = days
    store.put_derived(f"{objects.folder}/staging/run-long/first", b"1")
    store.put_derived(f"{objects.folder}/staging/run-long/newest", b"1")
    store.days[f"{objects.folder}/staging/run-long/first"] = 9  # its run has added something since
    store.days[forgotten[0].name] = 8

    assert collected(lake) == {("kept", "staging"): 3}

    assert [store.stat(left.name) is None for left in (*forgotten, *under_way)] == [True, False]
    assert store.stat(f"{objects.folder}/staging/run-long/first") is not None
    commit_task_files(dataset, under_way, rows.schema, None)
    assert dataset.count() == 2


def test_a_new_writer_removes_the_folder_of_one_that_was_killed_while_it_removed_it(lake: Lake):
    folder = lake.store.staging() / "write-killed"
    folder.mkdir()
    (folder / "part").write_bytes(b"123")  # its lock file is gone already
    with staging_area(lake.store):
        assert not folder.exists()


def test_drop_leaves_nothing_in_the_folder_of_its_dataset(lake: Lake):
    folder = lake.store.local_path("datasets")
    assert folder is not None
    lake.create("gone", key="id").write(pa.table({"id": [1, 2], "v": [1, 2]}))
    before = {path.name for path in folder.iterdir()}
    lake.drop("gone")
    assert len({path.name for path in folder.iterdir()}) == len(before) - 1
    assert lake["kept"].count() == 1


def test_folders_that_an_interrupted_drop_left_go_after_a_day(lake: Lake):
    folder = lake.store.local_path("datasets/f00d")
    assert folder is not None
    for name in ("blocks", "data", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "refs" / ".head.turn").touch()
    assert collected(lake) == {}
    aged(folder, 1.1)
    assert collected(lake)[None, "staging"] == 1
    assert not folder.exists()
    assert lake["kept"].count() == 1


def test_folder_of_a_dataset_with_any_object_stays(lake: Lake):
    folder = lake.store.local_path("datasets/f00d")
    assert folder is not None
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "slice").touch()
    aged(folder, 2)
    assert collected(lake) == {}
    assert (folder / "data" / "slice").exists()
