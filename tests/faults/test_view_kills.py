"""Refreshes that are killed at any moment, and two at once: a reader never sees anything by halves, nothing is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compute.counting import Calls, until
from faults.test_backfill_kills import _session
from faults.view_runs import COUNTS, generation, make, problem, refresh_all


class Process:
    """A process of `faults.view_runs`, with whatever it starts itself."""

    def __init__(self, how: str, folder: Path) -> None:
        tests = str(Path(__file__).parents[1])
        with (folder / f"{how}.err").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.view_runs", how, str(folder)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])},
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the process has ended"
        return line

    def kill(self) -> None:
        """The process and all that it started end in the same moment."""
        if self._left():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)
        until(lambda: not self._left())

    def _left(self) -> bool:
        return any(_session(path) == self._process.pid for path in Path("/proc").glob("[0-9]*/stat"))


def reports(process: Process) -> dict[str, Any]:
    assert process.hear() == "begun"
    found: dict[str, Any] = json.loads(process.hear())
    return found


def assert_generation(lake: Any, number: int) -> None:
    for name in COUNTS:
        table = lake[name].to_arrow()
        assert problem(name, table) is None
        assert table["v"][0].as_py() == number
        assert lake[name].verify().problems == ()


@pytest.mark.spark
@pytest.mark.slow
def test_reader_sees_one_generation_at_any_instant_while_refreshes_are_raced_and_killed(tmp_path, session):
    chance = random.Random(2026)
    lake = make(tmp_path, session)
    newest = 1
    with ExitStack() as started:
        reader = started.enter_context(Process("read", tmp_path))
        processes = [started.enter_context(Process("refresh", tmp_path)) for _ in range(2)]
        assert [process.hear() for process in processes] == ["ready", "ready"]
        for _ in range(2):  # at once: the work is done once
            newest += 1
            generation(lake, newest)
            began = time.monotonic()
            for process in processes:
                process.tell()
            found = [reports(process) for process in processes]
            lasted = time.monotonic() - began
            for name in COUNTS:
                assert [report[name]["nothing"] for report in found].count(False) == 1, name
            assert_generation(lake, newest)
        assert set(Calls(tmp_path).count().values()) == {1}, "some rows were computed by both"
        killed = 0
        for process in processes:
            newest += 1
            generation(lake, newest)
            process.tell()
            assert process.hear() == "begun"
            time.sleep(chance.uniform(0.05, 0.5) * lasted)
            process.kill()
            killed += any(lake[name].to_arrow()["v"][0].as_py() < newest for name in COUNTS)
            refresh_all(lake, tmp_path)  # the next one makes it good, whatever the killed one held
            assert_generation(lake, newest)
            assert all(report["nothing"] for report in refresh_all(lake, tmp_path).values())
        reader.tell()
        seen = json.loads(reader.hear())
    assert seen["problems"] == []
    assert seen["looks"] > 5
    assert min(seen["latest"].values()) > newest - len(processes), "the reader saw little of it"
    assert killed, "no refresh was killed before its end"
