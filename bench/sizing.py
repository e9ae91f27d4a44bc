"""Durations of checkpoints when a function becomes 100 times slower or faster in the middle of a backfill.

Run: python bench/sizing.py --target-ms 10000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import floodmark as fm
from floodmark.derive.checkpoint_key import parse_key
from measuring import Curve, Figure, Line, measured

FACTOR = 100
FAST_ROWS = 20_000
"""The rows per target duration while the function is fast."""
SETTLED = 3
"""Durations count from this checkpoint after the change on. The first one begins after the change."""


@dataclass(frozen=True)
class Cost:
    """The seconds per row before and after the change."""

    before: float
    after: float
    change: int

    def of(self, rows: np.ndarray) -> float:
        later = int(np.count_nonzero(rows >= self.change))
        return later * self.after + (len(rows) - later) * self.before


def changing(cost: Cost, calls: str) -> fm.Udf:
    """A function that takes the cost of its rows, and logs the time and the first row of each call."""

    @fm.udf(returns="int64", version="1")
    def work(id: pa.Array) -> pa.Array:  # noqa: A002  the column's name
        rows = id.to_numpy()
        began = time.monotonic()
        time.sleep(cost.of(rows))
        log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{json.dumps([int(rows[0]), began, time.monotonic()])}\n".encode())
        os.close(log)
        return pc.add(id, 1)

    return work


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    target = args.target_ms / 1000
    fast, slow = target / FAST_ROWS, FACTOR * target / FAST_ROWS
    fast_rows, slow_rows = args.checkpoints * FAST_ROWS, args.checkpoints * FAST_ROWS // FACTOR
    # The sizes of the first slow checkpoints were chosen while the function was fast.
    surprise = FAST_ROWS // 2
    cases = {
        "slower": (Cost(fast, slow, fast_rows), fast_rows + surprise + slow_rows),
        "faster": (Cost(slow, fast, slow_rows), slow_rows + fast_rows),
    }
    found = [_case(root / name, name, cost, rows, target) for name, (cost, rows) in cases.items()]
    title = f"Checkpoints of a function whose speed changes {FACTOR} × midway"
    lines = tuple(line for _, line in found)
    around = Curve("sizing", title, "checkpoint, 0 begins after the change", "duration ÷ target", lines, y_scale="log")
    return [*(figure for figure, _ in found), around]


def _case(root: Path, name: str, cost: Cost, rows: int, target: float) -> tuple[Figure, Line]:
    runtime = fm.Runtime(checkpoint_seconds=target)
    dataset = fm.Lake(root / "lake", runtime=runtime).create("numbers")
    dataset.write(pa.table({"id": np.arange(rows)}))
    calls = root / "calls"
    function = changing(cost, str(calls))
    dataset.add_column("next", function)
    # One task, so that its checkpoints run one after another.
    assert dataset.backfill("next", udf=function, task_size=rows).computed == rows
    starts = sorted(
        parsed.start for key in dataset.checkpoints.list_keys() if (parsed := parse_key(key)) and parsed.kind == "range"
    )
    after = np.searchsorted(starts, cost.change)
    durations = _durations(calls, starts)
    counted = durations[after + SETTLED - 1 : -1]  # not the last one: the sizer did not choose its size
    assert len(counted) >= SETTLED, (starts, durations)
    off = max(max(d / target, target / d) for d in counted)
    around = ", ".join(f"{d / target:.2f}" for d in durations[max(0, after - 2) : after + SETTLED + 3])
    line = Line(f"becomes {name}", tuple((float(i - after), d / target) for i, d in enumerate(durations[:-1])))
    figure = Figure(
        name,
        f"{FACTOR} times {name} midway: duration ÷ target, or the reverse, the worst from the third checkpoint on",
        off,
        f"{len(counted)} checkpoints, target {target:g} s; ÷ target around the change: {around}",
    )
    return figure, line


def _durations(calls: Path, starts: list[int]) -> np.ndarray:
    """The duration of each checkpoint, including its storage: from its first call to the first call of the next."""
    log = [json.loads(line) for line in calls.read_text().splitlines()]
    first = {row: began for row, began, _ in log}
    last = max(ended for _, _, ended in log)
    return np.diff([*[first[start] for start in starts], last])


if __name__ == "__main__":
    measured(__doc__ or "", _measure, target_ms=200, checkpoints=12)
