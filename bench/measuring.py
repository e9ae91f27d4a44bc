"""Common parts of the benchmarks: flags, alternating timed runs, and the report against the bars."""

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
from summary.programs import PROGRAMS

__all__ = ["Curve", "Figure", "Growth", "Line", "alternate", "binned", "measured", "seconds", "without_spark"]

PRINTED = "-"
"""As the name of the JSON file: print the JSON, and nothing else, to standard output."""


def arguments(description: str, **sizes: int) -> argparse.Namespace:
    """Parse the flags of a benchmark: its sizes, --full and --json."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default {default:,}")
    parser.add_argument("--full", action="store_true", help="the sizes that the bars are for; may take an hour")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const=PRINTED, help="figures and curves as JSON, to a file or printed"
    )
    args = parser.parse_args()
    full = next((program.full for program in PROGRAMS if program.name == Path(sys.argv[0]).stem), {})
    for name, default in {**sizes, **(full if args.full else {})}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    return args


def seconds(action: Callable[[], Any]) -> float:
    """The duration of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def alternate(first: Callable[[], Any], second: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The median times of two actions that run in turns, so that a busy machine affects both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats):
        order = ((0, first), (1, second)) if i % 2 == 0 else ((1, second), (0, first))
        for which, action in order:
            times[which].append(seconds(action))
    return statistics.median(times[0]), statistics.median(times[1])


def without_spark(code: str, lake: Path, repeats: int) -> float:
    """The median time of code in separate processes. Each measures itself and reports whether it imported Spark."""
    variables = environment([str(Path(__file__).parent), *sys.path])
    times: list[float] = []
    for _ in range(repeats + 1):
        command = [sys.executable, "-c", code, str(lake)]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, env=variables, check=True).stdout)
        assert not answer["spark"]
        times.append(answer["seconds"])
    return statistics.median(times[1:])


def environment(path: Sequence[str]) -> dict[str, str]:
    """The environment of a measured process: the package path, and a shared cache of compiled modules.

    Installed packages have bytecode. Without the cache, each process would spend much of its time on compiling.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONPYCACHEPREFIX": _bytecode()}


@cache
def _bytecode() -> str:
    """A folder for the bytecode of this benchmark's processes. It is deleted at the end."""
    folder = tempfile.mkdtemp(prefix="floodmark-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def measured(
    description: str, measure: Callable[[Path, argparse.Namespace], Sequence[Figure | Curve]], **sizes: int
) -> None:
    """Run a benchmark in a temporary folder, and report."""
    args = arguments(description, **sizes)
    root = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        results = measure(root, args)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    figures = tuple(one for one in results if isinstance(one, Figure))
    curves = tuple(one for one in results if isinstance(one, Curve))
    report(Measured(Path(sys.argv[0]).stem, {name: getattr(args, name) for name in sizes}, figures, curves), args.json)


def report(result: Measured, json_to: str | None) -> None:
    """Print every figure with its bar, or all as JSON, and exit with 1 if a bar is missed."""
    text = json.dumps(result.document(), indent=1, ensure_ascii=False)
    if json_to == PRINTED:
        print(text)
    else:
        for line in verdicts(result):
            print(line)
        if json_to is not None:
            Path(json_to).write_text(text + "\n", encoding="utf-8")
    sys.exit(1 if any(line.startswith("MISS") for line in verdicts(result)) else 0)


def verdicts(result: Measured) -> list[str]:
    """A line for each figure, with its bar and whether it meets it."""
    bars = bars_of(result.bench)
    lines = []
    for figure in result.figures:
        bar = bars.get(figure.key)
        applies = bar is not None and bar.asks(result.sizes)
        is_met = bar is None or not applies or bar.keeps(figure.value)
        text = bar.text if bar is not None and applies else "shown only"
        lines.append(f"{'ok  ' if is_met else 'MISS'} {figure.name}: {figure.value:.3g} ({text}); {figure.detail}")
    return lines
