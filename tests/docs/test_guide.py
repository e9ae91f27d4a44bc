"""The guide's pages tell the truth: their code runs and their commands print what is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from docs.pages import ROOT, Block, blocks, fits, run_commands, run_page
from floodmark import Lake

DOCS = ROOT / "docs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]  # the next page may have a module of this name


@pytest.mark.spark
def test_start_page(folder: Path, monkeypatch: pytest.MonkeyPatch, spark, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_page(DOCS / "start.md")
    assert "avg(fare)" in capsys.readouterr().out


@pytest.mark.spark
def test_ledger_page(folder: Path, spark):
    (folder / "zones.csv").write_text("zone,name\n1,Airport\n2,Harbour\n")
    run_page(DOCS / "ledger.md")


@pytest.mark.spark
def test_keyed_page(folder: Path, spark):
    (folder / "monday.csv").write_text("shop,item,price\n1,nut,5\n1,bolt,6\n2,nut,7\n")
    (folder / "tuesday.csv").write_text("shop,item,price\n1,nut,5\n1,bolt,8\n2,screw,1\n")
    run_page(DOCS / "keyed.md")


def test_threats_page(folder: Path, capsys: pytest.CaptureFixture[str]):
    run_page(DOCS / "threats.md")
    assert "some of the records 0 to 999 cannot be read" in capsys.readouterr().out


@pytest.mark.slow
def test_columns_page(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    run_page(DOCS / "columns.md")


@pytest.mark.slow
def test_transforms_page(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    run_page(DOCS / "transforms.md")


@pytest.mark.slow
def test_provenance_page(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    run_page(DOCS / "provenance.md")


@pytest.mark.spark
def test_views_page(folder: Path, monkeypatch: pytest.MonkeyPatch, spark):
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    run_page(DOCS / "views.md")


@pytest.mark.spark
def test_timeline_page(folder: Path, monkeypatch: pytest.MonkeyPatch, spark):
    monkeypatch.setenv("COLUMNS", "80")
    run_page(DOCS / "timeline.md")
    assert (folder / "morning.svg").read_text("utf-8").startswith("<svg ")


def test_format_page(folder: Path):
    (folder / "one.csv").write_text("n\n1\n2\n")
    lake = Lake("lake")
    lake.create("one").write("one.csv")
    run_page(DOCS / "format.md")


def _tree() -> str:
    (tree,) = re.findall(r"^```\n(lake/\n.*?)^```$", (DOCS / "format.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return tree


def test_the_tree_of_the_format_page_is_what_a_lake_has(folder: Path):
    (folder / "one.csv").write_text("n\n1\n2\n")
    Lake("lake").create("one").write("one.csv")
    tree = _tree()
    folders = {path.name for path in [*Path("lake").iterdir(), *Path("lake").glob("datasets/*/*")] if path.is_dir()}
    assert {"names", "blocks", "data", "refs", "info"} <= folders
    assert [name for name in sorted(folders) if not re.search(rf"^ +{re.escape(name)}/", tree, re.MULTILINE)] == []


def test_the_tree_of_the_format_page_has_all_that_is_derived(folder: Path):
    people = Lake("lake").create("people", key="id")
    for city in ("Oslo", "Rome"):
        people.write(pa.table({"id": [1], "city": [city]}))
    people.fold()
    tree = _tree()
    (info,) = Path("lake").glob("datasets/*/info")
    folders = {str(path.parent.relative_to(info)) for path in info.rglob("*") if path.is_file()}
    assert folders == {"index", "keys/files", "keys/manifests", "rows", "fold", "fold/files"}
    assert [name for name in sorted(folders) if f"\n      {name}/" not in tree] == []
    endings = {path.suffix for path in (info / "keys/files").iterdir()}
    assert [ending for ending in sorted(endings) if f"({ending})" not in tree] == []


def test_the_tree_of_the_format_page_has_all_that_a_timeline_has(folder: Path):
    ticks = Lake("lake").create("ticks", event_time="at", partition_by="day", row_group_size=4, late_merge="always")
    for times in ([1, 2, 3, 4], [2, 3]):
        ticks.write(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))}))
    tree = _tree()
    (info,) = Path("lake").glob("datasets/*/info/timeline")
    found = {path.relative_to(info).parts[0] for path in info.rglob("*") if path.is_file() and path.name[0] != "."}
    assert found == {"root", "manifests", "files", "replaced"}
    assert [name for name in sorted(found) if f"\n      timeline/{name}" not in tree] == []


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *ROOT.glob("examples/*/README.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_a_page_whose_output_differs_is_found(folder: Path):
    (folder / "lake/names").mkdir(parents=True)
    page = folder / "page.md"
    page.write_text("text\n\n```console\n$ floodmark list --json\n{}\n```\n")
    (block,) = blocks(page)
    assert block == Block("console", "$ floodmark list --json\n{}\n", 3)
    with pytest.raises(AssertionError, match="printed"):
        run_commands(block, page)


def test_a_block_that_names_a_file_is_that_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    page = folder / "page.md"
    page.write_text("```python\n# seven.py\nN = 7\n```\n\n```python\nfrom seven import N\nassert N == 7\n```\n")
    run_page(page)
    assert (folder / "seven.py").read_text() == "# seven.py\nN = 7\n"
    page.write_text(page.read_text().replace("N == 7", "N == 8"))
    with pytest.raises(AssertionError):
        run_page(page)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a … c\n", "a b b c", True),
        ("a … c\n", "a b d", False),
        ("a\n", "a\nb\n", False),
        ("a.c", "abc", False),
    ],
)
def test_an_ellipsis_stands_for_anything_in_one_line(shown: str, printed: str, same: bool):
    assert fits(shown, printed) is same
