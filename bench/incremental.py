"""A transform after a few of many keys changed: with more and more keys, and against changelist v1.

Run: python bench/incremental.py --rows 10000000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import floodmark as fm
from floodmark.engine.session import Session
from measuring import Curve, Figure, Growth, measured, seconds, without_spark
from scoring import score
from trips import write_files

CHANGED = 1_000
CHUNK = 10_000
NOTHING_TO_DO = """
import json, sys, time
import floodmark as fm
lake = fm.Lake(sys.argv[1])
from scoring import pipeline
step = pipeline["score"]
began = time.perf_counter()
done = step.run(lake)
seconds = time.perf_counter() - began
assert done.nothing, done
print(json.dumps({"seconds": seconds, "spark": "pyspark" in sys.modules}))
"""


def _measure(root: Path, args: argparse.Namespace) -> list[Figure | Curve]:
    sizes = sorted({max(args.rows // 100, CHANGED), max(args.rows // 10, CHANGED), args.rows})
    times: dict[int, float] = {}
    title = f"A transform after {CHANGED:,} keys have changed"
    growth = Growth("incremental", title, "keys", "seconds", x_scale="log", y_scale="log")
    with Session() as session:
        session.get()
        for rows in sizes:
            lake = _lake(root / f"lake{rows}", root / f"in{rows}", rows, session)
            new, old = _step("scores", offsets=True), _step("scores_v1", offsets=False)
            assert new.run(lake).keys == old.run(lake).keys == rows
            times[rows], whole = (median(t) for t in _times(lake, [new, old], rows, args.repeats))
            growth.add("changelist v2", rows, times[rows])
            growth.add("changelist v1: reads every key", rows, whole)
        _same(lake)
        nothing = without_spark(NOTHING_TO_DO, root / f"lake{args.rows}", args.repeats)
    small, middle, large = (times[rows] for rows in sizes)
    shown = ", ".join(f"{t * 1000:.0f} ms of {rows:,}" for rows, t in times.items())
    return [
        Figure("growth", f"{CHANGED:,} changed keys of {sizes[2]:,} ÷ of {sizes[0]:,}, v2", large / small, shown),
        Figure("middle", f"{CHANGED:,} changed keys of {sizes[1]:,} ÷ of {sizes[0]:,}, v2", middle / small, shown),
        # v1 reads all keys, which is fast if there are few: the bar is for ten million keys.
        Figure("v1", f"v1 ÷ v2, {sizes[2]:,} keys", whole / large, f"{whole:.2f} s ÷ {large * 1000:.0f} ms"),
        Figure(
            "nothing", "nothing to do: seconds beyond importing the pipeline", nothing, "no Spark; a separate process"
        ),
        growth.curve(),
    ]


def _lake(path: Path, files: Path, rows: int, session: Session) -> fm.Lake:
    lake = fm.Lake(path, runtime=fm.Runtime(session=session, fold_at=None))
    lake.create("trips", key="id", event_time="pickup_at").write(write_files(files, rows))
    return lake


def _step(output: str, offsets: bool) -> fm.BatchTransform:
    return fm.BatchTransform(
        score, inputs=["trips"], outputs=[output], chunk_size=CHUNK, use_offset_optimization=offsets
    )


def _times(lake: fm.Lake, steps: list[fm.BatchTransform], rows: int, repeats: int) -> list[list[float]]:
    """The times of each step after the same change, in turns. The first round only warms up."""
    rng = np.random.default_rng(1)
    times: list[list[float]] = [[] for _ in steps]
    for number in range(repeats + 1):
        _change(lake, rng.choice(rows, CHANGED, replace=False))
        order = list(enumerate(steps))
        for which, step in order if number % 2 else order[::-1]:
            done: list[fm.RunReport] = []
            took = seconds(lambda step=step, done=done: done.append(step.run(lake)))  # type: ignore[misc]
            assert done[0].keys == CHANGED, done
            if number:
                times[which].append(took)
    return times


def _change(lake: fm.Lake, ids: np.ndarray) -> None:
    """Change the fares of these trips."""
    rows = lake["trips"].get(pa.table({"id": ids}))
    fares = pa.compute.add(rows.column("fare"), 1.0)
    commit = lake["trips"].write(rows.set_column(rows.schema.get_field_index("fare"), "fare", fares))
    assert commit.changed == len(ids)


def _same(lake: fm.Lake) -> None:
    """Check that both steps wrote the same rows, and that these are the function's results."""
    v2, v1 = (lake[name].to_arrow().sort_by("id") for name in ("scores", "scores_v1"))
    expected = pa.Table.from_pandas(score(lake["trips"].to_pandas()), preserve_index=False).sort_by("id")
    assert v2.equals(v1)
    assert v2.equals(expected.select(v2.column_names).cast(v2.schema))


if __name__ == "__main__":
    measured(__doc__ or "", _measure, rows=1_000_000, repeats=5)
