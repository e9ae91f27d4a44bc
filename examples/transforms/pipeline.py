"""Weather stations: from raw readings to clean readings, to a row per station, to a ranking of places."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from floodmark import BatchGenerate, BatchTransform, DatatableTransform, OutputSpec, Pipeline, Required

PLACES = {1: "Harbour", 2: "Hills", 3: "Airport"}


def stations() -> Iterator[pa.Table]:
    """All stations. A real function would request them from a service."""
    yield pa.table({"station": list(PLACES), "place": list(PLACES.values())})


def celsius(readings: pd.DataFrame) -> pd.DataFrame:
    """One row per reading, in degrees Celsius. A reading that is not a number fails; the others succeed."""
    fahrenheit = pd.to_numeric(readings["raw"])
    return readings[["station", "at"]].assign(degrees=((fahrenheit - 32) / 1.8).round(1))


def summary(celsius: pd.DataFrame, stations: pd.DataFrame) -> pd.DataFrame:
    """One row per station. Called with all readings of the stations that have new ones."""
    found = celsius.groupby("station", as_index=False).agg(readings=("at", "count"), warmest=("degrees", "max"))
    return found.merge(stations, on="station")


def ranking(by_station: pa.Table) -> pa.Table:
    """A ranking needs all rows at once, so it is computed completely when its input changes."""
    best = by_station.sort_by([("warmest", "descending"), ("station", "ascending")])
    return best.select(["station", "place"]).append_column("rank", pa.array(range(1, len(best) + 1)))


pipeline = Pipeline(
    [
        BatchGenerate(stations, [OutputSpec("stations", key="station")], labels={"stage": "source"}),
        BatchTransform(celsius, ["readings"], ["celsius"], labels={"stage": "clean"}),
        BatchTransform(
            summary,
            inputs=["celsius", Required("stations")],
            outputs=["by_station"],
            transform_keys=["station"],
            labels={"stage": "sum"},
        ),
        DatatableTransform(ranking, ["by_station"], ["ranking"], labels={"stage": "sum"}),
    ]
)
