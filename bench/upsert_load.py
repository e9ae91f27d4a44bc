"""The first load of a keyed dataset, with its index, against Spark's repartition by key, sort and Parquet write.

Run: python bench/upsert_load.py --rows 10000000
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import floodmark as fm
from floodmark.engine.session import Session
from measuring import Figure, alternate, measured
from trips import ROWS_PER_FILE, trips

_GB = 1e9
_SAMPLE_SECONDS = 0.05


def _write_files(folder: Path, rows: int) -> list[Path]:
    """Trips with shuffled ids: sorted input would save us the sort that Spark does anyway."""
    folder.mkdir()
    ids = np.random.default_rng(0).permutation(rows)
    paths = []
    for start in range(0, rows, ROWS_PER_FILE):
        some = trips(start, min(ROWS_PER_FILE, rows - start))
        paths.append(folder / f"trips-{start:012d}.parquet")
        pq.write_table(some.set_column(0, "id", pa.array(ids[start : start + len(some)])), paths[-1])
    return paths


def _family(process: int) -> Iterator[int]:
    """A process and its descendants: the driver, its JVM, and the JVM's Python workers."""
    yield process
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        for child in thread.read_text().split():
            yield from _family(int(child))


def _memory(process: int) -> int:
    """The bytes of memory of a process (PSS: shared memory is divided among the processes that share it)."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _peak(action: Callable[[], Any]) -> int:
    """The peak memory of this process and its descendants together while an action runs."""
    ended = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(_SAMPLE_SECONDS):
            total = 0
            try:
                for process in _family(os.getpid()):
                    total += _memory(process)
            except (FileNotFoundError, ProcessLookupError, StopIteration):
                pass  # a worker ended meanwhile; the sum so far is still a valid lower bound
            peak = max(peak, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        action()
    finally:
        ended.set()
        watcher.join()
    return peak


def _measure(root: Path, args: argparse.Namespace) -> list[Figure]:
    rows, repeats = args.rows, args.repeats
    files = _write_files(root / "in", rows)
    with Session() as session:
        spark = session.get()
        lake = fm.Lake(root / "lake", runtime=fm.Runtime(session=session))
        frame = spark.read.parquet(str(root / "in"))
        numbers = count()

        def plain() -> None:
            by_key = frame.repartition("id").sortWithinPartitions("id")
            by_key.write.mode("overwrite").parquet(str(root / "plain"))

        def load(data: Any) -> None:
            name = f"trips{next(numbers)}"
            commit = lake.create(name, key="id", event_time="pickup_at").write(data)
            assert commit.new == rows
            lake.drop(name)

        def from_files() -> None:
            load(files)

        def from_frame() -> None:
            load(frame)

        # Measured before plain Spark, which fills the JVM's heap; Java does not return heap memory.
        files_peak, frame_peak = _peak(from_files), _peak(from_frame)
        plain_peak = _peak(plain)
        plain_for_files, ours = alternate(plain, from_files, repeats)
        plain_for_frame, ours_frame = alternate(plain, from_frame, repeats)
    shape = f"{rows:,} rows × 6 columns, medians of {repeats}"
    memory = f"driver, JVM and workers together; after it plain Spark had {plain_peak / _GB:.2f} GB"
    return [
        Figure(
            "files",
            "first load of Parquet files ÷ Spark repartition, sort and write",
            ours / plain_for_files,
            f"{ours:.2f} s ÷ {plain_for_files:.2f} s; {shape}",
        ),
        Figure(
            "frame",
            "first load of a Spark frame ÷ Spark repartition, sort and write",
            ours_frame / plain_for_frame,
            f"{ours_frame:.2f} s ÷ {plain_for_frame:.2f} s; {shape}",
        ),
        Figure("memory.files", "peak memory of a load of files, GB", files_peak / _GB, memory),
        Figure("memory.frame", "peak memory of a load of a frame, GB", frame_peak / _GB, memory),
    ]


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=4_000_000, repeats=3)
