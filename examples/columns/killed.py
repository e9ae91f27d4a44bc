"""Backfill a slow column, kill the process halfway, and resume: rows in checkpoints are not computed again."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from features import CALLS
from fill import ROWS

import floodmark as fm

FILL = [sys.executable, str(Path(__file__).parent / "fill.py")]
PATIENCE = 120.0


def kept(folder: Path) -> int:
    """Number of rows in checkpoints."""
    lake = fm.Lake(folder / "lake")
    if "reviews" not in lake or not lake["reviews"].columns():
        return 0
    return lake["reviews"].plan_backfill("sentiment").reused


def kill_halfway(folder: Path) -> None:
    """Start the backfill, and kill it when a quarter of the rows is in checkpoints."""
    deadline = time.monotonic() + PATIENCE
    with subprocess.Popen(FILL, cwd=folder) as process:
        while kept(folder) < ROWS // 4 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)


def wait_for_workers(folder: Path) -> None:
    """Wait until the workers of the killed process have ended; until then they may call the function."""
    before = -1
    while before != (before := len(calls(folder))):
        time.sleep(1)


def calls(folder: Path) -> list[str]:
    """The logged calls of the function."""
    return (folder / CALLS).read_text().splitlines()


def main() -> int:
    """Run the demo, and check the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder of the lake (default: a new temporary folder)")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="floodmark-columns-"))
    print(f"filling a column of {ROWS} rows in {folder} …")
    kill_halfway(folder)
    wait_for_workers(folder)
    rows, first = kept(folder), len(calls(folder))
    print(f"killed: {first} rows were computed, {rows} of them are in checkpoints, and none is visible yet")
    subprocess.run(FILL, cwd=folder, check=True)
    total = len(calls(folder))
    print(f"resumed: {total} calls for {ROWS} rows; {total - ROWS} results were lost and computed again")
    again = subprocess.run(FILL, cwd=folder, check=True, capture_output=True, text=True).stdout
    print(f"again: {again}", end="")
    reviews = fm.Lake(folder / "lake")["reviews"]
    good = [
        rows > 0,
        total == ROWS + first - rows,
        len(calls(folder)) == total,
        reviews.to_arrow()["sentiment"].null_count == 0,
    ]
    print("all checks passed" if all(good) else f"some checks failed: {good}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
