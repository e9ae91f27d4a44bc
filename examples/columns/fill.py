"""Create a dataset of reviews with a computed column, and backfill it. It can run again at any time."""

from __future__ import annotations

import sys

import pyarrow as pa
from features import sentiment

import floodmark as fm

ROWS = 400


def main() -> None:
    """Write the reviews, and compute missing values."""
    # This run takes a few seconds, so it needs more frequent checkpoints than the default of ten seconds.
    runtime = fm.Runtime(checkpoint_seconds=0.5)
    lake = fm.Lake("lake", runtime=runtime)
    reviews = lake.create("reviews", key="id", exist_ok=True)
    moods = ("good", "bad", "good good", "fair")
    texts = [f"review {n}: {moods[n % len(moods)]}" for n in range(ROWS)]
    reviews.write(pa.table({"id": list(range(ROWS)), "text": texts}))  # does nothing if the rows exist
    reviews.add_column("sentiment", sentiment, exist_ok=True)
    done = reviews.backfill("sentiment")
    sys.stdout.write(f"computed {done.computed}, reused {done.reused}, done before {done.done}\n")


if __name__ == "__main__":
    main()
