"""What a user gets wrong is one error with file and line, before anything runs: nothing in the lake is touched."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.conftest import invoke, project
from cli.user import objects
from transforms.worlds import in_this_process

REFUSED = 1

GOOD = """\
import pyarrow as pa

from floodmark import BatchTransform, DatasetSpec, Pipeline, Source

sales = DatasetSpec("sales", key="id")
copies = DatasetSpec("copies", key="id")


def copy(sales: pa.Table) -> pa.Table:
    return sales.select(["id", "price"])


pipeline = Pipeline(
    [
        Source(sales, files="data/*.csv"),
        BatchTransform(copy, [sales], [copies]),
    ]
)
"""


@dataclass(frozen=True)
class Mistake:
    """What is changed in the file, to what, the line that is to be named then, and what is to be said."""

    there: str
    wrong: str
    line: int
    said: str


STEP = "BatchTransform(copy, [sales], [copies]),"
UNDONE = "BatchTransform(copy, ['back'], [copies]),\n        BatchTransform(copy, [copies], ['back'], name='undo'),"
TWICE = f"{STEP}\n        BatchTransform(copy, [sales], [copies], name='again'),"
SALES, COPIES = 'DatasetSpec("sales", key="id")', 'DatasetSpec("copies", key="id")'
MISTAKES = {
    "cycle": Mistake(STEP, UNDONE, 16, "a cycle: copy → copies → undo → back → copy"),
    "unknown dataset": Mistake(
        "[sales], [", "['slaes'], [", 16, "there is no dataset 'slaes', which step 'copy' reads"
    ),
    "two writers": Mistake(STEP, TWICE, 17, "'copies'"),
    "changed key": Mistake(SALES, 'DatasetSpec("sales", key="shop")', 5, "dataset 'sales' exists with"),
    "changed key of a step": Mistake(
        COPIES, 'DatasetSpec("copies", key="price")', 6, "exists with the key id, not price"
    ),
    "changed merge": Mistake(
        SALES, 'DatasetSpec("sales", key="id", merge="snapshot")', 5, "dataset 'sales' exists with"
    ),
    "syntax": Mistake("pipeline = Pipeline(", "pipeline = = Pipeline(", 13, "invalid syntax"),
    "import": Mistake("import pyarrow as pa", "import pyarow as pa", 1, "No module named 'pyarow'"),
    "error": Mistake("sales = Dataset", "print(1 / 0)\nsales = Dataset", 5, "ZeroDivisionError: division by zero"),
    "no outputs": Mistake("[sales], [copies]", "[sales], []", 16, "output"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """A project that has run, without a mistake so far."""
    folder = tmp_path_factory.mktemp("user") / "shop"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "one.csv").write_text("id,shop,price\n1,Oslo,2.5\n2,Rome,3.5\n")
    (folder / "pipeline.py").write_text(GOOD)
    with project(folder), in_this_process():
        assert invoke("init").code == 0
        ran = invoke("run")
    assert ran.code == 0, ran.err
    (folder / "data" / "two.csv").write_text("id,shop,price\n3,Oslo,4.5\n")  # there is something to do
    return folder


@pytest.fixture
def shop(good: Path, folder: Path):
    """A copy of the project, which is the current folder."""
    copy = shutil.copytree(good, folder / "shop")
    with project(copy):
        yield copy


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_one_error_with_file_and_line_before_anything_runs(run, shop, mistake):
    made = MISTAKES[mistake]
    assert GOOD.count(made.there) == 1
    (shop / "pipeline.py").write_text(GOOD.replace(made.there, made.wrong))
    before = objects(shop / "lake")
    said = run("run")
    assert (said.code, said.out) == (REFUSED, "")
    first, *rest = said.err.splitlines()
    assert first.startswith(f"error: {shop / 'pipeline.py'}, line {made.line}: ")
    assert made.said in first
    assert rest, "what to do is said, too"
    assert all(one.startswith("  ") for one in rest), said.err
    assert objects(shop / "lake") == before


def test_all_that_is_wrong_is_said_at_once(run, shop):
    text = GOOD
    for made in (MISTAKES["changed key"], MISTAKES["changed key of a step"]):
        text = text.replace(made.there, made.wrong)
    (shop / "pipeline.py").write_text(text)
    before = objects(shop / "lake")
    said = run("run", "--json")
    assert (said.code, said.err) == (REFUSED, "")
    error = said.json["error"]
    assert error["type"] == "BadPipeline"
    assert "pipeline.py, line 5: " in error["message"]
    assert "pipeline.py, line 6: " in error["message"]
    assert objects(shop / "lake") == before


def test_file_that_is_not_there_is_named(run, shop):
    (shop / "pipeline.py").unlink()
    (shop / "floodmark.toml").write_text('lake = "lake"\npipeline = "pipeline.py"\n')
    before = objects(shop / "lake")
    said = run("run")
    assert (said.code, said.out) == (REFUSED, "")
    assert said.err.startswith(f"error: {shop / 'pipeline.py'} does not exist")
    assert objects(shop / "lake") == before


def test_file_without_a_pipeline_is_named_and_what_it_has_instead(run, shop):
    (shop / "pipeline.py").write_text(GOOD.replace("pipeline = Pipeline", "line = Pipeline"))
    before = objects(shop / "lake")
    said = run("run")
    assert (said.code, said.out) == (REFUSED, "")
    assert said.err.startswith(f"error: {shop / 'pipeline.py'}")
    assert "has no `pipeline`, but `line`" in said.err
    assert objects(shop / "lake") == before


def test_file_without_a_mistake_runs(run, shop):
    ran = run("run")
    assert ran.code == 0
    assert "copy: 1 key processed" in ran.out
