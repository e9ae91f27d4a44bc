"""A key that kills every worker that tries it is a failed key: the others are committed in the same run."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import EngineError, KeyFailed
from limits import set_limit
from profiles import IN_FULL
from transforms.apply_world import Keys, World, processed_of, rows_of

pytestmark = pytest.mark.process


def _dies(how: str) -> None:
    match how:
        case "os._exit":
            os._exit(3)
        case "segfault":
            os.kill(os.getpid(), 11)
        case "sys.exit":
            sys.exit(3)
        case "memory":
            raise MemoryError("a tensor of 10 TB")


def deadly(rows: pa.Table, how: str, keys: list[int], log: str) -> pa.Table:
    if set(rows["id"].to_pylist()) & set(keys):
        with Path(log).open("a") as file:
            file.write("died\n")
        _dies(how)
    return rows


def counting(left: pa.Table, right: pa.Table, key: int) -> pa.Table:
    if key in left["id"].to_pylist():
        os._exit(3)
    return pa.table({"id": left["id"], "n": [right.num_rows] * left.num_rows})


def make_lake(folder: Path, keys: int) -> fm.Lake:
    lake = fm.Lake(folder / "lake")
    lake.create("a", key="id").write(pa.table({"id": range(keys), "v": range(keys)}))
    return lake


def step(folder: Path, how: str, *keys: int, **options: Any) -> fm.BatchTransform:
    kwargs = {"how": how, "keys": list(keys), "log": str(folder / "deaths")}
    return fm.BatchTransform(deadly, ["a"], ["o"], name="s", version="1", kwargs=kwargs, **options)


@pytest.mark.soak
@pytest.mark.parametrize("keys", [3, 1000] if IN_FULL else [3])
def test_key_that_kills_its_worker_fails_alone_after_few_deaths(tmp_path: Path, keys: int) -> None:
    lake, bad = make_lake(tmp_path, keys), keys * 2 // 3
    report = step(tmp_path, "os._exit", bad).run(lake)
    assert (report.keys, report.failed) == (keys, 1)
    assert sorted(lake["o"].to_arrow()["id"].to_pylist()) == [k for k in range(keys) if k != bad]
    [failed] = step(tmp_path, "os._exit", bad).errors(lake).to_pylist()
    assert (failed["id"], failed["type"], failed["attempts"]) == (bad, "WorkerDied", 1)
    assert "exit code 3" in failed["message"]
    deaths = len((tmp_path / "deaths").read_text().split())
    assert deaths <= math.ceil(math.log2(keys)) + 3  # halvings, and three tries of the key itself

    assert step(tmp_path, "os._exit").run(lake).keys == 1
    assert sorted(lake["o"].to_arrow()["id"].to_pylist()) == list(range(keys))


@pytest.mark.parametrize(("how", "kind", "says"), [("memory", "MemoryError", "10 TB"), ("sys.exit", "SystemExit", "3")])
def test_key_that_wants_to_end_its_worker_fails_alone(tmp_path: Path, how: str, kind: str, says: str) -> None:
    lake = make_lake(tmp_path, 40)
    for attempts in (1, 2):
        assert step(tmp_path, how, 17).run(lake).failed == 1
        [failed] = step(tmp_path, how, 17).errors(lake).to_pylist()
        assert (failed["id"], failed["type"], failed["attempts"]) == (17, kind, attempts)
        assert says in failed["message"]
    assert sorted(lake["o"].to_arrow()["id"].to_pylist()) == [k for k in range(40) if k != 17]


def test_deadly_key_is_named_where_the_first_failure_ends_the_run(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, 1)
    with pytest.raises(KeyFailed, match=r"failed for id=0: WorkerDied: .*killed by SIGSEGV") as caught:
        step(tmp_path, "segfault", 0, on_error="fail_fast").run(lake)
    assert caught.value.key == {"id": 0}


def test_deadly_key_of_a_join_fails_alone_and_can_be_skipped(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, 2)
    lake.create("b", key=["id", "n"]).write(pa.table({"id": [0, 0, 1], "n": [1, 2, 1]}))
    options: dict[str, Any] = {"kwargs": {"key": 1}, "version": "1", "chunk_size": 1, "on_error": "skip"}
    join = fm.BatchTransform(counting, ["a", "b"], ["o"], name="j", **options)
    report = join.run(lake)
    assert (report.keys, report.failed) == (2, 1)
    assert join.errors(lake).select(["id", "state"]).to_pylist() == [{"id": 1, "state": "skipped"}]
    assert lake["o"].get({"id": 0})["n"].to_pylist() == [2]
    assert join.run(lake).nothing


def test_function_that_kills_every_worker_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "rounds.most_lost", 0)
    world = World(tmp_path, function=always_dies)
    with pytest.raises(EngineError, match="exit code 4"):
        world.compute(Keys(0, 1))


def always_dies(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    os._exit(4)


def test_what_was_stored_before_the_deaths_stays(tmp_path: Path) -> None:
    world = World(tmp_path, function=dies_at_13, target_seconds=0.0, chunk_size=2)
    done = world.compute(Keys(9, 14, gone=frozenset({10})))
    assert rows_of(done.stored, value="x") == {k: k for k in (9, 11, 12)}
    assert processed_of(done.stored, range(9, 14)) == list(range(9, 14))
    assert done.failed == 1


def dies_at_13(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    if 13 in frame["k"].to_pylist():
        os._exit(4)
    return frame
