"""`make docs` makes the whole site, without the network, and refuses links that lead nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import docs_site
from docs.pages import ROOT
from waiting import PATIENCE


def html(page: Path) -> str:
    return page.read_text("utf-8")


@pytest.mark.slow
def test_the_site_is_whole_and_needs_no_network(tmp_path: Path):
    command = [sys.executable, str(ROOT / "tools" / "docs_site.py"), "--stage", str(tmp_path / "stage")]
    command += ["--site", str(tmp_path / "site")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert run.returncode == 0, run.stdout + run.stderr
    site = tmp_path / "site"
    assert missing_pages(site) == []
    assert what_is_fetched(site) == []
    assert 'id="batchtransform"' in html(site / "reference" / "transforms.html")
    assert 'id="verb-why"' in html(site / "reference" / "cli.html")
    assert "--lake" in html(site / "reference" / "cli.html")
    assert "–lake" not in html(site / "reference" / "cli.html")  # options are shown as they are typed
    for page in ("index", "ledger", "keyed", "transforms", "columns", "views", "timeline", "pipelines", "provenance"):
        (picture, *_) = re.findall(r'<img[^>]* src="([^"]+\.svg)"', html(site / f"{page}.html"))
        assert (site / picture).is_file()


def missing_pages(site: Path) -> list[str]:
    """Pages that are not there, or not in the menu."""
    pages = [str(place.with_suffix(".html")) for place in docs_site.sources().values()]
    pages += ["reference/cli.html", "reference/datasets.html", "examples/index.html"]
    menu = html(site / "index.html").partition('class="sidebar-tree"')[2]
    linked = {*re.findall(r'href="([^"#]+\.html)"', menu), "index.html"}
    return [page for page in pages if page not in linked or not (site / page).is_file()]


def what_is_fetched(site: Path) -> list[str]:
    """Pages and styles that load something from elsewhere."""
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//')
    styles = re.compile(r"@import|url\([\"']?(?:https?:)?//")
    found = [page for page in site.rglob("*.html") if loads.search(html(page))]
    return [str(file) for file in (*found, *(sheet for sheet in site.rglob("*.css") if styles.search(html(sheet))))]


def test_what_is_fetched_from_elsewhere_is_found(tmp_path: Path):
    (tmp_path / "one.html").write_text('<a href="https://example.org">a link is none</a><script src="one.js"></script>')
    (tmp_path / "one.css").write_text("a { background: url(one.svg) }")
    assert what_is_fetched(tmp_path) == []
    (tmp_path / "two.html").write_text('<script async src="https://example.org/two.js"></script>')
    (tmp_path / "two.css").write_text("@font-face { src: url('//example.org/font.woff2') }")
    assert what_is_fetched(tmp_path) == [str(tmp_path / "two.html"), str(tmp_path / "two.css")]


def test_a_link_that_leads_nowhere_ends_it(tmp_path: Path):
    stage = docs_site.Stage(tmp_path)
    with pytest.raises(SystemExit, match=r"docs/ledger\.md: the link 'nowhere\.md' has no target"):
        stage.place_of(ROOT / "docs" / "ledger.md", "nowhere.md")


def test_links_lead_to_the_same_things_from_the_site(tmp_path: Path):
    stage = docs_site.Stage(tmp_path)
    assert stage.place_of(ROOT / "docs" / "ledger.md", "keyed.md") == Path("keyed.md")
    assert stage.place_of(ROOT / "docs" / "ledger.md", "../examples/views") == Path("examples/views.md")
    assert stage.place_of(ROOT / "examples" / "views" / "README.md", "../../docs/views.md") == Path("views.md")
    assert stage.place_of(ROOT / "docs" / "ledger.md", "../CONTRIBUTING.md") == Path("contributing.md")
    program = stage.place_of(ROOT / "docs" / "ledger.md", "../examples/views/daily.sql")
    assert (tmp_path / program).read_bytes() == (ROOT / "examples" / "views" / "daily.sql").read_bytes()


@pytest.mark.slow
def test_an_anchor_that_is_not_there_ends_it(tmp_path: Path):
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "conf.py").write_text(
        (ROOT / "docs" / "conf.py").read_text("utf-8").replace('["site.css"]', "[]"), "utf-8"
    )
    page = tmp_path / "stage" / "index.md"
    page.write_text("# One\n\n[there](#two)\n\n## Two\n")
    assert docs_site.make(tmp_path / "stage", tmp_path / "site") == 0
    page.write_text("# One\n\n[not there](#three)\n\n## Two\n")
    assert docs_site.make(tmp_path / "stage", tmp_path / "site") != 0
