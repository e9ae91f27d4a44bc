"""Write the files of the example: sensor readings of two days, and some that arrive late."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAY = datetime(2026, 11, 1, tzinfo=UTC)
SENSORS = 20


def readings(random: np.random.Generator, start: datetime, length: timedelta, rows: int) -> pa.Table:
    """Readings at random times of an interval, in order."""
    since = np.sort(random.integers(0, length // timedelta(microseconds=1), rows))
    times = np.datetime64(start.replace(tzinfo=None), "us") + since.astype("m8[us]")
    return pa.table(
        {
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "sensor": pa.array(random.integers(0, SENSORS, rows), pa.int32()),
            "value": random.normal(20, 3, rows).round(2),
        }
    )


def main(folder: Path) -> None:
    """Write the deliveries, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2026)
    day, hour, minute = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
    files = {
        "sunday": readings(random, DAY, day, 24_000),
        "monday": readings(random, DAY + day, day, 24_000),
        "outage": readings(
            random, DAY + 9 * hour, 5 * minute, 150
        ),  # one site was offline, and sends its readings later
    }
    for number in range(12):  # a slow connection: a few readings of both days at a time
        files[f"drip-{number:02}"] = readings(random, DAY, 2 * day, 50)
    for name, table in files.items():
        pq.write_table(table, folder / f"{name}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("files"))
