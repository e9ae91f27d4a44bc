"""Run a benchmark in a separate process, and record its results or its failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from summary.figures import Measured
from summary.machine import load_average, this_machine
from summary.programs import Program

State = Literal["ran", "failed", "timed out"]

_LAST_LINES = 12


@dataclass(frozen=True)
class Record:
    """One run of a benchmark: its results or its failure, the time, the duration, and the load of the machine."""

    bench: str
    scale: str
    state: State
    measured: Measured | None
    why: str
    began: str
    seconds: float
    load: tuple[float, float, float]
    machine: str

    def document(self) -> dict[str, Any]:
        """The record as a JSON document."""
        measured = None if self.measured is None else self.measured.document()
        return {**vars(self), "measured": measured, "load": list(self.load)}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Record:
        """The record from a JSON document; the inverse of `document`."""
        measured = None if document["measured"] is None else Measured.of(document["measured"])
        return Record(**{**document, "measured": measured, "load": tuple(document["load"])})


def run(program: Program, scale: str, sizes: Mapping[str, int], folder: Path, timeout: float) -> Record:
    """Run a benchmark. Its output is written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    result, printed = folder / f"{program.name}.measured.json", folder / f"{program.name}.txt"
    result.unlink(missing_ok=True)
    began, load, clock = datetime.now(UTC), load_average(), time.monotonic()
    command = [sys.executable, str(program.path), *program.flags(sizes), "--json", str(result)]
    state: State = "ran"
    # A new session and a temporary folder: after a timeout, all its processes are killed and its files are deleted.
    with (
        printed.open("w") as output,
        TemporaryDirectory(prefix="floodmark-bench-", ignore_cleanup_errors=True) as temporary,
    ):
        variables = {**os.environ, "TMPDIR": temporary}
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=variables
        )
        try:
            code = process.wait(timeout)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            state, code = "timed out", -1
    measured, why = None, f"after {timeout:,.0f} s"
    if state == "ran":
        measured, why = _read(result), ""
        if measured is None:  # a benchmark that misses a bar also exits with 1, but it writes results
            state, why = "failed", f"ended with {code}: {_last_lines(printed)}"
    result.unlink(missing_ok=True)
    took = round(time.monotonic() - clock, 1)
    at = began.isoformat(timespec="seconds")
    return Record(program.name, scale, state, measured, why, at, took, load, this_machine().text)


def _read(result: Path) -> Measured | None:
    return Measured.of(json.loads(result.read_text(encoding="utf-8"))) if result.exists() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes of its session."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_lines(printed: Path) -> str:
    lines = [line.strip() for line in printed.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])[-600:] or "it printed nothing"
