"""Kill a backfill and all its workers, and count the rows that the next backfill computes again.

Run: python bench/resume.py --rows 40000 --checkpoint 500
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from floodmark.engine import rounds
from floodmark.engine.session import Session
from floodmark.engine.spark_launch import Profile
from floodmark.storage.logical_hash import logical_hash
from measuring import Curve, Figure, Growth, measured
from trips import trips

ROW_SECONDS = 0.001
PERCENT = (25, 50, 75)
ADAPTIVE_ROWS = 250
"""The rows that an adaptive checkpoint should have."""
FILL = "import resume, sys; resume.fill(*sys.argv[1:])"
_LONGEST = 600.0


def slow(calls: str) -> fm.Udf:
    """A slow function that logs the number of rows of each call to a file."""

    @fm.udf(returns="float64", version="1")
    def slowly(fare: pa.Array) -> pa.Array:
        log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b"%d\n" % len(fare))
        os.close(log)
        time.sleep(len(fare) * ROW_SECONDS)
        return pc.multiply(fare, 2.0)

    return slowly


def fill(where: str, lake: str, calls: str, checkpoint: str) -> None:
    """The program of the process that is killed. With a checkpoint of 0 rows, the sizer chooses the size."""
    session = Session(profile=Profile.SHORT)
    if where == "Spark":
        rounds.LOCAL_ROWS = 0  # otherwise Spark would not run for so few rows
    size = int(checkpoint) or None
    runtime = fm.Runtime(session=session, checkpoint_seconds=(size or ADAPTIVE_ROWS) * ROW_SECONDS)
    dataset = fm.Lake(lake, runtime=runtime)["trips"]
    dataset.backfill("slow", udf=slow(calls), min_checkpoint_size=size, max_checkpoint_size=size)
    session.stop()


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    ways = {
        "processes": ("worker processes", args.checkpoint),
        "adaptive": ("worker processes", 0),
        "spark": ("Spark", args.checkpoint),
    }
    figures: list[Figure | Curve] = []
    growth = Growth(
        "resume", "A killed backfill resumed", "killed at, % of the rows", "rows again ÷ a checkpoint a core"
    )
    for key, (where, size) in ways.items():
        case = _Case(root / key, where, size, args.rows)
        for percent, value, detail in case.measure():
            name = f"killed at {percent} % in {case.what}: rows computed again ÷ one checkpoint per core"
            figures.append(Figure(f"{key}.{percent}", name, value, detail))
            growth.add(case.what, percent, value)
    return [*figures, growth.curve()]


class _Case:
    """One engine and one kind of checkpoints: an undisturbed run, and a killed run for each percentage."""

    def __init__(self, root: Path, where: str, checkpoint: int, rows: int) -> None:
        self._root, self._where, self._checkpoint, self._rows = root, where, checkpoint, rows
        self._cores = len(os.sched_getaffinity(0))

    @property
    def what(self) -> str:
        rows = self._checkpoint or ADAPTIVE_ROWS
        kind = f"checkpoints of {rows:,} rows" if self._checkpoint else f"adaptive ones of about {rows:,} rows"
        return f"{self._where}, {kind}"

    def measure(self) -> list[tuple[int, float, str]]:
        """For each percentage: the rows computed again ÷ the allowed rows, and a description."""
        dataset = fm.Lake(self._root / "fresh").create("trips", event_time="pickup_at")
        dataset.write(trips(0, self._rows))
        dataset.add_column("slow", slow(""))
        undisturbed = self._copy("undisturbed")
        self._run(undisturbed)
        assert _called(undisturbed) == self._rows
        expected = self._hash(undisturbed)
        found = []
        for percent in PERCENT:
            lake = self._copy(f"killed at {percent}")
            before = self._killed(lake, percent)
            self._run(lake)
            assert self._hash(lake) == expected
            after = _called(lake) - before
            again = before + after - self._rows
            calls = f"{before:,} of {self._rows:,} rows called before, {after:,} after, {again:,} again"
            allowed = self._cores * (self._checkpoint or ADAPTIVE_ROWS)
            found.append((percent, again / allowed, f"{calls}; the same logical hash"))
        return found

    def _copy(self, name: str) -> Path:
        lake = self._root / name
        shutil.copytree(self._root / "fresh", lake)
        return lake

    def _run(self, lake: Path) -> None:
        with self._start(lake) as driver:
            code = driver.wait(_LONGEST)
        if code != 0:
            raise SystemExit(f"the backfill ended with {code}")

    def _killed(self, lake: Path, percent: int) -> int:
        """Run until the function got this percentage of the rows, then kill; returns the number of rows it got."""
        with self._start(lake) as driver:
            while 100 * _called(lake) < percent * self._rows:
                if driver.poll() is not None:
                    raise SystemExit("the backfill ended before it could be killed")
                time.sleep(0.005)
            _kill(driver.pid)
        return _called(lake)

    def _start(self, lake: Path) -> subprocess.Popen[bytes]:
        arguments = [self._where, str(lake), str(_calls(lake)), str(self._checkpoint)]
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        # Files that a killed JVM leaves are deleted with the benchmark's folder.
        variables = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self._root)}
        return subprocess.Popen([sys.executable, "-c", FILL, *arguments], stdout=subprocess.DEVNULL, env=variables)

    def _hash(self, lake: Path) -> str:
        dataset = fm.Lake(lake)["trips"]
        problems = dataset.verify().problems
        assert not problems, problems
        table = dataset.to_arrow()
        assert table.column("slow").null_count == 0
        return str(logical_hash(table))


def _calls(lake: Path) -> Path:
    return lake.with_name(f"{lake.name}.calls")


def _called(lake: Path) -> int:
    """The number of rows that the function got so far."""
    path = _calls(lake)
    return sum(map(int, path.read_text().split())) if path.exists() else 0


def _kill(driver: int) -> None:
    """Kill a process and its descendants. They are stopped first, so that none can start another one."""
    family: list[int] = []
    while (now := _family(driver)) != family:
        family = now
        _send(family, signal.SIGSTOP)
    _send(family, signal.SIGKILL)


def _send(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue  # it has already ended


def _family(ancestor: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
    family = [ancestor]
    for member in family:
        family += [process for process, parent in parents.items() if parent == member]
    return sorted(family)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=4_000, checkpoint=125)
