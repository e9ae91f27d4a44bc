"""Compute the revenue per zone and month with Spark, and write it to another dataset."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F  # noqa: N812 -- the usual alias

import floodmark as fm


def main(location: str) -> None:
    """Group the trips, and write the result with their last offset as its source state."""
    lake = fm.Lake(location)
    trips = lake["trips"]
    until = trips.last_offset
    revenue = (
        trips.read(as_of=until)
        .groupBy("zone", F.date_format("pickup_at", "yyyy-MM").alias("month"))
        .agg(F.count("*").alias("trips"), F.round(F.sum("fare"), 2).alias("fares"))
    )
    commit = lake.create("revenue", exist_ok=True).write(revenue, source="trips", state=str(until))
    print(f"revenue: {commit.rows} rows from trips up to offset {until}")


if __name__ == "__main__":
    main(sys.argv[1])
