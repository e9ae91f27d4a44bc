"""Run commands like a shell, each in a separate process: their time, and the processes that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from measuring import environment

START = "from floodmark.cli import main; main()"
WITNESS = """
import atexit, json, sys
_STARTS = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")
_started = []
sys.addaudithook(lambda event, args: _started.append([event, repr(args)[:200]]) if event in _STARTS else None)
def _record():
    modules = sorted(name for name in ("pyspark", "py4j", "jpype") if name in sys.modules)
    with open({path!r}, "w") as file:
        json.dump({{"started": _started, "modules": modules}}, file)
atexit.register(_record)
"""
"""A sitecustomize module that records the processes that Python starts (by audit events) and imported Spark modules."""


@dataclass(frozen=True)
class Took:
    """The time of a command: wall clock, and CPU including child processes."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Witnessed:
    """The processes that a command started, and the Spark modules that it imported."""

    started: tuple[str, ...]
    modules: tuple[str, ...]


def took(arguments: Sequence[str], folder: Path) -> Took:
    """Run `floodmark …` in a folder, once."""
    quiet = subprocess.DEVNULL
    began = time.perf_counter()
    process = subprocess.Popen(_command(arguments), cwd=folder, env=_variables(), stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"floodmark {' '.join(arguments)} ended with {process.returncode}")
    return Took(wall, usage.ru_utime + usage.ru_stime)


def typical(arguments: Sequence[str], folder: Path, repeats: int) -> Took:
    """The medians of several runs, each in a separate process, after a warm-up run."""
    took(arguments, folder)
    runs = [took(arguments, folder) for _ in range(repeats)]
    return Took(median(one.wall for one in runs), median(one.cpu for one in runs))


def witnessed(arguments: Sequence[str], folder: Path) -> Witnessed:
    """Run `floodmark …` in a folder, and record the processes that it starts."""
    return _witnessed(_command(arguments), folder)


def check_witness(folder: Path) -> None:
    """Check that the recording works: it must see a process that is known to start."""
    seen = _witnessed([sys.executable, "-c", "import subprocess; subprocess.run(['true'])"], folder)
    assert any("subprocess.Popen" in one for one in seen.started), seen


def _witnessed(command: Sequence[str], folder: Path) -> Witnessed:
    with TemporaryDirectory() as temporary:
        output = Path(temporary) / "recorded.json"
        (Path(temporary) / "sitecustomize.py").write_text(WITNESS.format(path=str(output)))
        variables = _variables()
        variables["PYTHONPATH"] = os.pathsep.join([temporary, variables["PYTHONPATH"]])
        subprocess.run(command, cwd=folder, env=variables, capture_output=True, check=True)
        recorded = json.loads(output.read_text())
    return Witnessed(tuple(f"{event} {what}" for event, what in recorded["started"]), tuple(recorded["modules"]))


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", START, *arguments]


def _variables() -> dict[str, str]:
    """The environment with the packages of this process, without the modules of the benchmarks."""
    bench = str(Path(__file__).parent)
    return environment([folder for folder in sys.path if folder and folder != bench])
