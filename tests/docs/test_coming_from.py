"""The pages for those who come from elsewhere tell the truth: our code runs, and theirs does where it can be had.

Blocks of theirs are marked in the fence, ```python theirs. Datapipe, dbt and Geneva do not go beside our packages: give
the folder of an environment of each (datapipe, dbt, geneva) in FLOODMARK_THEIRS, and their blocks are run, too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from jinja2 import Environment, StrictUndefined

from docs.pages import ROOT, run_page, run_page_without_a_jvm
from floodmark.chain import events
from waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ROOT / "docs" / "coming-from"
NAMES = ("datapipe", "dbt", "structured-streaming", "kamu", "geneva")
_THEIRS = re.compile(r"^```(?P<language>\w+) theirs\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|--) (?P<path>[\w/]+\.\w+)\n")


@dataclass(frozen=True)
class Theirs:
    """A block of code for another tool; `file` is where it belongs, if it says so."""

    language: str
    text: str
    file: str | None


def theirs(page: str) -> list[Theirs]:
    found = _THEIRS.finditer((PAGES / f"{page}.md").read_text("utf-8"))
    files = [(match, _FILE.match(match["text"])) for match in found]
    return [Theirs(match["language"], match["text"], file["path"] if file else None) for match, file in files]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]  # the next page may have a module of this name


@pytest.mark.process
@pytest.mark.parametrize("page", ["datapipe", "geneva"])
def test_our_side_runs_without_a_jvm(folder: Path, page: str):
    # A process of its own is needed anyway: once imported, Lance warns of every fork, and here warnings are errors.
    run_page_without_a_jvm(PAGES / f"{page}.md")


@pytest.mark.spark
@pytest.mark.parametrize("page", ["dbt", "structured-streaming", "kamu"])
def test_our_side_runs(folder: Path, spark: SparkSession, page: str):
    run_page(PAGES / f"{page}.md")


@pytest.mark.spark
def test_their_side_of_the_page_on_structured_streaming_runs(folder: Path, spark: SparkSession):
    (query,) = theirs("structured-streaming")
    page = (PAGES / "structured-streaming.md").read_text("utf-8")
    given = page[page.index("```python\n") + len("```python\n") :]
    given = given[: given.index("```")]  # the files that both sides read
    exec(compile(given + query.text, "structured-streaming.md", "exec"), {"__name__": "__main__"})  # noqa: S102


@pytest.mark.parametrize("page", NAMES)
def test_their_code_is_code(page: str):
    for block in theirs(page):
        if block.language == "python":
            compile(block.text, f"{page}.md", "exec")
        elif block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict)
        else:
            assert block.language in ("sql", "console")


@pytest.mark.parametrize("page", NAMES)
def test_a_page_has_both_sides_one_after_the_other(page: str):
    text = (PAGES / f"{page}.md").read_text("utf-8")
    headings = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    at = headings.index("In Floodmark")
    assert headings[at - 2] == "The same task in both"
    assert headings[at - 1].startswith("In ")
    assert headings[-1] == "How to move over"
    assert re.search(r"^## What .+ (has|have) and Floodmark has not$", text, re.MULTILINE)
    assert theirs(page)


@pytest.mark.parametrize("page", [*NAMES, "index"])
def test_links_of_the_pages_lead_somewhere(page: str):
    text = (PAGES / f"{page}.md").read_text("utf-8")
    links = re.findall(r"\]\((?!https?://)([^)#]+)(?:#([^)]+))?\)", text)
    assert links
    for target, anchor in links:
        there = (PAGES / target).read_text("utf-8")
        anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", there, re.M)}
        assert not anchor or anchor in anchors, f"{page}.md: {target}#{anchor}"


def _dbt_sql(is_incremental: bool) -> str:
    """The model's SQL, as dbt's templates would make it."""
    (model,) = [block for block in theirs("dbt") if block.language == "sql"]
    given: dict[str, Any] = {
        "config": lambda **_: "",
        "source": lambda _, table: table,
        "is_incremental": lambda: is_incremental,
        "this": "daily",
    }
    return Environment(undefined=StrictUndefined, autoescape=False).from_string(model.text).render(given)


def test_the_sql_of_the_dbt_model_misses_the_late_row_as_the_page_says():
    """A stand-in for dbt's materialization: what its filter selects replaces the rows with the same unique key."""
    with duckdb.connect() as shop:
        shop.execute("create table orders (id bigint, day date, price double)")
        shop.execute("insert into orders values (1, '2026-11-14', 10.0), (2, '2026-11-15', 20.0)")
        shop.execute("create table daily as " + _dbt_sql(is_incremental=False))
        shop.execute("insert into orders values (3, '2026-11-15', 5.0), (4, '2026-11-14', 1.0)")
        shop.execute("create table fresh as " + _dbt_sql(is_incremental=True))
        shop.execute("delete from daily where day in (select day from fresh)")
        shop.execute("insert into daily from fresh")
        rows = shop.sql("select day::varchar, orders, total from daily order by day").fetchall()
    assert rows == [("2026-11-14", 1, 10.0), ("2026-11-15", 2, 25.0)]


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), name)


def test_the_manifests_for_kamu_are_events_of_the_standard():
    seen = set()
    for block in theirs("kamu"):
        if block.language == "yaml":
            manifest = yaml.safe_load(block.text)
            assert (manifest["kind"], manifest["version"]) == ("DatasetSnapshot", 1)
            assert manifest["content"]["kind"].upper() in events.DatasetKind.__members__
            for event in manifest["content"]["metadata"]:
                type_ = getattr(events, event["kind"])
                assert {_snake(key) for key in event} - {"kind"} <= {field.name for field in fields(type_)}
                seen.add(event["kind"])
    assert seen == {"SetPollingSource", "SetTransform"}


@pytest.mark.parametrize("page", ["datapipe", "dbt", "geneva"])
def test_their_side_runs_in_an_environment_that_has_it(folder: Path, page: str):
    given = os.environ.get("FLOODMARK_THEIRS")
    bin_ = Path(given or "/nowhere") / page / "bin"
    if not (bin_ / "python").exists():
        pytest.skip(f"FLOODMARK_THEIRS names no folder with an environment {page!r}")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "DO_NOT_TRACK": "1",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    for number, block in enumerate(theirs(page)):
        if block.file is not None:
            Path(block.file).parent.mkdir(exist_ok=True)
            Path(block.file).write_text(block.text, "utf-8")
            continue
        if block.language == "python":
            Path(f"block{number}.py").write_text(block.text, "utf-8")
            commands = [["python", f"block{number}.py"]]
        else:
            commands = [shlex.split(line.removeprefix("$ ")) for line in block.text.splitlines()]
        for command in commands:
            ran = subprocess.run(
                [str(bin_ / command[0]), *command[1:]],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
            assert ran.returncode == 0, f"{shlex.join(command)}\n{ran.stdout[-3000:]}"
