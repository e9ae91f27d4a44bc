"""The example of transforms works as its page says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from examples.here import run_file

EXAMPLE = ROOT / "examples" / "transforms"


@pytest.mark.slow
def test_the_page_of_the_example_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    assert run_file("make_readings.py")[0] == 0
    run_page(tmp_path / "README.md")
