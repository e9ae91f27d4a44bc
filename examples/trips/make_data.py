"""Write the files of the example: three months of generated taxi trips, the same on every run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

ROWS = 100_000
LATE_ROWS = 1_200
ZONES = ["Airport", "Harbour", "Hills", "Old Town", "Station", "University"]
ZONE_SHARES = [0.10, 0.14, 0.08, 0.30, 0.22, 0.16]
ZONE_KM = [18.0, 6.0, 9.0, 3.0, 4.5, 5.0]
# Trips per hour of the day, from midnight: quiet before dawn, busy at eight and at six.
HOURS = np.array([3, 2, 1, 1, 1, 2, 4, 8, 9, 6, 5, 5, 6, 6, 5, 5, 6, 8, 9, 8, 7, 6, 5, 4], dtype=float)


def trips(rng: np.random.Generator, first_id: int, rows: int, start: datetime, end: datetime) -> pa.Table:
    """Trips with pickups in [start, end), in the order of their reports, which is nearly that of time."""
    days = rng.integers(0, (end - start).days, rows)
    hours = rng.choice(24, rows, p=HOURS / HOURS.sum())
    seconds = days * 86_400 + hours * 3_600 + rng.integers(0, 3_600, rows)
    reported = np.argsort(seconds + rng.exponential(900, rows), kind="stable")
    zone = rng.choice(len(ZONES), rows, p=ZONE_SHARES)
    distance = np.round(rng.gamma(4.0, np.array(ZONE_KM)[zone] / 4.0), 1) + 0.3
    tip = np.where(rng.random(rows) < 0.4, np.round(rng.exponential(2.0, rows), 2), np.nan)
    pickup = pa.array(((seconds + int(start.timestamp())) * 1_000_000)[reported])
    return pa.table(
        {
            "trip_id": np.arange(first_id, first_id + rows),
            "pickup_at": pickup.cast(pa.timestamp("us", "UTC")),
            "zone": pa.array(ZONES).take(pa.array(zone[reported])),
            "passengers": rng.choice(4, rows, p=[0.7, 0.18, 0.08, 0.04]) + 1,
            "distance_km": np.round(distance[reported], 1),
            "fare": np.round(2.80 + 1.90 * distance[reported], 2),
            "tip": pa.array(tip[reported], from_pandas=True),
        }
    )


def write_csv(table: pa.Table, path: Path) -> None:
    """Write a CSV file with times such as 2026-01-31T23:59:59Z."""
    seconds = table.column("pickup_at").cast(pa.timestamp("s", "UTC"))
    text = pc.strftime(seconds, "%Y-%m-%dT%H:%M:%SZ")
    pa_csv.write_csv(table.set_column(1, "pickup_at", text), path)


def main(folder: Path) -> None:
    """Write January and February as CSV, March as Parquet, late trips, and an invalid April."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2026)
    months = [datetime(2026, month, 1, tzinfo=UTC) for month in (1, 2, 3, 4, 5)]
    january, february, march = (trips(rng, i * ROWS, ROWS, *months[i : i + 2]) for i in range(3))
    late = trips(rng, 3 * ROWS, LATE_ROWS, months[0], months[2])
    april = trips(rng, 4 * ROWS, 1_000, *months[3:5])
    write_csv(january, folder / "2026-01.csv")
    write_csv(february, folder / "2026-02.csv")
    pq.write_table(march, folder / "2026-03.parquet")
    write_csv(late, folder / "late.csv")
    # The export changed: the fare is now a text with a currency.
    euros = pc.binary_join_element_wise(april.column("fare").cast(pa.string()), "EUR", " ")
    write_csv(april.set_column(april.schema.get_field_index("fare"), "fare", euros), folder / "2026-04.csv")
    for path in sorted(folder.iterdir()):
        print(f"{path.name:<16} {path.stat().st_size / 1e6:5.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
