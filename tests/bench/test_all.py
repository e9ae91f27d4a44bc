"""Running benchmarks: results are kept, one that fails is noted, and the others go on."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from bench.made import record
from summary import kept, programs, running
from summary.kept import BEGIN, END

BENCH = programs.FOLDER
GOOD = """
from measuring import Curve, Figure, Line, measured
if __name__ == "__main__":
    found = lambda root, args: [Figure("bytes", "b", args.rows / 10, "d"), Figure("wrong", "w", 0, "d"),
        Figure("largest", "l", 1, "d"), Curve("k", "t", "x", "y", (Line("n", ((1, 2), (2, 3))),))]
    measured("", found, rows=10)
"""


@pytest.fixture
def benches(tmp_path, monkeypatch):
    """A folder of benchmarks that tests write, and `bench/all.py` over it."""
    folder = tmp_path / "bench"
    folder.mkdir()
    monkeypatch.setattr(programs, "FOLDER", folder)
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_all", BENCH / "all.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    few = (programs.Program("late_spread", {"rows": 10}, {"rows": 20}), programs.Program("session_start"))
    for place in (module, kept):
        monkeypatch.setattr(place, "PROGRAMS", few)
    (folder / "late_spread.py").write_text(GOOD)
    (folder / "session_start.py").write_text("raise ValueError('no such thing')")
    return module


def test_one_that_fails_is_noted_and_the_others_are_there(benches, tmp_path):
    out = tmp_path / "out"
    assert benches.main(["--output", str(out)]) == 2
    table = {(r["bench"], r["figure"]): r for r in json.loads((out / "benchmarks.json").read_text())["table"]}
    assert table["late_spread", "bytes"]["value"] == 1
    assert table["session_start", "first_result"]["detail"] == "the benchmark failed"
    assert "ValueError: no such thing" in (out / "benchmarks.md").read_text()
    assert (out / "curves" / "bench-k.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_the_exit_code_is_of_what_was_run(benches, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert benches.main(["--output", out]) == 2
    assert benches.main(["--output", out, "--only", "late_spread"]) == 0
    assert benches.main(["--output", out, "--only", "late_spread", "--full"]) == 1
    assert (
        "missed       1,000 rows over 10 row groups: bytes ÷ those row groups: 2 (at most 1.2)"
        in capsys.readouterr().out
    )
    assert benches.main(["--output", out, "--draw-only"]) == 2
    assert [(one.bench, one.scale) for one in kept.kept(Path(out))] == [
        ("late_spread", "full"),
        ("session_start", "quick"),
    ]


@pytest.mark.process
def test_one_that_takes_too_long_is_ended_with_all_that_it_started(benches, tmp_path):
    left = tmp_path / "left"
    program = "import subprocess, tempfile, time\nchild = subprocess.Popen(['sleep', '600'])\n"
    program += f"open({str(left)!r}, 'w').write(f'{{child.pid}} {{tempfile.mkdtemp()}}')\ntime.sleep(600)"
    (programs.FOLDER / "late_spread.py").write_text(program)
    for seconds in (1.0, 4.0, 16.0, 64.0):  # a loaded machine takes longer to start the child
        found = running.run(programs.Program("late_spread"), "quick", {}, tmp_path / "printed", timeout=seconds)
        assert (found.state, found.measured) == ("timed out", None)
        if left.exists() and left.read_text():
            break
    child, folder = left.read_text().split()
    while is_running(int(child)):
        time.sleep(0.01)
    assert not Path(folder).exists()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_page_gets_the_table_between_its_marks(tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Before\n\n{BEGIN}\nwhat was there\n{END}\n\nAfter.\n")
    for bench in ("ledger_read", "late_spread"):
        kept.write_page(page, [record(bench)])
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    assert "what was there" not in text
    assert "![A curve of < and &](pictures/bench-late_spread.svg)" in text
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["bench-late_spread.svg"]


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("words\n")
    with pytest.raises(SystemExit, match="add one line"):
        kept.write_page(page, [record("late_spread", bytes=1.0)])
    assert page.read_text() == "words\n"
