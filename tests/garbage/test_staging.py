"""Unfinished files go after a day, unless their writer lives."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.garbage import staging
from floodmark.lake import Lake
from floodmark.ledger.staging import staging_area
from floodmark.storage.memory import MemoryStore
from garbage.worlds import collected

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
