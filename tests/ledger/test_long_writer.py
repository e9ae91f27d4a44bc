"""A process that writes for a long time: its memory does not grow with the number of its commits."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

import floodmark as fm
from ledger.worlds import START, Clock
from limits import set_limit
from profiles import IN_FULL

TIER = 8**3
"""Segments are merged in powers of eight. After a power, the index is in the same state as after the power before."""


def rows(*values: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(values, pa.int64()), "at": pa.array([START] * len(values), pa.timestamp("us", "UTC"))}
    )


def append(dataset, number):
    dataset.write(rows(number))


def append_with_state(dataset, number):
    dataset.write(rows(number), source="s", state=str(number))


def upsert(dataset, number):
    dataset.write(rows(number % 50, 1_000 + number))


def advance(dataset, number):
    dataset.advance_watermark(START + timedelta(seconds=number))


WRITES: dict[str, tuple[Callable[..., None], dict[str, object]]] = {
    "append": (append, {}),
    "append with a source state": (append_with_state, {}),
    "append to a timeline": (append, {"event_time": "at", "partition_by": "day"}),
    "upsert": (upsert, {"key": "id"}),
    "watermark": (advance, {"event_time": "at"}),
}


def growth(tmp_path, write: str, first: int, commits: int) -> float:
    """The bytes that a commit leaves in the memory of the process, after the first commits.

    Each half of the commits is measured, and the smaller growth counts: what is allocated once is not left by a commit.
    """
    act, options = WRITES[write]
    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(clock=Clock(), fold_at=None))
    dataset = lake.create("d", schema=rows().schema, **options)
    for number in range(1, first + 1):
        act(dataset, number)
    tracemalloc.start()
    try:
        sizes, half = [allocated()], commits // 2
        for start in (first + 1, first + 1 + half):
            for number in range(start, start + half):
                act(dataset, number)
            sizes.append(allocated())
        return min(sizes[1] - sizes[0], sizes[2] - sizes[1]) / half
    finally:
        tracemalloc.stop()


def allocated() -> int:
    """The bytes that Python and Arrow hold now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
def test_commit_leaves_nothing_in_memory(tmp_path, monkeypatch, write):
    set_limit(monkeypatch, "storage.checked_slices", 16)
    set_limit(monkeypatch, "rows.open_copies", 16)  # so that there are as many as there may be before the measurement
    assert growth(tmp_path, write, 64, 256) < 1_000


@pytest.mark.soak(only=True)
@pytest.mark.skipif(not IN_FULL, reason="takes minutes: only in a long soak")
@pytest.mark.parametrize("write", WRITES)
def test_twenty_thousand_commits_leave_nothing_in_memory(tmp_path, monkeypatch, write):
    set_limit(monkeypatch, "storage.checked_slices", 16)
    assert growth(tmp_path, write, TIER, 20_000) < 300
