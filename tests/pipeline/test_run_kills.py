"""`floodmark run` killed at any change of the disk: the next run goes on, and nothing is lost or there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import floodmark as fm
from floodmark.cli.command import marker_folder
from floodmark.pipeline import project as loading
from profiles import seeds

PIPELINE = """\
import itertools
import os
import signal

import pyarrow as pa
import pyarrow.compute as pc

from floodmark import DatasetSpec, Pipeline, Source
from floodmark.storage.file_system import OsFileSystem

log = DatasetSpec("log")
numbers = DatasetSpec("numbers", key="id")
pipeline = Pipeline([Source(log, files="log/*.csv"), Source(numbers, files="numbers/*.csv")])


@pipeline.transform(inputs=[numbers], outputs=[DatasetSpec("squares", key="id")], chunk_size=4, commit_every=8)
def square(numbers: pa.Table) -> pa.Table:
    return pa.table({"id": numbers["id"], "n": pc.multiply(numbers["n"], numbers["n"])})


@pipeline.table(inputs=["squares"], outputs=[DatasetSpec("totals", key="what")])
def total(squares: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "n": [pc.sum(squares["n"]).as_py()]})


@pipeline.column(numbers, returns="int64")
def double(n: int) -> int:
    return 2 * n


def dies_at(nth):
    made = itertools.count(1)

    def counted(change):
        def call(*args):
            if next(made) >= nth:
                os.killpg(0, signal.SIGKILL)
            return change(*args)

        return call

    for name in ("write_new", "link", "rename", "unlink"):
        setattr(OsFileSystem, name, counted(getattr(OsFileSystem, name)))


if "DIES_AT" in os.environ:
    dies_at(int(os.environ["DIES_AT"]))
"""
FILES, ROWS = 3, 8
EARLY, LATE = 20, 90  # changes of the disk; a run that is not killed makes more than 150


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "floodmark.toml").write_text('lake = "lake"\n')
    marker_folder(fm.Lake(tmp_path / "lake")).mkdir(parents=True)
    for folder in ("log", "numbers"):
        (tmp_path / folder).mkdir()
        for file in range(FILES):
            rows = "".join(f"{row},{row}\n" for row in range(file * ROWS, (file + 1) * ROWS))
            (tmp_path / folder / f"{file}.csv").write_text(f"id,n\n{rows}")
    return tmp_path


def killed_run(project: Path, nth: int) -> None:
    """`floodmark run` in a process that is killed at its nth change of the disk, with all that it has started."""
    done = subprocess.run(
        [sys.executable, "-m", "floodmark.cli", "run", "--json"],
        cwd=project,
        env={**os.environ, "DIES_AT": str(nth)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout


@pytest.mark.process
@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1))
def test_run_that_is_killed_again_and_again_is_finished_by_one_that_is_not(project: Path, seed: int):
    chance = random.Random(seed)
    for nth in (chance.randrange(2, EARLY), chance.randrange(EARLY, LATE)):
        killed_run(project, nth)
    lake, pipeline = fm.Lake(project / "lake"), loading.load_pipeline(project)
    assert pipeline.run(lake).ok
    every = list(range(FILES * ROWS))
    assert sorted(lake["log"].to_arrow()["id"].to_pylist()) == every
    numbers = lake["numbers"].to_arrow().sort_by("id")
    assert numbers["id"].to_pylist() == every
    assert numbers["double"].to_pylist() == [2 * n for n in every]
    squares = lake["squares"].to_arrow().sort_by("id")
    assert squares["n"].to_pylist() == [n * n for n in every]
    assert lake["totals"].to_arrow()["n"].to_pylist() == [sum(n * n for n in every)]
    before = {dataset.name: dataset.head for dataset in lake}
    assert pipeline.run(lake).ok
    assert {dataset.name: dataset.head for dataset in lake} == before
