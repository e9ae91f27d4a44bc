"""`floodmark status` of a lake with many datasets of very long chains: time of the whole process.

Run: python bench/status_many.py --datasets 50 --blocks 10000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import floodmark as fm
from chains import long_chain
from commands import START, typical, witnessed
from measuring import Curve, Figure, Growth, measured

DATA_BLOCKS = 5
REAL = 5
"""The number of normal commits at the end of each chain."""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    by_blocks = Growth(
        "status_many.blocks", f"floodmark status of {args.datasets} datasets", "blocks of each", "seconds"
    )
    for blocks in (args.blocks // 10, args.blocks):
        project = _project(root / f"blocks{blocks}", args.datasets, blocks)
        took = typical(["status"], project, args.repeats)
        by_blocks.add("wall", blocks, took.wall)
        by_blocks.add("CPU", blocks, took.cpu)
    few = _project(root / "few", max(1, args.datasets // 10), args.blocks // 10)
    few_took = typical(["status"], few, args.repeats)
    help_only = typical(["--help"], project, args.repeats)
    seen = witnessed(["status"], project)
    assert not seen.modules, seen
    assert not seen.started, seen
    shape = f"{args.datasets} datasets of {args.blocks:,} blocks"
    each = (took.cpu - few_took.cpu) / (args.datasets - max(1, args.datasets // 10))
    return [
        Figure(
            "seconds", f"status of {shape}, seconds", took.wall, f"whole process; medians of {args.repeats}; no JVM"
        ),
        Figure(
            "cpu",
            "the same, CPU seconds",
            took.cpu,
            f"--help alone {help_only.cpu:.2f} s; {each * 1e3:.1f} ms a dataset",
        ),
        by_blocks.curve(),
    ]


def _project(folder: Path, datasets: int, blocks: int) -> Path:
    """A project without steps, and a lake with this many datasets."""
    folder.mkdir(parents=True)
    (folder / "pipeline.py").write_text("from floodmark import Pipeline\n\npipeline = Pipeline([])\n")
    (folder / "floodmark.toml").write_text('lake = "lake"\n')
    fm.Lake(folder / "lake")
    work = [(folder / "lake", f"sensor{number:03d}", blocks) for number in range(datasets)]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        pool.starmap(_make, work, chunksize=1)
    answer = subprocess.run(
        [sys.executable, "-c", START, "status", "--json"], cwd=folder, check=True, capture_output=True
    )
    listed = json.loads(answer.stdout)["datasets"]
    assert len(listed) == datasets, listed
    lake = fm.Lake(folder / "lake")
    for one in listed:
        snapshot = lake[one["name"]].snapshot()
        assert snapshot.state.next_sequence_number == blocks, one
        assert one["records"] == snapshot.records == len(lake[one["name"]].to_arrow()), one
    return folder


def _make(lake: Path, name: str, blocks: int) -> None:
    long_chain(lake, fm.Lake(lake), name, blocks, DATA_BLOCKS, REAL)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, datasets=50, blocks=1_000, repeats=5)
