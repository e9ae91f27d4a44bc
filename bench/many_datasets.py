"""`list`, `status`, `doctor`, `gc --dry-run` and `verify` of a lake with many datasets: time of the whole process.

Run: python bench/many_datasets.py --full
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

import pyarrow as pa

import floodmark as fm
from commands import Took, typical
from measuring import Curve, Figure, Growth, measured

COMMANDS = {
    "list": ["list"],
    "status": ["status"],
    "doctor": ["doctor", "--no-spark"],
    "gc": ["gc", "--dry-run"],
    "verify": ["verify"],
}


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    growth = Growth("many_datasets", "Commands over all datasets", "datasets", "CPU seconds")
    few, many = max(1, args.datasets // 10), args.datasets
    times: dict[tuple[str, int], Took] = {}
    for datasets in (few, many):
        project = _project(root / f"datasets{datasets}", datasets)
        for name, command in COMMANDS.items():
            took = times[name, datasets] = typical(command, project, args.repeats)
            growth.add(name, datasets, took.cpu)
    helps = typical(["--help"], project, args.repeats).cpu
    figures: list[Figure | Curve] = []
    for name in COMMANDS:
        took, less = times[name, many], times[name, few]
        each = (took.cpu - less.cpu) / (many - few)
        before = max(less.cpu - helps, 1e-3) / few
        text = f"CPU {took.cpu:.1f} s, {each * 1e3:.2f} ms a dataset; {few:,} datasets: {less.wall:.2f} s"
        figures.append(Figure(f"{name}.seconds", f"floodmark {name} of {many:,} datasets, seconds", took.wall, text))
        figures.append(Figure(f"{name}.linear", f"{name}: CPU a dataset of {many:,} ÷ of {few:,}", each / before, text))
    return [*figures, growth.curve()]


def _project(folder: Path, datasets: int) -> Path:
    """A project without steps, and a lake with this many datasets."""
    folder.mkdir(parents=True)
    (folder / "pipeline.py").write_text("from floodmark import Pipeline\n\npipeline = Pipeline([])\n")
    (folder / "floodmark.toml").write_text('lake = "lake"\n')
    fm.Lake(folder / "lake")
    cores = len(os.sched_getaffinity(0))
    work = [(folder / "lake", first, datasets, cores) for first in range(cores)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.starmap(_make, work, chunksize=1)
    return folder


def _make(folder: Path, first: int, end: int, step: int) -> None:
    lake = fm.Lake(folder)
    for number in range(first, end, step):
        data = pa.table({"id": [number, number + 1], "text": ["one", "two"]})
        lake.create(f"sensor{number:06d}", key="id" if number % 2 else None).write(data)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, datasets=1_000, repeats=3)
