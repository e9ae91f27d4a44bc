"""A full run computes everything once more: steps, columns and views; only what differs is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.engine.session import Runtime
from floodmark.pipeline import run
from floodmark.storage.local import LocalStore
from histories.calls import in_this_process


@pytest.fixture(autouse=True)
def _here():
    with in_this_process():
        yield


@pytest.fixture
def lake(tmp_path: Path, session) -> fm.Lake:
    return fm.Lake(LocalStore(tmp_path / "lake", fs=HastyFileSystem()), runtime=Runtime(session=session))


class Project:
    """A source, a step, a column and what depends on it; functions add what a file says, and write down their calls."""

    def __init__(self, folder: Path, *more) -> None:
        self.calls, self.added = folder / "calls", folder / "added"
        self.added.write_text("0")
        calls, added = str(self.calls), str(self.added)

        def told(name: str, rows: int) -> int:
            with Path(calls).open("a") as file:
                file.write(f"{name}\n" * rows)
            return int(Path(added).read_text())

        def copy(a: pa.Table) -> pa.Table:
            more = told("copy", a.num_rows)
            return pa.table({"id": a["id"], "n": [n + more for n in a["n"].to_pylist()]})

        def up(n: int) -> int:
            return n + told("up", 1)

        def twice(up: int) -> int:
            told("twice", 1)
            return 2 * up

        numbers = fm.DatasetSpec("numbers", key="id")
        self.up = fm.udf(returns="int64", version="1")(up)
        self.pipeline = fm.Pipeline(
            [
                fm.Source(numbers, frame=lambda: pa.table({"id": [1, 2, 3], "n": [10, 20, 30]})),
                fm.BatchTransform(copy, [numbers], ["copies"], version="1"),
                fm.ColumnSpec(numbers, "up", self.up),
                fm.ColumnSpec(numbers, "twice", fm.udf(returns="int64", version="1")(twice)),
                *more,
            ]
        )

    def called(self) -> dict[str, int]:
        """How many rows each function was called with since the last time."""
        lines = self.calls.read_text().split() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return {name: lines.count(name) for name in ("copy", "up", "twice")}


def heads(lake: fm.Lake) -> dict[str, int | None]:
    return {dataset.name: dataset.snapshot().state.last_offset for dataset in lake}


def test_every_function_is_called_for_every_row_and_nothing_is_written(lake, tmp_path):
    project = Project(tmp_path)
    project.pipeline.run(lake)
    assert project.called() == {"copy": 3, "up": 3, "twice": 3}
    before = heads(lake)
    assert project.pipeline.run(lake, full=True).ok
    assert project.called() == {"copy": 3, "up": 3, "twice": 3}
    assert heads(lake) == before
    assert {one.state for one in project.pipeline.run(lake).outcomes} == {"nothing"}
    assert project.called() == {"copy": 0, "up": 0, "twice": 0}


def test_what_comes_out_different_is_there_afterwards(lake, tmp_path):
    project = Project(tmp_path)
    project.pipeline.run(lake)
    project.added.write_text("1")
    assert {one.state for one in project.pipeline.run(lake).outcomes} == {"nothing"}
    project.pipeline.run(lake, full=True)
    assert sorted(lake["copies"].to_arrow()["n"].to_pylist()) == [11, 21, 31]
    assert sorted(lake["numbers"].to_arrow()["twice"].to_pylist()) == [22, 42, 62]


def test_named_nodes_alone_are_computed_again(lake, tmp_path):
    project = Project(tmp_path)
    project.pipeline.run(lake)
    project.called()
    project.pipeline.run(lake, ["numbers.up"], full=True)
    assert project.called() == {"copy": 0, "up": 3, "twice": 0}


def test_full_run_that_is_cut_short_is_finished_by_any_other(lake, tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.pipeline.run(lake)
    project.called()
    project.added.write_text("1")
    with monkeypatch.context() as patched:
        patched.setattr(run, "run_graph", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            project.pipeline.run(lake, full=True)
    assert sorted(lake["numbers"].to_arrow()["up"].to_pylist()) == [10, 20, 30]  # readers see no change until then
    project.pipeline.run(lake)
    assert project.called() == {"copy": 3, "up": 3, "twice": 3}
    assert sorted(lake["numbers"].to_arrow()["up"].to_pylist()) == [11, 21, 31]


def test_nothing_is_there_to_compute_again_before_the_first_run(lake, tmp_path):
    assert Project(tmp_path).pipeline.run(lake, full=True).ok


@pytest.mark.spark
def test_view_is_derived_anew_and_its_functions_are_called(lake, tmp_path):
    project = Project(tmp_path)
    view = fm.ViewSpec("seen", source="numbers", select={"id": "id", "up": (project.up, ["n"])})
    project.pipeline = fm.Pipeline([*project.pipeline.declarations, view])
    project.pipeline.run(lake)
    project.called()
    project.added.write_text("5")
    ran = project.pipeline.run(lake, ["seen"], full=True)
    assert ran["seen"].done.report.stale == "it was reset"
    assert project.called()["up"] == 3
    assert sorted(lake["seen"].to_arrow()["up"].to_pylist()) == [15, 25, 35]
    assert project.pipeline.run(lake, ["seen"])["seen"].state == "nothing"
