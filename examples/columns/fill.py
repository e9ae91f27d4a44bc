"""Makes a dataset of reviews with a computed column, and fills the column; run it as often as you like."""

from __future__ import annotations

import sys

import pyarrow as pa
from features import sentiment

import floodmark as fm

ROWS = 400


def main() -> None:
    """Write the reviews if they are not there, and compute what is missing."""
    # So that a run of a few seconds has something to keep; ten seconds, the default, suit longer ones.
    runtime = fm.Runtime(checkpoint_seconds=0.5)
    lake = fm.Lake("lake", runtime=runtime)
    reviews = lake.create("reviews", key="id", exist_ok=True)
    moods = ("good", "bad", "good good", "fair")
    texts = [f"review {n}: {moods[n % len(moods)]}" for n in range(ROWS)]
    reviews.write(pa.table({"id": list(range(ROWS)), "text": texts}))  # the same rows again change nothing
    reviews.add_column("sentiment", sentiment, exist_ok=True)
    done = reviews.backfill("sentiment")
    sys.stdout.write(f"computed {done.computed}, reused {done.reused}, done before {done.done}\n")


if __name__ == "__main__":
    main()
