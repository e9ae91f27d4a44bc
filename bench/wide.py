"""Append and upsert of many columns, per cell, against few columns.

Run: python bench/wide.py --full
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import floodmark as fm
from measuring import Curve, Figure, Growth, measured

FEW = 50


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    lake, number = fm.Lake(root / "lake"), count()
    growth = Growth("wide", f"Writing {args.rows:,} rows", "columns", "CPU seconds", x_scale="log", y_scale="log")

    def append(columns: int) -> Callable[[], object]:
        dataset = lake.create(f"plain{next(number)}")
        dataset.write(_rows(args.rows, columns, 0))
        return lambda: dataset.write(_rows(args.rows, columns, 1))

    def upsert(columns: int) -> Callable[[], object]:
        dataset = lake.create(f"keyed{next(number)}", key="c0")
        dataset.write(_rows(args.rows, columns, 0))
        return lambda: dataset.write(_rows(args.rows, columns, next(number)))

    figures: list[Figure | Curve] = []
    for name, prepare in (("append", append), ("upsert", upsert)):
        times = {columns: _typical(prepare(columns), args.repeats) for columns in (FEW, args.columns)}
        for columns, took in times.items():
            growth.add(name, columns, took)
        cells = {columns: took / (columns * args.rows) for columns, took in times.items()}
        detail = ", ".join(f"{columns:,} columns {took:.3f} s" for columns, took in times.items())
        what = f"{name} of {args.rows:,} rows × {args.columns:,} columns ÷ × {FEW}, per cell"
        figures.append(Figure(name, what, cells[args.columns] / cells[FEW], f"CPU: {detail}"))
    return [*figures, growth.curve()]


def _rows(rows: int, columns: int, seed: int) -> pa.Table:
    """Rows whose first column is a key; all other values depend on the seed."""
    values = np.random.default_rng(seed).random((columns - 1, rows))
    return pa.table({"c0": np.arange(rows), **{f"c{i + 1}": column for i, column in enumerate(values)}})


def _typical(action: Callable[[], object], repeats: int) -> float:
    """The median CPU time of an action, after a first call. CPU time, because threads and other programs compete."""
    action()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return median(times)


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000, columns=1_000, repeats=3)
