"""The guide's pages tell the truth: their code runs and their commands print what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import ROOT, Block, blocks, fits, run_commands, run_page
from floodmark import Lake

DOCS = ROOT / "docs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    return tmp_path


@pytest.mark.spark
def test_ledger_page(folder: Path, spark):
    (folder / "zones.csv").write_text("zone,name\n1,Airport\n2,Harbour\n")
    run_page(DOCS / "ledger.md")


def test_format_page(folder: Path):
    (folder / "one.csv").write_text("n\n1\n2\n")
    lake = Lake("lake")
    lake.create("one").write("one.csv")
    run_page(DOCS / "format.md")


def test_the_tree_of_the_format_page_is_what_a_lake_has(folder: Path):
    (folder / "one.csv").write_text("n\n1\n2\n")
    Lake("lake").create("one").write("one.csv")
    (tree,) = re.findall(r"^```\n(lake/\n.*?)^```$", (DOCS / "format.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    folders = {path.name for path in [*Path("lake").iterdir(), *Path("lake").glob("datasets/*/*")] if path.is_dir()}
    assert {"names", "blocks", "data", "refs", "info"} <= folders
    assert [name for name in sorted(folders) if not re.search(rf"^ +{re.escape(name)}/", tree, re.MULTILINE)] == []


def test_links_between_pages_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *ROOT.glob("examples/*/README.md")]
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
