"""The page on pipelines tells the truth."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks, run_page

PAGE = ROOT / "docs" / "pipelines.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
def test_pipelines_page(folder: Path):
    (folder / "data").mkdir()
    (folder / "data" / "monday.csv").write_text("id,price\n1,1.5\n2,12.0\n")
    run_page(PAGE)


def test_the_toml_of_the_page_is_taken(folder: Path):
    from floodmark.pipeline.project import load_settings

    (toml,) = [block.text for block in blocks(PAGE) if block.language == "toml"]
    (folder / "floodmark.toml").write_text(toml)
    assert tomllib.loads(toml)["lake"] == "lake"
    assert load_settings(folder).defaults.workers == 4
    assert load_settings(folder).spark == {"spark.master": "local[4]"}
