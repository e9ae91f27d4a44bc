"""Mutation tests: break the code in many places, one at a time, and check that tests fail: `make mutants`.

`tests/mutants/*.toml` lists the mutants. Each has a description of the behaviour, the file, the text to replace, and
the tests that must fail. A mutant is applied to a copy of the sources, and only its tests are run.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
LISTS = ROOT / "tests" / "mutants"
TESTS_FAILED = 1  # the exit code of pytest; another one means that the tests did not run
SECONDS = 600


@dataclass(frozen=True)
class Mutant:
    """One deliberate break of the code."""

    name: str
    behaviour: str  # the correct behaviour, which the mutant breaks
    file: str  # relative to src/floodmark
    old: str
    new: str
    tests: tuple[str, ...]
    tests_before: tuple[str, ...] = ()  # for `--tree`: the tests to run if that checkout has other names

    @contextmanager
    def applied(self, source: Path) -> Iterator[None]:
        """Apply the mutant to a source tree within the block."""
        path = source / "floodmark" / self.file
        before = path.read_text()
        if before.count(self.old) != 1:
            raise SystemExit(f"{self.name}: the text to replace occurs {before.count(self.old)} times in {self.file}")
        path.write_text(before.replace(self.old, self.new))
        forget_bytecode(path)
        try:
            yield
        finally:
            path.write_text(before)
            forget_bytecode(path)


def forget_bytecode(path: Path) -> None:
    """Remove the bytecode of a module: Python compares its time only in whole seconds."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


@dataclass(frozen=True)
class Outcome:
    """The result of the tests of one mutant."""

    mutant: Mutant
    code: int
    seconds: float
    output: str

    @property
    def word(self) -> str:
        return {TESTS_FAILED: "red", 0: "GREEN"}.get(self.code, f"BROKEN (pytest exit code {self.code})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these words")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="another checkout to break and test (default: this one)"
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    tree = options.tree.resolve()
    mutants = [m for m in load() if not options.names or any(word in m.name for word in options.names)]
    began, bad = time.monotonic(), 0
    for outcome in run_all(mutants, tree, options.workers):
        print(f"{outcome.word:6} {outcome.seconds:5.1f} s  {outcome.mutant.name}", flush=True)
        if outcome.code != TESTS_FAILED:
            bad += 1
            print(outcome.output[-3000:], flush=True)
    print(f"{len(mutants) - bad} of {len(mutants)} mutants are red; {time.monotonic() - began:.0f} s")
    return 1 if bad or not mutants else 0


def load() -> list[Mutant]:
    found = []
    for path in sorted(LISTS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            entry["tests"] = tuple(entry["tests"])
            entry["tests_before"] = tuple(entry.get("tests_before", ()))
            found.append(Mutant(**{**entry, "name": f"{path.stem}/{entry['name']}"}))
    return found


def run_all(mutants: list[Mutant], tree: Path, workers: int) -> Iterator[Outcome]:
    """Test every mutant, each worker in a copy of the sources."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copy = Path(folder, f"src{number}")
            shutil.copytree(tree / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
            compileall.compile_dir(copy, quiet=1)
            copies.put(copy)
        yield from pool.map(lambda mutant: run(mutant, tree, copies), mutants)


def run(mutant: Mutant, tree: Path, copies: Queue[Path]) -> Outcome:
    """Test one mutant in a copy that no other uses."""
    tests = mutant.tests_before if tree != ROOT and mutant.tests_before else mutant.tests
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    source = copies.get()
    began = time.monotonic()
    try:
        with mutant.applied(source):
            done = subprocess.run(
                command,
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(source), "FLOODMARK_TEST_SHRINK": "0"},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            return Outcome(mutant, done.returncode, time.monotonic() - began, done.stdout + done.stderr)
    except subprocess.TimeoutExpired:
        return Outcome(mutant, TESTS_FAILED, time.monotonic() - began, "the tests timed out")
    finally:
        copies.put(source)


if __name__ == "__main__":
    sys.exit(main())
