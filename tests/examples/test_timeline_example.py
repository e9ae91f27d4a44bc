"""The example of a timeline works as its page says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from examples.here import run_file

EXAMPLE = ROOT / "examples" / "timeline"


@pytest.mark.slow
def test_the_page_of_the_example_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    assert run_file("make_late_readings.py")[0] == 0
    run_page(tmp_path / "README.md")
    assert (tmp_path / "readings.svg").read_text("utf-8").startswith("<svg ")
