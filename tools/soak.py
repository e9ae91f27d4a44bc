"""Run the random tests with new seeds for some minutes: `make soak MINUTES=60`.

Each round runs the tests marked `soak` once, in a random order, with many more cases than `make test`. A failure prints
the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
NO_TESTS_LEFT = 5  # the exit code of pytest when it ran nothing
STUCK_SECONDS = 1800
SHORT_MINUTES = 10  # a shorter soak has twice the cases of `make test`, a longer one ten times
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s]+)", re.MULTILINE)


def main() -> int:
    options = parse_arguments()
    until = time.time() + 60 * options.minutes
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    if options.test:
        return run_round(seed, time.time() + 86400, options, [options.test])
    worst = 0
    while time.time() < until:
        worst = max(worst, run_round(seed, until, options, []))
        if worst and options.stop:
            break
        seed += 1
    return worst


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="stop starting tests after this time (default: 60)")
    parser.add_argument("--seed", type=int, help="the seed of the first round (default: a new one)")
    parser.add_argument("--test", help="repeat one test with the given seed")
    parser.add_argument("--workers", default="2", help="worker processes (default: 2)")
    parser.add_argument("--stop", action="store_true", help="stop after the first round with a failure")
    return parser.parse_args()


def run_round(seed: int, until: float, options: argparse.Namespace, tests: list[str]) -> int:
    """Run all soak tests once; return the exit code."""
    scale = 2 if options.minutes < SHORT_MINUTES else 10
    print(f"soak: seed {seed}, {max(0, until - time.time()) / 60:.1f} minutes left", flush=True)
    environment = {**os.environ, "FLOODMARK_TEST_PROFILE": "soak", "FLOODMARK_TEST_SEED": str(seed)}
    environment["FLOODMARK_SOAK_SCALE"] = str(scale)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        options.workers if not tests else "0",
        "--durations=10",
        "--dist",
        "worksteal",
    ]
    command += [f"--soak-until={until}", f"--hypothesis-seed={seed}", "-o", f"timeout={STUCK_SECONDS}"]
    process = subprocess.Popen(
        [*command, "--disable-warnings", "-rfE", *tests], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        print(line, end="", flush=True)
    code = process.wait()
    for test in sorted(set(FAILED.findall("".join(lines)))):
        print(f"repeat with: make soak MINUTES={options.minutes:g} SEED={seed} TEST='{test}'", flush=True)
    return 0 if code == NO_TESTS_LEFT else code


if __name__ == "__main__":
    sys.exit(main())
