"""Each row of the page "What Floodmark never does silently" happens here, and is shown where the page says."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import floodmark as fm
from docs.pages import ROOT
from floodmark.cli.app import floodmark
from transforms.worlds import in_this_process

PAGE = ROOT / "docs/never-silent.md"
PLACES = ("python", "prints", "status", "log")
NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """One row of the page: what happens, and what it says that each place shows."""

    name: str
    promised: dict[str, str]


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| **"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.append(Row(cells[0].split("**")[1], dict(zip(PLACES, cells[-4:], strict=True))))
    return found


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# The world: a folder with a lake and a pipeline; commands run in this process.

PIPELINE = """\
from pathlib import Path

import pyarrow as pa

import floodmark as fm

orders = fm.DatasetSpec("orders", key="id", schema={"id": "int64", "price": "string"})
visits = fm.DatasetSpec("visits")
stock = fm.DatasetSpec("stock", key="item", merge="snapshot")


def cents(orders: pa.Table) -> pa.Table:
    prices = orders["price"].to_pylist()
    if "skip" in prices:
        raise LookupError("skip")
    rows = [round(100 * float(price)) for price in prices if price != "none"]
    return pa.table({"id": orders["id"].slice(0, len(rows)), "cents": pa.array(rows, pa.int64())})


def ticks() -> pa.Table | None:
    given = Path("ticks.txt")
    return pa.table({"n": [given.read_text()]}) if given.exists() else None


pipeline = fm.Pipeline(
    [
        fm.Source(fm.DatasetSpec("ticks", schema={"n": "string"}), frame=ticks),
        fm.Source(orders, files="orders/*.csv"),
        fm.Source(visits, files="visits/*.csv"),
        fm.Source(stock, files="stock/*.csv"),
        fm.BatchTransform(
            cents, [orders], [fm.DatasetSpec("cents", key="id")], on_error=[fm.Skip(LookupError)], max_failed=0.9
        ),
    ]
)


@pipeline.column(orders, returns="float64", on_error=[fm.Skip(ValueError)])
def number(price: str) -> float:
    return float(price)
"""


class World:
    """What a user has, and what was printed, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.value: Any = None
        self.printed: list[str] = []
        self.call("init")
        self.lake = fm.Lake("lake")

    def call(self, *arguments: str, is_refused: bool = False) -> None:
        with in_this_process():
            ended = CliRunner().invoke(floodmark, arguments)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        assert (ended.exit_code != 0) == is_refused, ended.output
        self.printed.append(ended.output)

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    def people(self, text: str = "id,city\n1,Oslo\n2,Rome\n", merge: str = "upsert") -> fm.Dataset:
        """A dataset of two rows with a key."""
        self.call("ingest", "people", self.file("people.csv", text), "--key", "id", "--merge", merge)
        return self.lake["people"]

    def pipeline(self, orders: str = "id,price\n1,1.50\n2,2.50\n3,3.50\n") -> None:
        """A pipeline that has run."""
        self.file("floodmark.toml", 'lake = "lake"\npipeline = "pipeline.py"\n')
        self.file("pipeline.py", PIPELINE)
        self.file("orders/a.csv", orders)
        self.file("visits/a.csv", "shop,n\nOslo,10\n")
        self.file("stock/a.csv", "item,n\nnut,1\nbolt,2\n")
        self.call("run")

    def run_again(self, *arguments: str, is_refused: bool = False) -> Any:
        """Run the pipeline, and return what a run of a copy reports: the values of all steps that are not empty."""
        copy = self.folder.with_name(f"{self.folder.name}-copy")
        shutil.copytree(self.folder, copy)
        with chdir(copy):
            sys.modules.pop("pipeline", None)
            ended = CliRunner().invoke(floodmark, ["run", *arguments, "--json"])
        shutil.rmtree(copy)
        sys.modules.pop("pipeline", None)
        self.call("run", *arguments, is_refused=is_refused)
        told = json.loads(ended.stdout)
        reports = [told, *(runs := told.get("runs", [])), *(one["files"] for one in runs if "files" in one)]
        return SimpleNamespace(**{name: value for report in reports for name, value in report.items() if value})

    def step(self, name: str = "cents") -> Any:
        """The status of a step, as Python has it."""
        sys.path.insert(0, str(self.folder))
        try:
            return __import__("pipeline").pipeline[name].status(self.lake)
        finally:
            sys.path.remove(str(self.folder))


