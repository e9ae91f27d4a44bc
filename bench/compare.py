"""Compare the benchmarks of two work trees: interleaved runs, the median of each figure, their ratio and the spread.

Run: python bench/compare.py OLD NEW --rounds 5 ledger_write upsert_small
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from measuring import environment
from summary.programs import PROGRAMS, Program, sizes_of

TIMEOUT = 1800.0
_SECONDS = re.compile(r"(\d+(?:\.\d+)?) (ms|s)\b")
_UNITS = {"ms": 1e-3, "s": 1.0}

Values = dict[str, list[float]]


def main() -> None:
    args = _arguments()
    programs = [program for program in PROGRAMS if program.name in args.names]
    values: dict[Path, Values] = {args.old: defaultdict(list), args.new: defaultdict(list)}
    for program in programs:
        for round_ in range(args.rounds):
            order = (args.old, args.new) if round_ % 2 == 0 else (args.new, args.old)
            for tree in order:
                for name, value in _figures(tree, program, sizes_of(program, args.scale)):
                    values[tree][name].append(value)
        for line in table(program.name, values[args.old], values[args.new]):
            print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a work tree of the old commit")
    parser.add_argument("new", type=Path, help="a work tree of the new commit")
    parser.add_argument("names", nargs="+", choices=[program.name for program in PROGRAMS], metavar="BENCHMARK")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tree (default %(default)s)")
    parser.add_argument("--scale", choices=("quick", "full"), default="quick")
    return parser.parse_args()


def _figures(tree: Path, program: Program, sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """The figures of one run, and the first duration in the detail of each figure."""
    variables = environment([str(tree / "src"), str(tree / "bench")]) | {"PYTHONWARNINGS": "ignore"}
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    command = [sys.executable, str(tree / "bench" / f"{program.name}.py"), *program.flags(sizes), "--json"]
    run = subprocess.run(command, cwd=tree, env=variables, capture_output=True, timeout=TIMEOUT, check=False)
    if not run.stdout:
        raise SystemExit(f"{program.name} in {tree} failed:\n{run.stderr.decode()[-3000:]}")
    for figure in json.loads(run.stdout)["figures"]:
        name = f"{program.name}.{figure['key']}"
        yield name, figure["value"]
        duration = _SECONDS.search(figure["detail"])
        if duration:
            yield f"{name} (s)", float(duration[1]) * _UNITS[duration[2]]


def table(program: str, old: Values, new: Values) -> Iterator[str]:
    """One line per figure of a benchmark: both medians, their ratio, and the larger relative spread."""
    for name in (name for name in old if name.startswith(f"{program}.")):
        before, after = old[name], new[name]
        if not after or not median(before):
            yield f"{name:50} no ratio"
            continue
        ratio = median(after) / median(before)
        spread = max((max(before) - min(before)) / median(before), (max(after) - min(after)) / median(after))
        yield f"{name:50} {median(before):10.4g} {median(after):10.4g}  ratio {ratio:6.3f}  spread {spread:5.2f}"


if __name__ == "__main__":
    main()
