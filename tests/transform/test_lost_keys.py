"""A key that kills every worker that tries it is a failed key: the others are committed in the same run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.transform.errors import KeyFailed, WorkersKeepDying
from floodmark.transform.tasks import rounds
from transform.apply_world import Keys, World, processed_of, rows_of


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


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    lake = fm.Lake(tmp_path / "lake")
    lake.create("a", key="id").write(pa.table({"id": list(range(40)), "v": list(range(40))}))
    return lake


def step(tmp_path: Path, how: str, *keys: int, **options: Any) -> fm.BatchTransform:
    kwargs = {"how": how, "keys": list(keys), "log": str(tmp_path / "deaths")}
    return fm.BatchTransform(deadly, ["a"], ["o"], name="s", version="1", kwargs=kwargs, **options)


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("os._exit", "WorkerDied", "exit code 3"),
        ("segfault", "WorkerDied", "killed by SIGSEGV"),
        ("memory", "MemoryError", "10 TB"),
        ("sys.exit", "SystemExit", "3"),
    ],
)
def test_key_that_ends_its_worker_fails_alone(lake: fm.Lake, tmp_path: Path, how: str, kind: str, says: str) -> None:
    report = step(tmp_path, how, 17).run(lake)
    assert (report.keys, report.failed) == (40, 1)
    assert sorted(lake["o"].to_arrow()["id"].to_pylist()) == [k for k in range(40) if k != 17]
    [failed] = step(tmp_path, how, 17).errors(lake).to_pylist()
    assert (failed["id"], failed["type"], failed["attempts"]) == (17, kind, 1)
    assert says in failed["message"]

    assert step(tmp_path, how, 17).run(lake).failed == 1  # a run of this key only
    [failed] = step(tmp_path, how, 17).errors(lake).to_pylist()
    assert failed["attempts"] == 2

    assert step(tmp_path, how).run(lake).keys == 1
    assert sorted(lake["o"].to_arrow()["id"].to_pylist()) == list(range(40))


def test_deadly_keys_are_found_by_few_deaths(lake: fm.Lake, tmp_path: Path) -> None:
    lake["a"].write(pa.table({"id": list(range(40, 1000)), "v": [0] * 960}))
    assert step(tmp_path, "os._exit", 700).run(lake).failed == 1
    deaths = len((tmp_path / "deaths").read_text().split())
    assert deaths <= 10 + 3  # ten halvings, three tries of the key itself


def test_deadly_key_is_named_where_the_first_failure_ends_the_run(lake: fm.Lake, tmp_path: Path) -> None:
    with pytest.raises(KeyFailed, match=r"failed for id=17: WorkerDied: .*exit code 3") as caught:
        step(tmp_path, "os._exit", 17, on_error="fail_fast").run(lake)
    assert caught.value.key == {"id": 17}


def test_deadly_key_can_be_skipped(lake: fm.Lake, tmp_path: Path) -> None:
    step(tmp_path, "os._exit", 17, on_error="skip").run(lake)
    assert step(tmp_path, "os._exit", 17, on_error="skip").errors(lake)["state"].to_pylist() == ["skipped"]
    assert step(tmp_path, "os._exit", 17, on_error="skip").run(lake).nothing


def test_deadly_key_of_a_join_fails_alone(lake: fm.Lake) -> None:
    lake.create("b", key=["id", "n"]).write(pa.table({"id": [3, 3, 5], "n": [1, 2, 1]}))
    join = fm.BatchTransform(counting, ["a", "b"], ["o"], name="j", kwargs={"key": 5}, version="1", chunk_size=1)
    report = join.run(lake)
    assert (report.keys, report.failed) == (40, 1)
    assert join.errors(lake)["id"].to_pylist() == [5]
    assert lake["o"].get({"id": 3})["n"].to_pylist() == [2]


def test_function_that_kills_every_worker_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOST_LOST", 2)
    world = World(tmp_path, function=always_dies)
    with pytest.raises(WorkersKeepDying, match="exit code 4"):
        world.compute(Keys(0, 4))


def always_dies(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    os._exit(4)


def test_what_was_stored_before_the_deaths_stays(tmp_path: Path) -> None:
    world = World(tmp_path, function=dies_at_13, target_seconds=0.0)
    done = world.compute(Keys(0, 40, gone=frozenset({7})))
    assert rows_of(done.stored, value="x") == {k: k for k in range(40) if k not in (7, 13)}
    assert processed_of(done.stored, range(40)) == list(range(40))
    assert done.failed == 1


def dies_at_13(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    if 13 in frame["k"].to_pylist():
        os._exit(4)
    return frame
