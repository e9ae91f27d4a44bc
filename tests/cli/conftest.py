"""A folder of its own for every test, and the command line as a function."""

from __future__ import annotations

import gc
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from floodmark import Lake
from floodmark.cli.app import floodmark
from floodmark.columns import columns as columns_module
from floodmark.dataset import Dataset
from floodmark.views import definition
from transforms.worlds import in_this_process

VISION = """\
import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm


@fm.udf(returns="float64")
def brightness(pixels: pa.Array) -> pa.Array:
    return pc.divide(pc.cast(pixels, "float64"), 100)


@fm.udf(returns="string", on_error=[fm.Skip(ValueError)])
def label(brightness: float) -> str:
    if brightness > 0.9:
        raise ValueError("overexposed")
    return "light" if brightness >= 0.5 else "dark"
"""


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


@pytest.fixture(autouse=True)
def functions_run_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Users' functions run in this process, except in tests marked `process`: there in worker processes."""
    if request.node.get_closest_marker("process"):
        yield
        return
    with in_this_process():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, with nothing in the environment that names a lake."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """`run("log", "trips")` is `floodmark log trips`."""

    return invoke


def invoke(*arguments: str) -> Answer:
    """Run a command in this process and in the current folder, as in a pipe."""
    result = CliRunner().invoke(floodmark, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Screen(io.TextIOWrapper):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Show = Callable[..., str]


@pytest.fixture
def on_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """`on_terminal("list", columns=100)`: what a terminal of this width receives from a command in this process."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LINES", "40")

    def call(*arguments: str, columns: int) -> str:
        received = io.BytesIO()
        with monkeypatch.context() as patched, Screen(received, "utf-8") as screen:
            patched.setenv("COLUMNS", str(columns))
            patched.setattr(sys, "stdout", screen)
            patched.setattr(sys, "stderr", screen)
            with pytest.raises(SystemExit) as ended:
                floodmark(list(arguments))
            screen.flush()
            assert ended.value.code == 0, received.getvalue().decode()
            return received.getvalue().decode().replace("\n", "\r\n")

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


class Modules:
    """The user's modules in the current folder; each command finds them as a new process would."""

    vision = VISION

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: set[str] = set()

    def write(self, name: str, text: str) -> None:
        (self._folder / f"{name}.py").write_text(text)
        self._names.add(name)
        self.forget()

    def load(self, name: str) -> Any:
        """The module, as a script of the user would import it."""
        self.forget()
        sys.path.insert(0, str(self._folder))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(self._folder))

    def forget(self) -> None:
        """As if nothing had been imported: the functions that this process knows are gone, too."""
        for name in self._names:
            sys.modules.pop(name, None)
        columns_module._added_udfs.clear()
        definition._remembered_udfs.clear()
        importlib.invalidate_caches()
        gc.collect()


@pytest.fixture
def modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """`modules.write("vision", text)` makes a module that commands can import, and only they."""
    # A module that is written twice within a second would be taken from the bytecode of the first.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    gc.freeze()  # so that `forget` looks only at what the test makes
    found = Modules(folder)
    yield found
    found.forget()
    gc.unfreeze()


@pytest.fixture
def images(run: Run, modules: Modules) -> Dataset:
    """Ten images in three fragments, with two computed columns of which nothing is computed."""
    run("init")
    modules.write("vision", VISION)
    vision = modules.load("vision")
    images = Lake("lake").create("images", key="id")
    images.write(pa.table({"id": list(range(10)), "pixels": [10 * n for n in range(9)] + [95]}))
    images.add_column("brightness", vision.brightness, fragment_rows=4)
    images.add_column("label", vision.label)
    return images


DAILY = "select carrier, day, sum(delay) delay, count(*) n from flights group by carrier, day"
WINDY = "select id, origin, delay, wind from flights left join weather using (origin)"
TOP = "select sort_array(collect_set(carrier)) carriers from daily"


@pytest.fixture
def flights(run: Run) -> Dataset:
    """Four flights from two places, and the wind at one of them. Views on them are the tests' own: they need Spark."""
    run("init")
    lake = Lake("lake")
    lake.create("weather", key="origin").write(pa.table({"origin": ["JFK"], "wind": [12]}))
    flights = lake.create("flights", key="id")
    carriers, origins = ["AA", "AA", "DL", "DL"], ["JFK", "LGA", "JFK", "JFK"]
    days, delays = [1, 1, 1, 2], [5, None, 30, 8]
    flights.write(pa.table({"id": [1, 2, 3, 4], "carrier": carriers, "origin": origins, "day": days, "delay": delays}))
    return flights


SHOP = """\
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm


def goods():
    yield pa.table({"item": ["nut", "bolt"], "weight": [2, 3]})


def prices(orders: pa.Table) -> pa.Table:
    texts = orders["text"].to_pylist()
    if not Path("mended").exists():
        for text in texts:
            float(text)
    cents = [round(100 * float(text)) if text != "free" else 0 for text in texts]
    return pa.table({"id": orders["id"], "cents": pa.array(cents, pa.int64())})


def total(prices: pa.Table) -> pa.Table:
    return pa.table({"what": ["all"], "cents": pa.array([pc.sum(prices["cents"]).as_py() or 0], pa.int64())})


pipeline = fm.Pipeline(
    [
        fm.BatchGenerate(goods, [fm.OutputSpec("goods", key="item")], labels={"stage": "source"}),
        fm.BatchTransform(prices, ["orders"], ["prices"], labels={"stage": "shop"}),
        fm.DatatableTransform(total, ["prices"], [fm.OutputSpec("total", key="what")], labels={"stage": "shop"}),
    ]
)
"""


@pytest.fixture
def steps(folder: Path) -> Iterator[None]:
    """The current folder has a pipeline; what it imports is forgotten after the test."""
    with project(folder):
        yield


@contextmanager
def project(folder: Path) -> Iterator[None]:
    """Commands run in this folder, and what its pipeline imports is forgotten afterwards."""
    path, before = list(sys.path), set(sys.modules)
    with chdir(folder):
        yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def orders(run: Run, folder: Path, steps: None) -> Dataset:
    """Three orders, one of which has no price that `prices` can read, and a pipeline of three steps."""
    (folder / "floodmark.toml").write_text('lake = "lake"\npipeline = "pipeline.py"\n')
    (folder / "pipeline.py").write_text(SHOP)
    run("init")
    orders = Lake("lake").create("orders", key="id")
    orders.write(pa.table({"id": [1, 2, 3], "text": ["1.5", "free", "2.5"]}))
    return orders