class Warnings(logging.Handler):
    """Warnings of the library, which a command prints on stderr."""

    def __init__(self, printed: list[str]) -> None:
        super().__init__()
        self._printed = printed

    def emit(self, record: logging.LogRecord) -> None:
        self._printed.append(record.getMessage())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = World(tmp_path)
    warnings = Warnings(made.printed)
    logging.getLogger("floodmark").addHandler(warnings)
    yield made
    logging.getLogger("floodmark").removeHandler(warnings)
    sys.modules.pop("pipeline", None)


# One case per row. It returns what the expression in the column "In Python" is about, if there is one.

CASES: dict[str, Callable[[World], Any]] = {}


def case(name: str) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    def register(function: Callable[[World], Any]) -> Callable[[World], Any]:
        CASES[name] = function
        return function

    return register


@case("Replaced")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", world.file("more.csv", "id,city\n1,Bergen\n"))
    return people.write(pa.table({"id": [2], "city": ["Bari"]}))


@case("Retracted")
def _(world: World) -> Any:
    people = world.people(merge="snapshot")
    world.call("ingest", "people", world.file("more.csv", "id,city\n1,Oslo\n"))
    return people.delete([1])


@case("Not found")
def _(world: World) -> Any:
    people = world.people()
    world.call("delete", "people", "id=1", "id=9")
    return people.delete([2, 9])


@case("Known already")
def _(world: World) -> Any:
    people = world.people()
    more = world.file("more.csv", "id,city\n1,Oslo\n3,Bari\n")
    world.call("ingest", "people", more)
    return people.write(pa.table({"id": [1, 4], "city": ["Oslo", "Graz"]}))


@case("Known key")
def _(world: World) -> Any:
    people = world.people(merge="ledger")
    world.call("ingest", "people", world.file("more.csv", "id,city\n1,Bergen\n3,Bari\n"))
    return people.write(pa.table({"id": [1, 4], "city": ["Bergen", "Graz"]}))


@case("Repeated in a batch")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", world.file("more.csv", "id,city\n3,Bari\n3,Graz\n"))
    return people.write(pa.table({"id": [4, 4], "city": ["Bonn", "Köln"]}))


@case("Delivered again")
def _(world: World) -> Any:
    name = world.file("people.csv", "id,city\n1,Oslo\n")
    for _ in range(2):
        world.call("ingest", "people", name, "--source", "till", "--state", "7")
    people = world.lake["people"]
    return people.write(pa.table({"id": [1], "city": ["Oslo"]}), source="till", state="7")


@case("Cast")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", world.file("more.csv", "id,city\n007,Bari\n"), is_refused=True)
    with pytest.raises(fm.FloodmarkError):
        people.write(pa.table({"id": [1.5], "city": ["Bari"]}))
    assert people.count() == 2
    return None


@case("Ragged or cut off")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", world.file("more.csv", 'id,city\n3,Bari\n4,"Graz\n5,Bonn\n'), is_refused=True)
    assert people.count() == 2
    return None


@case("Out of range")
def _(world: World) -> Any:
    ticks = world.lake.create("ticks", event_time="at")
    with pytest.raises(fm.FloodmarkError) as refused:
        ticks.write(pa.table({"at": pa.array([1 << 60], pa.timestamp("us", "UTC"))}))
    world.printed.append(str(refused.value))
    assert ticks.last_offset is None
    return None


@case("Late")
def _(world: World) -> Any:
    first = world.file("a.csv", "at,n\n2026-11-19T08:00:00Z,1\n2026-11-19T09:00:00Z,2\n")
    world.call("ingest", "ticks", first, "--event-time", "at", "--partition-by", "day")
    world.call("ingest", "ticks", world.file("b.csv", "at,n\n2026-11-19T08:30:00Z,3\n"))
    ticks = world.lake["ticks"]
    assert ticks.timeline_batches(columns=["n"]).read_all()["n"].to_pylist() == [1, 3, 2]
    return ticks.timeline_root().last


