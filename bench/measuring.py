"""What the benchmarks share: their flags, alternating timed runs, and a verdict against the bar."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured ratio and the bar it must not pass; no bar means that it is only shown."""

    name: str
    ratio: float
    bar: float | None
    detail: str

    @property
    def ok(self) -> bool:
        return self.bar is None or self.ratio <= self.bar


def arguments(description: str, **sizes: int) -> argparse.Namespace:
    """The flags of a benchmark: its sizes, how often it repeats, and --json."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default:,}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


def seconds(action: Callable[[], Any]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def alternate(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The median times of two actions that take turns, so that a noisy machine treats both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats):
        order = ((0, first), (1, second)) if i % 2 == 0 else ((1, second), (0, first))
        for which, action in order:
            times[which].append(seconds(action))
    return statistics.median(times[0]), statistics.median(times[1])


def without_spark(code: str, lake: Path, repeats: int) -> float:
    """The median time of code in processes of its own, which time themselves and say whether Spark was imported."""
    here = str(Path(__file__).parent)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    times = []
    for _ in range(repeats + 1):
        command = [sys.executable, "-c", code, str(lake)]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=variables, check=True).stdout)
        assert not answer["spark"]
        times.append(answer["seconds"])
    return statistics.median(times[1:])


def measured(description: str, measure: Callable[[Path, argparse.Namespace], list[Figure]], **sizes: int) -> None:
    """Run a benchmark in a folder of its own, which is gone afterwards, and report."""
    args = arguments(description, **sizes)
    root = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        figures = measure(root, args)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    report(figures, args.json)


def report(figures: list[Figure], as_json: bool) -> None:
    """Print every figure beside its bar and end with 1 if one misses."""
    if as_json:
        print(json.dumps([{**asdict(f), "ok": f.ok} for f in figures], indent=1))
    else:
        for f in figures:
            bar = "shown only" if f.bar is None else f"bar {f.bar}"
            print(f"{'ok  ' if f.ok else 'MISS'} {f.name}: {f.ratio:.2f} ({bar}); {f.detail}")
    sys.exit(0 if all(f.ok for f in figures) else 1)
