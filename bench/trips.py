"""Synthetic taxi trips with six columns, as Parquet files: the input of most benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_FILE = 1_000_000


def trips(start: int, rows: int) -> pa.Table:
    """Trips `start` to `start + rows`, identical on every call."""
    rng = np.random.default_rng(start)
    ids = np.arange(start, start + rows)
    pickup = pa.array(1_700_000_000_000_000 + ids * 1_000 + rng.integers(0, 1_000, rows)).cast(
        pa.timestamp("us", "UTC")
    )
    payment = np.array(["card", "cash", "app", "none"])[rng.integers(0, 4, rows)]
    return pa.table(
        {
            "id": ids,
            "pickup_at": pickup,
            "distance": rng.gamma(2, 3, rows),
            "fare": np.round(rng.gamma(3, 5, rows), 2),
            "passengers": rng.integers(0, 7, rows).astype(np.int32),
            "payment": pa.array(payment),
        }
    )


def write_files(folder: Path, rows: int) -> list[Path]:
    """The trips as Parquet files of a million rows."""
    folder.mkdir(parents=True)
    paths = []
    for start in range(0, rows, ROWS_PER_FILE):
        path = folder / f"trips-{start:012d}.parquet"
        pq.write_table(trips(start, min(ROWS_PER_FILE, rows - start)), path)
        paths.append(path)
    return paths
