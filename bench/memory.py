"""Peak memory of append, upsert, backfill and refresh: driver, workers and JVM together, without the JVM's fixed part.

Each operation runs in its own process, on a few and on many rows. This process samples the memory of its processes
from outside (PSS: shared memory is divided among those that share it).

Run: python bench/memory.py --full
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.engine.session import Session
from measuring import Curve, Figure, Growth, environment, measured
from tipping import tip
from trips import ROWS_PER_FILE, trips

SCORES = "select id, driver, fare / (distance + 1.0) per_km, upper(payment) payment from keyed where passengers > 0"
TOTALS = "select driver, count(*) trips, sum(fare) fares, max(distance) longest from keyed group by driver"
ROWS_PER_DRIVER = 100
_SAMPLE_SECONDS = 0.1
_GB = 1e9
_CHILD = "import memory, sys; memory.run(*sys.argv[1:])"
_BEGIN, _END = "begin", "end"


# The operations, in the order in which they run: later ones need the datasets of earlier ones.


def _append(lake: fm.Lake, data: Path) -> None:
    lake.create("trips", event_time="pickup_at").write(str(data / "trips-*.parquet"))


def _append_stream(lake: fm.Lake, data: Path) -> None:
    files = sorted(data.glob("trips-*.parquet"))
    batches = (batch for path in files for batch in pq.ParquetFile(path).iter_batches(1 << 16))
    reader = pa.RecordBatchReader.from_batches(pq.read_schema(files[0]), batches)
    lake.create("streamed", event_time="pickup_at").write(reader)


def _load(lake: fm.Lake, data: Path) -> None:
    lake.create("keyed", key="id", event_time="pickup_at").write(str(data / "trips-*.parquet"))


def _upsert(lake: fm.Lake, data: Path) -> None:
    assert lake["keyed"].write(str(data / "changed-*.parquet")).changed > 0


def _backfill(lake: fm.Lake, data: Path) -> None:  # noqa: ARG001
    lake["trips"].add_column("tip", tip)
    lake["trips"].backfill("tip")


def _refresh_rows(lake: fm.Lake, data: Path) -> None:  # noqa: ARG001
    lake.view("scores", sql=SCORES).refresh()


def _refresh_groups(lake: fm.Lake, data: Path) -> None:  # noqa: ARG001
    lake.view("totals", sql=TOTALS).refresh()


OPERATIONS: dict[str, tuple[str, Callable[[fm.Lake, Path], None]]] = {
    "append": ("append of Parquet files", _append),
    "stream": ("append of a stream of batches", _append_stream),
    "load": ("first load of a keyed dataset", _load),
    "upsert": ("upsert that changes every row", _upsert),
    "backfill": ("backfill of a column", _backfill),
    "refresh_rows": ("first refresh of a row-wise view", _refresh_rows),
    "refresh_groups": ("first refresh of a grouped view", _refresh_groups),
}


def run(operation: str, root: str) -> None:
    """Run one operation in this process. Standard output says when it begins and ends."""
    with Session() as session:
        assert session.get().range(7).count() == 7  # the JVM's fixed part is measured after this
        lake = fm.Lake(Path(root) / "lake", runtime=fm.Runtime(session=session))
        _say(_BEGIN)
        OPERATIONS[operation][1](lake, Path(root) / "in")
        _say(_END)


def _say(word: str) -> None:
    print(word, flush=True)


# Measuring


@dataclass(frozen=True)
class Peak:
    """The peak memory of one operation in bytes, without the JVM's fixed part, and its time."""

    memory: int
    by_program: dict[str, int]  # at the peak, the JVM's fixed part included
    fixed: int
    seconds: float
    cpu: float


def _family(process: int) -> Iterator[int]:
    """A process and its descendants: the driver, its JVM, and all workers."""
    yield process
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        for child in thread.read_text().split():
            yield from _family(int(child))


