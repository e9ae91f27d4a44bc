"""The page about Spark jobs tells the truth: its code runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import ROOT, run_page


@pytest.mark.spark
def test_spark_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark):
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / "spark.md")
