"""The example of Spark's own pipelines prints what its page shows: each record once, whatever runs again."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import ROOT

EXAMPLE = ROOT / "examples" / "spark_pipelines"
PATIENCE = 1500


def _python() -> str | None:
    """A Python with the packages of Spark Connect: this one, or that in FLOODMARK_THEIRS/pipelines."""
    theirs = Path(os.environ.get("FLOODMARK_THEIRS", "/nowhere")) / "pipelines" / "bin" / "python"
    if theirs.exists():
        return str(theirs)
    return sys.executable if importlib.util.find_spec("grpc") and importlib.util.find_spec("grpc_status") else None


def _shown() -> str:
    blocks = re.findall(r"^```text\n(.*?)^```", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(blocks[-1])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.skipif(_python() is None, reason="needs pyspark[pipelines], here or in FLOODMARK_THEIRS/pipelines")
def test_each_record_comes_once_into_tables_and_the_dataset(tmp_path: Path) -> None:
    command = [_python() or "", str(EXAMPLE / "twice.py"), str(tmp_path / "project")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout == _shown()


def test_the_page_of_spark_shows_the_flows_of_the_example() -> None:
    """The definitions are on the page, too, without what only a program needs."""
    page = (ROOT / "docs" / "spark.md").read_text("utf-8")
    flows = re.findall(r"return (spark\..*)", (EXAMPLE / "flows.py").read_text("utf-8"))
    assert len(flows) == 3
    assert [flow for flow in flows if flow not in page] == []
