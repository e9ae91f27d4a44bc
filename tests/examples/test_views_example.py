"""The example of views works as its page says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from examples.here import run_file

EXAMPLE = ROOT / "examples" / "views"


@pytest.mark.spark
def test_the_page_of_the_example_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    assert run_file("make_flights.py")[0] == 0
    try:
        run_page(tmp_path / "README.md")
    finally:
        sys.modules.pop("stars", None)
