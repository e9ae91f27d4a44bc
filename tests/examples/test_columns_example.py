"""The example of a column that is killed halfway works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE

COLUMNS = Path(__file__).parent.parent.parent / "examples" / "columns"


@pytest.mark.process
def test_a_killed_backfill_goes_on(tmp_path: Path):
    command = [sys.executable, str(COLUMNS / "killed.py"), "--folder", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "again: computed 0, reused 0, done before 400" in run.stdout
    assert "all checks passed" in run.stdout
