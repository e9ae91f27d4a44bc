"""Killing a backfill and all its workers, and how much of what was computed the next one computes again.

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
from floodmark.engine import Profile, Session, rounds
from floodmark.storage.logical_hash import logical_hash
from measuring import Curve, Figure, Growth, measured
from trips import trips

ROW_SECONDS = 0.001
PERCENT = (25, 50, 75)
ADAPTIVE_ROWS = 250
"""How many rows an adaptive checkpoint should come to."""
FILL = "import resume, sys; resume.fill(*sys.argv[1:])"
_LONGEST = 600.0


def slow(calls: str) -> fm.Udf:
    """A function that takes a while for each row, and notes in a file how many rows it was given when."""

    @fm.udf(returns="float64", version="1")
    def slowly(fare: pa.Array) -> pa.Array:
        log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, b"%d\n" % len(fare))
        os.close(log)
        time.sleep(len(fare) * ROW_SECONDS)
        return pc.multiply(fare, 2.0)

    return slowly


def fill(where: str, lake: str, calls: str, checkpoint: str) -> None:
    """What the process does that gets killed; a checkpoint of 0 rows leaves the size to the sizer."""
    session = Session(profile=Profile.SHORT)
    if where == "Spark":
        rounds.LITTLE_ROWS = 0  # else so few rows would not go there
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
    """One way to run, one way to cut checkpoints: an undisturbed run, and one killed at each of the percentages."""

    def __init__(self, root: Path, where: str, checkpoint: int, rows: int) -> None:
        self._root, self._where, self._checkpoint, self._rows = root, where, checkpoint, rows
        self._cores = len(os.sched_getaffinity(0))

    @property
    def what(self) -> str:
        rows = self._checkpoint or ADAPTIVE_ROWS
        kind = f"checkpoints of {rows:,} rows" if self._checkpoint else f"adaptive ones of about {rows:,} rows"
        return f"{self._where}, {kind}"

    def measure(self) -> list[tuple[int, float, str]]:
        """At each percentage, what was computed again against what may be, and that in words."""
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
        """Run until so many rows were handed to the function, then kill; returns how many there were."""
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
        # What a killed JVM leaves behind goes with the benchmark's folder.
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
    """How many rows the function was given so far."""
    path = _calls(lake)
    return sum(map(int, path.read_text().split())) if path.exists() else 0


def _kill(driver: int) -> None:
    """End a process and all that it has started. They are stopped first, so that none can start another."""
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
            continue  # it has ended by itself


def _family(ancestor: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since
        parents[int(stat.parent.name)] = int(fields[1])
    family = [ancestor]
    for member in family:
        family += [process for process, parent in parents.items() if parent == member]
    return sorted(family)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=4_000, checkpoint=125)
