"""The operations page tells the truth: its commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import ROOT, blocks, run_page
from floodmark.lake import Lake


def test_the_operations_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    Lake("lake").create("one")
    page = ROOT / "docs" / "operations.md"
    assert any("floodmark gc" in block.text for block in blocks(page))
    run_page(page)
