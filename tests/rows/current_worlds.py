"""A keyed dataset and a naive replay of its records: what must be current after each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def people(ids: Any, tag: str) -> pa.Table:
    """A row for each id, whose value says which write it came from."""
    numbers = list(ids)
    return pa.table({"id": pa.array(numbers, pa.int64()), "v": [f"{tag}{n}" for n in numbers]})


def replayed(dataset: Any, end: int | None = None) -> dict[int, dict[str, Any]]:
    """The current rows by key, from the records alone, one by one: +A and +C put, -R and -C take away."""
    found: dict[int, dict[str, Any]] = {}
    for record in dataset.changes_arrow().to_pylist():
        if end is not None and record["offset"] >= end:
            break
        if record["op"] in (0, 3):
            found[record["id"]] = record
        else:
            found.pop(record["id"], None)
    return found


def rows(dataset: Any, end: int | None = None) -> list[dict[str, Any]]:
    """The same rows in offset order, without system columns."""
    current = sorted(replayed(dataset, end).values(), key=lambda r: r["offset"])
    return [{k: v for k, v in r.items() if k not in ("offset", "op", "system_time")} for r in current]


def lived_in(dataset: Any, seed: int, writes: int, keys: int = 40) -> Any:
    """Some upserts and deletes of random keys, small enough that slices overlap every which way."""
    rng = np.random.default_rng(seed)
    dataset.write(people(range(keys), "first"))
    for i in range(writes):
        ids = rng.choice(keys * 2, rng.integers(1, keys // 2), replace=False)
        if rng.integers(4) == 0:
            dataset.delete(ids.tolist())
        else:
            dataset.write(people(ids.tolist(), f"w{i}-"))
    return dataset
