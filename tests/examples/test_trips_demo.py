"""The demo of the trips works, and says so when it does not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from examples.here import execute

TRIPS = Path(__file__).parent.parent.parent / "examples" / "trips"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for module in ("demo", "stage", "make_data"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(TRIPS))
    import demo

    return demo


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (lambda stage: stage.run("floodmark no-such-verb"), "ended with exit code 2, not 0"),
        (lambda stage: stage.run("floodmark --help", expect=3), "ended with exit code 0, not 3"),
        (lambda stage: stage.check("two is three", 2 == 3), "this should hold and does not: two is three"),
    ],
)
def test_a_step_that_is_off_ends_the_demo_with_an_error(demo, step, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.Demo, "steps", lambda self: [lambda: step(self.stage)])
    monkeypatch.setattr(sys, "argv", ["demo.py", "--folder", str(tmp_path)])
    assert demo.main() == 1
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert "steps passed" not in captured.out


@pytest.mark.spark
def test_the_demo_plays_to_its_end(demo, tmp_path, monkeypatch, capsys, spark):
    """With its commands in this process."""
    monkeypatch.setattr(demo.Stage, "execute", lambda stage, command: execute(command, stage.folder))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--folder", str(tmp_path)])
    monkeypatch.setenv("FLOODMARK_LAKE", "demo-lake")
    code = demo.main()
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "All 10 steps passed" in shown.out
    assert (tmp_path / "demo-lake" / "names" / "trips").is_file()


@pytest.mark.slow
def test_the_data_is_the_same_every_time(demo, tmp_path):
    from make_data import main

    for name in ("one", "two"):
        main(tmp_path / name)
    names = [path.name for path in sorted((tmp_path / "one").iterdir())]
    assert names == ["2026-01.csv", "2026-02.csv", "2026-03.parquet", "2026-04.csv", "late.csv"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
