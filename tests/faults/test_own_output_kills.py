"""A step that reads its own output is killed after any change of the disk: each change of a user is applied once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from histories.calls import in_this_process
from histories.disks import Crash, after_faults, open_lake


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def total(a: pa.Table, t: pa.Table) -> tuple[pa.Table, pa.Table]:
    before = dict(zip(t["id"].to_pylist(), t["w"].to_pylist(), strict=True))
    made = {i: 10 * before.get(i, 0) + v for i, v in zip(a["id"].to_pylist(), a["v"].to_pylist(), strict=True)}
    rows = pa.table({"id": pa.array(made, pa.int64()), "w": pa.array(made.values(), pa.int64())})
    return rows, rows


def step(offsets: bool) -> fm.BatchTransform:
    names: dict[str, Any] = {"name": "totals", "version": "1", "chunk_size": 1, "use_offset_optimization": offsets}
    return fm.BatchTransform(total, ["a", "t"], ["t", "copy"], transform_keys=["id"], **names)


def values(lake: fm.Lake, name: str) -> dict[int, int]:
    table = lake[name].to_arrow()
    return dict(zip(table["id"].to_pylist(), table["w"].to_pylist(), strict=True))


def write(lake: fm.Lake, name: str, ids: list[int], given: list[int]) -> None:
    column = "v" if name == "a" else "w"
    lake[name].write(pa.table({"id": pa.array(ids, pa.int64()), column: pa.array(given, pa.int64())}))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])
def test_killed_run_of_a_step_that_reads_its_output_applies_each_change_once(
    tmp_path: Path, offsets: bool, every: int | None
) -> None:
    numbers = itertools.count()

    def begin() -> Path:
        folder = tmp_path / str(next(numbers))
        lake = open_lake(folder)
        lake.create("a", key="id", schema={"id": "int64", "v": "int64"})
        lake.create("t", key="id", schema={"id": "int64", "w": "int64"})
        write(lake, "a", [1, 2, 3], [1, 2, 3])
        write(lake, "t", [2], [5])
        step(offsets).run(lake)
        write(lake, "a", [1, 2], [4, 5])
        write(lake, "t", [3], [7])
        return folder

    def act(folder: Path, disk: Any) -> None:
        step(offsets).run(open_lake(folder, disk), commit_every=every)

    for folder, _ in after_faults(begin, act, Crash):
        lake = open_lake(folder)
        step(offsets).run(lake)
        assert values(lake, "t") == {1: 14, 2: 525, 3: 73}
        assert values(lake, "copy") == {1: 14, 2: 525, 3: 73}
        assert step(offsets).run(lake).nothing
        assert [dataset.verify().problems for dataset in lake] == [(), (), ()]
