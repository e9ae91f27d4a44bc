"""Keyed datasets can be read although no disk has space for their key index: it is then in memory."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from faults.fault_points import DisturbedDisk, FaultPoint, is_full
from floodmark.storage import sorted_runs
from floodmark.storage.local import LocalStore
from limits import set_limit

ROWS = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake whose key index is lost."""
    dataset = fm.Lake(tmp_path / "lake").create("k", key="id")
    for start in range(0, ROWS, 10):
        dataset.write(pa.table({"id": list(range(start, start + 10)), "v": [start] * 10}))
    dataset.delete([3])
    [info] = (tmp_path / "lake" / "datasets").iterdir()
    shutil.rmtree(info / "info" / "keys")
    return tmp_path


def assert_readable(dataset: Any) -> None:
    assert sorted(dataset.to_arrow()["id"].to_pylist()) == [n for n in range(ROWS) if n != 3]
    assert dataset.count() == ROWS - 1
    assert dataset.get([3, 12]).to_pylist() == [{"id": 12, "v": 10}]


def test_full_disk_of_the_lake_and_of_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    set_limit(monkeypatch, "catch_up.group_rows", 10)
    disk = DisturbedDisk((folder,), FaultPoint(0, is_full, lasts=True))
    with disk.disturbing():
        assert_readable(fm.Lake(LocalStore(folder / "lake", disk))["k"])
    assert list((folder / "tmp").iterdir()) == []


def test_disk_that_gets_full_while_the_index_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "catch_up.group_rows", 10)
    real, calls = sorted_runs._to_pages, []

    def full(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(sorted_runs, "_to_pages", full)
    assert_readable(fm.Lake(folder / "lake")["k"])
    assert len(calls) > 7


def test_next_process_stores_the_index(folder: Path) -> None:
    disk = DisturbedDisk((folder,), FaultPoint(0, is_full, lasts=True))
    with disk.disturbing():
        assert_readable(fm.Lake(LocalStore(folder / "lake", disk))["k"])
    dataset = fm.Lake(folder / "lake")["k"]
    assert_readable(dataset)
    assert list(dataset.snapshot().objects.key_manifests())
    assert dataset.verify().ok
    assert list((folder / "lake" / ".staging").iterdir()) == []
