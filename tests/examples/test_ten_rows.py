"""The example with ten rows works, and prints what its page shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs.pages import ROOT, run_page
from examples.here import run_file

EXAMPLE = ROOT / "examples" / "ten_rows"
LONGEST = 120


@pytest.mark.slow
def test_the_page_shows_what_the_program_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", "/nowhere")  # no JVM could be started
    run_page(tmp_path / "README.md")
    shown = re.search(r"^```text\n(.*?)^```", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert capfd.readouterr().out == shown[1]


@pytest.mark.spark
def test_a_view_and_a_frame_of_spark_come_of_it(spark):
    code, out, err = run_file(str(EXAMPLE / "ten_rows.py"), "--spark")
    assert code == 0, err
    assert "daily: [('2026-11-01', 101), ('2026-11-02', 180), ('2026-11-03', 270)]" in out


def test_it_is_short_enough_to_be_read():
    assert len((EXAMPLE / "ten_rows.py").read_text("utf-8").splitlines()) <= LONGEST
