"""The page of the example with flights tells the truth, with one of fifty flights."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from examples.here import run_file

EXAMPLE = ROOT / "examples" / "flights"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_page_of_the_example_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "deliveries", raising=False)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    assert run_file("deliveries.py", "--months", "2", "--every", "50")[0] == 0
    run_page(tmp_path / "README.md")