def _memory(process: int) -> dict[str, int]:
    """The memory of a process and its descendants by program."""
    found: dict[str, int] = {}
    for one in _family(process):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            name = Path(f"/proc/{one}/comm").read_text().strip()
        except OSError:
            continue  # it ended meanwhile
        bytes_ = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        found[name] = found.get(name, 0) + bytes_
    return found


def _cpu(process: int) -> float:
    """The CPU seconds of a process and its descendants so far."""
    ticks = 0
    for one in _family(process):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(operation: str, root: Path) -> Peak:
    """Run one operation in a new process and measure it."""
    variables = environment([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", _CHILD, operation, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as child:
        assert child.stdout is not None
        _wait_for(child, _BEGIN)
        fixed = sum(size for name, size in _memory(child.pid).items() if name == "java")
        samples: list[dict[str, int]] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_SAMPLE_SECONDS):
                samples.append(_memory(child.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, cpu = time.perf_counter(), _cpu(child.pid)
        try:
            _wait_for(child, _END)
            seconds, cpu = time.perf_counter() - began, _cpu(child.pid) - cpu
        finally:
            ended.set()
            watcher.join()
    most = max(samples, key=lambda sample: sum(sample.values()), default={})
    return Peak(sum(most.values()) - fixed, most, fixed, seconds, cpu)


def _wait_for(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdout is not None
    if child.stdout.readline().strip() != word:
        raise SystemExit(f"{' '.join(map(str, child.args))} failed")  # type: ignore[union-attr]


def _write_files(folder: Path, rows: int) -> None:
    """Trips with shuffled ids, and the same with other fares."""
    folder.mkdir(parents=True)
    ids = np.random.default_rng(0).permutation(rows)
    for start in range(0, rows, ROWS_PER_FILE):
        own = trips(start, min(ROWS_PER_FILE, rows - start))
        own = own.set_column(0, "id", pa.array(ids[start : start + len(own)]))
        drivers = np.random.default_rng(start + 1).integers(0, max(1, rows // ROWS_PER_DRIVER), len(own))
        own = own.append_column("driver", pa.array(drivers))
        other = own.set_column(3, "fare", pc.add(own.column("fare"), 1.0))
        pq.write_table(own, folder / f"trips-{start:012d}.parquet")
        pq.write_table(other, folder / f"changed-{start:012d}.parquet")


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    growth = Growth("memory", "Peak memory, without the JVM's fixed part", "rows", "GB", x_scale="log")
    figures: list[Figure | Curve] = []
    few: dict[str, Peak] = {}
    for rows in (args.rows, args.rows * args.times):
        world = root / f"rows{rows}"
        _write_files(world / "in", rows)
        for operation, (what, _) in OPERATIONS.items():
            peak = measure(operation, world)
            growth.add(what, rows, peak.memory / _GB)
            print(f"{rows:>12,} {operation:<15} {_described(peak)}", file=sys.stderr, flush=True)
            if rows == args.rows:
                few[operation] = peak
                figures.append(
                    Figure(f"{operation}.peak", f"{what}, {rows:,} rows: GB", peak.memory / _GB, _described(peak))
                )
            else:
                ratio = peak.memory / few[operation].memory
                detail = f"{peak.memory / _GB:.2f} GB ÷ {few[operation].memory / _GB:.2f} GB; {_described(peak)}"
                figures.append(Figure(f"{operation}.flat", f"{what}, {args.times} times the rows", ratio, detail))
    return [*figures, growth.curve()]


def _described(peak: Peak) -> str:
    parts = ", ".join(f"{name} {size / _GB:.2f}" for name, size in sorted(peak.by_program.items()))
    memory = f"{peak.memory / _GB:.2f} GB ({parts}, fixed {peak.fixed / _GB:.2f})"
    return f"{memory}; {peak.seconds:.1f} s, CPU {peak.cpu:.1f} s"


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, times=4)
