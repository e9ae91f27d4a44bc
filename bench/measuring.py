"""What the benchmarks share: their flags, alternating timed runs, and a verdict against the bars."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from summary.bars import bars_of
from summary.figures import Curve, Figure, Growth, Line, Measured, binned

__all__ = ["Curve", "Figure", "Growth", "Line", "alternate", "binned", "measured", "seconds", "without_spark"]

PRINTED = "-"
"""Instead of a file's name: JSON and nothing else on standard output."""


def arguments(description: str, **sizes: int) -> argparse.Namespace:
    """The flags of a benchmark: its sizes, how often it repeats, and --json."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default:,}")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const=PRINTED, help="figures and curves as JSON, to a file or printed"
    )
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
    variables = environment([str(Path(__file__).parent), *sys.path])
    times: list[float] = []
    for _ in range(repeats + 1):
        command = [sys.executable, "-c", code, str(lake)]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=variables, check=True).stdout)
        assert not answer["spark"]
        times.append(answer["seconds"])
    return statistics.median(times[1:])


def environment(path: Sequence[str]) -> dict[str, str]:
    """The variables of a process that is measured: where packages are, and modules compiled once, not each time.

    Whoever installs a package has its bytecode; without it, a good part of the time would go into compiling.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONPYCACHEPREFIX": _bytecode()}


@cache
def _bytecode() -> str:
    """A folder for the bytecode of this benchmark's processes, gone at its end."""
    folder = tempfile.mkdtemp(prefix="floodmark-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def measured(
    description: str, measure: Callable[[Path, argparse.Namespace], Sequence[Figure | Curve]], **sizes: int
) -> None:
    """Run a benchmark in a folder of its own, which is gone afterwards, and report."""
    args = arguments(description, **sizes)
    root = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        found = measure(root, args)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    figures = tuple(one for one in found if isinstance(one, Figure))
    curves = tuple(one for one in found if isinstance(one, Curve))
    report(Measured(Path(sys.argv[0]).stem, {name: getattr(args, name) for name in sizes}, figures, curves), args.json)


def report(found: Measured, json_to: str | None) -> None:
    """Print every figure beside its bar, or all as JSON, and end with 1 if one misses."""
    text = json.dumps(found.document(), indent=1, ensure_ascii=False)
    if json_to == PRINTED:
        print(text)
    else:
        for line in verdicts(found):
            print(line)
        if json_to is not None:
            Path(json_to).write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if any(line.startswith("MISS") for line in verdicts(found)) else 0)


def verdicts(found: Measured) -> list[str]:
    """A line for each figure: whether it keeps to its bar."""
    bars = bars_of(found.bench)
    lines = []
    for figure in found.figures:
        bar = bars.get(figure.key)
        is_asked = bar is not None and bar.asks(found.sizes)
        is_kept = bar is None or not is_asked or bar.keeps(figure.value)
        said = bar.text if bar is not None and is_asked else "shown only"
        lines.append(f"{'ok  ' if is_kept else 'MISS'} {figure.name}: {figure.value:.3g} ({said}); {figure.detail}")
    return lines