@case("File given twice")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", "people.csv", "p*.csv", is_refused=True)
    assert people.count() == 2
    return None


@case("Empty line")
def _(world: World) -> Any:
    world.call("ingest", "one", world.file("one.csv", "id\n1\n\n3\n\n"))
    world.call("ingest", "two", world.file("two.csv", "id,v\n1,\n\n3,\n"))
    assert world.lake["one"].to_arrow()["id"].to_pylist() == world.lake["two"].to_arrow()["id"].to_pylist() == [1, 3]
    return None


@case("Not a data file")
def _(world: World) -> Any:
    world.file("inbox/a.csv", "id\n1\n")
    world.file("inbox/b.txt", "id\n2\n")
    world.call("ingest", "people", "inbox")
    assert world.lake["people"].count() == 1
    return None


@case("Column not in the dataset, or missing")
def _(world: World) -> Any:
    people = world.people()
    world.call("ingest", "people", world.file("more.csv", "id,town\n3,Bari\n"), is_refused=True)
    assert people.count() == 2
    return None


@case("Column without values")
def _(world: World) -> Any:
    world.people("id,city\n1,\n2,\n")
    return world.lake["people"].schema


@case("Purged")
def _(world: World) -> Any:
    people = world.people()
    people.write(pa.table({"id": [1], "city": ["Bergen"]}))
    report = people.plan_purge(2)
    world.call("purge", "people", "--before", "2", "--yes")
    assert people.count() == 2
    return report


@case("Erased")
def _(world: World) -> Any:
    people = world.people()
    report = people.plan_erase([1])
    world.call("erase", "people", "id=1", "--yes")
    assert people.count() == 1
    return report


@case("Failed")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,oops\n2,4\n3,5\n")
    world.run_again("cents", "ingest_orders")
    assert world.lake["cents"].get([1])["cents"].to_pylist() == [150]
    return world.step()


@case("Skipped")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,skip\n2,4\n3,5\n")
    world.run_again("cents", "ingest_orders")
    assert world.lake["cents"].count() == 2
    return world.step()


@case("Failed run")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,oops\n2,oops\n3,oops\n")
    world.run_again("cents", "ingest_orders", is_refused=True)
    assert world.lake["cents"].count() == 3
    return world.step()


@case("No longer returned")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,none\n")
    found = world.run_again("cents", "ingest_orders")
    assert world.lake["cents"].count() == 2
    return found


@case("Removed column")
def _(world: World) -> Any:
    world.pipeline()
    world.file("pipeline.py", PIPELINE.replace('"cents": pa', '"note": pa.nulls(len(rows), pa.string()), "cents": pa'))
    world.run_again("cents")
    world.file("pipeline.py", PIPELINE)
    found = world.run_again("cents")
    assert world.lake["cents"].schema.names == ["id", "cents", "note"]
    return found


@case("Restored input")
def _(world: World) -> Any:
    world.pipeline()
    head = world.folder / "lake" / world.lake["orders"].snapshot().objects.head_key
    before = head.read_bytes()
    world.file("orders/b.csv", "id,price\n9,9\n")
    world.run_again("ingest_orders")
    world.run_again("cents")
    head.write_bytes(before)
    return world.run_again("cents")


@case("Null in a computed column")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n2,oops\n")
    world.run_again("ingest_orders")
    found = world.run_again("orders.number")
    assert world.lake["orders"].to_arrow(columns=["number"])["number"].null_count == 1
    return found


@case("Known to a source")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,1.50\n2,9.50\n")
    return world.run_again("ingest_orders")


@case("Repeated in a source")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n4,1.50\n4,9.50\n")
    found = world.run_again("ingest_orders")
    assert world.lake["orders"].get([4])["price"].to_pylist() == ["9.50"]
    assert found.keys == 2
    return found


@case("Frame returned again")
def _(world: World) -> Any:
    world.file("ticks.txt", "1")
    world.pipeline()
    world.file("ticks.txt", "2")
    world.run_again("ingest_ticks")
    world.file("ticks.txt", "1")
    found = world.run_again("ingest_ticks")
    assert world.lake["ticks"].count() == 2
    assert (found.keys, found.unchanged) == (1, 1)
    return found


