"""A folder of its own for every test, and the command line as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from floodmark.cli.app import floodmark


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, with nothing in the environment that names a lake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """`run("log", "trips")` is `floodmark log trips`."""

    def call(*arguments: str) -> Answer:
        result = CliRunner().invoke(floodmark, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def trips_file(folder: Path) -> Path:
    """Three trips, in event-time order."""
    path = folder / "trips.parquet"
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    table = pa.table({"id": [1, 2, 3], "pickup_at": days, "fare": [1.5, None, 3.0], "pay": ["card", None, "cash"]})
    pq.write_table(table, path)
    return path


@pytest.fixture
def trips(run: Run, trips_file: Path) -> str:
    """A lake with one dataset of three records."""
    assert run("init").code == 0
    assert run("ingest", "trips", str(trips_file), "--event-time", "pickup_at").code == 0
    return "trips"
