"""The pandas functions of the transform benchmarks: one row per trip, or one per driver."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

import floodmark as fm

SCHEMA = "id bigint, score double, band string"


def score(trips: pd.DataFrame) -> pd.DataFrame:
    """One row per trip."""
    per_km = trips["fare"] / (trips["distance"] + 1.0)
    band = pd.Series("low", index=trips.index).mask(per_km > 3.0, "high")
    return pd.DataFrame({"id": trips["id"], "score": per_km.round(3), "band": band})


def scores(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The same as the body of `mapInPandas`."""
    for frame in frames:
        yield score(frame)


def totals(trips: pd.DataFrame) -> pd.DataFrame:
    """One row per driver, from all trips of the driver."""
    grouped = trips.groupby("driver", as_index=False)
    return grouped.agg(trips=("id", "size"), fares=("fare", "sum"), longest=("distance", "max"))


pipeline = fm.Pipeline([fm.BatchTransform(score, inputs=["trips"], outputs=["scores"], chunk_size=10_000)])