@case("File written again")
def _(world: World) -> Any:
    world.pipeline()
    os.utime(world.folder / "visits/a.csv", (1, 1))
    found = world.run_again("ingest_visits")
    assert world.lake["visits"].count() == 1
    return found


@case("File renamed")
def _(world: World) -> Any:
    world.pipeline()
    (world.folder / "visits/a.csv").rename(world.folder / "visits/b.csv")
    found = world.run_again("ingest_visits")
    assert world.lake["visits"].count() == 1
    return found


@case("File of equal content")
def _(world: World) -> Any:
    world.pipeline()
    world.file("visits/b.csv", "shop,n\nOslo,10\n")
    found = world.run_again("ingest_visits")
    assert world.lake["visits"].count() == 2
    return found


@case("File gone")
def _(world: World) -> Any:
    world.pipeline()
    world.file("visits/b.csv", "shop,n\nRome,5\n")
    world.run_again("ingest_visits")
    (world.folder / "visits/b.csv").unlink()
    found = world.run_again("ingest_visits")
    assert world.lake["visits"].count() == 2
    return found


@case("File emptied")
def _(world: World) -> Any:
    world.pipeline()
    world.file("visits/b.csv", "shop,n\nRome,5\n")
    world.run_again("ingest_visits")
    world.file("visits/b.csv", "")
    found = world.run_again("ingest_visits")
    assert world.lake["visits"].count() == 2
    return found


@case("Replaced by a later file")
def _(world: World) -> Any:
    world.pipeline()
    world.file("orders/b.csv", "id,price\n1,9.50\n")
    world.run_again("ingest_orders")
    world.file("orders/a.csv", "id,price\n1,1.60\n2,2.50\n3,3.50\n")
    found = world.run_again("ingest_orders")
    assert world.lake["orders"].get([1])["price"].to_pylist() == ["9.50"]
    return found


@case("Older snapshot")
def _(world: World) -> Any:
    world.pipeline()
    world.file("stock/b.csv", "item,n\nnut,3\n")
    world.run_again("ingest_stock")
    world.file("stock/a.csv", "item,n\nnut,1\nbolt,5\n")
    found = world.run_again("ingest_stock")
    assert world.lake["stock"].to_arrow().to_pylist() == [{"item": "nut", "n": 3}]
    return found


@case("File changed, without a key")
def _(world: World) -> Any:
    world.pipeline()
    world.file("visits/a.csv", "shop,n\nOslo,11\nRome,5\n")
    world.run_again("ingest_visits", is_refused=True)
    assert world.lake["visits"].count() == 1
    return None


@case("Removed from the pipeline")
def _(world: World) -> Any:
    world.pipeline()
    text = PIPELINE.replace('        fm.Source(visits, files="visits/*.csv"),\n', "")
    world.file("pipeline.py", text)
    found = world.run_again()
    assert world.lake["visits"].count() == 1
    return found


# The page


def test_every_row_has_a_case_and_every_case_a_row():
    assert [row.name for row in rows()] == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_row_is_shown_where_the_page_says(row: Row, world: World):
    found = CASES[row.name](world)
    printed = "\n".join(world.printed)
    for text in quoted(row.promised["prints"]):
        assert text in printed, printed
    if row.promised["status"] != NOTHING:
        world.file("floodmark.toml", 'lake = "lake"\npipeline = "pipeline.py"\n')
        if not (world.folder / "pipeline.py").exists():
            world.file("pipeline.py", "import floodmark as fm\n\npipeline = fm.Pipeline([])\n")
        world.printed.clear()
        sys.modules.pop("pipeline", None)
        world.call("status")
        world.call("status", "--json")
        for text in quoted(row.promised["status"]):
            assert text in " ".join("".join(world.printed).split()), world.printed
    if row.promised["log"] != NOTHING:
        logged = "\n".join(entry.summary for dataset in world.lake for entry in dataset.log())
        for text in quoted(row.promised["log"]):
            assert text in logged, logged
    for text in quoted(row.promised["python"]):
        _, _, attribute = text.rpartition(".")
        assert getattr(found, attribute), found
