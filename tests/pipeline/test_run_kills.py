"""`floodmark run` killed at any moment: the next run goes on, and nothing is lost or there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import floodmark as fm
from floodmark.cli.place import mark_of

PIPELINE = """\
import time

import pyarrow as pa
import pyarrow.compute as pc

from floodmark import Dataset, Pipeline, Source

log = Dataset("log")
numbers = Dataset("numbers", key="id")
pipeline = Pipeline([Source(log, files="log/*.csv"), Source(numbers, files="numbers/*.csv")])


@pipeline.transform(inputs=[numbers], outputs=[Dataset("squares", key="id")], chunk_size=4, commit_every=8)
def square(numbers: pa.Table) -> pa.Table:
    time.sleep(0.02)
    return pa.table({"id": numbers["id"], "n": pc.multiply(numbers["n"], numbers["n"])})


@pipeline.table(inputs=["squares"], outputs=[Dataset("totals", key="what")])
def total(squares: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "n": [pc.sum(squares["n"]).as_py()]})


@pipeline.column(numbers, returns="int64")
def double(n: int) -> int:
    return 2 * n
"""
FILES, ROWS = 8, 10


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "floodmark.toml").write_text('lake = "lake"\n')
    mark_of(fm.Lake(tmp_path / "lake")).mkdir(parents=True)
    for folder in ("log", "numbers"):
        (tmp_path / folder).mkdir()
        for file in range(FILES):
            rows = "".join(f"{row},{row}\n" for row in range(file * ROWS, (file + 1) * ROWS))
            (tmp_path / folder / f"{file}.csv").write_text(f"id,n\n{rows}")
    return tmp_path


class Run:
    """A `floodmark run` in a process, which is killed with all that it has started."""

    def __init__(self, project: Path) -> None:
        command = [sys.executable, "-m", "floodmark.cli", "run", "--json"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, cwd=project, start_new_session=True, text=True, **output)

    def kill(self) -> bool:
        """Whether it was still at work."""
        was_running = self._process.poll() is None
        if was_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        return was_running

    def end(self) -> tuple[int, str]:
        out, _ = self._process.communicate(timeout=120)
        return self._process.returncode, out


def heads(project: Path) -> dict[str, str]:
    return {dataset.name: dataset.head.text for dataset in fm.Lake(project / "lake")}


def test_run_that_is_killed_again_and_again_is_finished_by_one_that_is_not(project):
    moments = random.Random(8)
    kills = 0
    for _ in range(4):
        begun, before = Run(project), heads(project)
        end = time.monotonic() + 60
        # Starting takes as long as it likes; what matters is what has been committed when it dies.
        while heads(project) == before and begun._process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))
        kills += begun.kill()
    code, said = Run(project).end()
    assert code == 0, said
    lake, every = fm.Lake(project / "lake"), list(range(FILES * ROWS))
    assert kills >= 2
    assert sorted(lake["log"].to_arrow()["id"].to_pylist()) == every
    numbers = lake["numbers"].to_arrow().sort_by("id")
    assert numbers["id"].to_pylist() == every
    assert numbers["double"].to_pylist() == [2 * n for n in every]
    squares = lake["squares"].to_arrow().sort_by("id")
    assert squares["n"].to_pylist() == [n * n for n in every]
    assert lake["totals"].to_arrow()["n"].to_pylist() == [sum(n * n for n in every)]
    before = heads(project)
    assert Run(project).end()[0] == 0
    assert heads(project) == before
