"""A `now` in the past is warned of, kept where the user can see it, and loses nothing."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from floodmark.errors import FloodmarkError
from ledger.worlds import START, blocks
from rows.twins import Twin

SCHEMA = {"id": pa.int64(), "x": pa.string()}


@pytest.fixture
def twin(lake):
    return Twin(lake, SCHEMA, "upsert", ["id"])


def warned(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_past_now_is_warned_of_in_the_words_of_the_seed(twin, clock, caplog):
    past = START
    clock.tick(90)
    twin.store_chunk([{"id": 1, "x": "a"}], now=past)
    [warning] = warned(caplog)
    assert "store_chunk called with now=" in warning
    assert "which is 90" in warning
    assert "s in the past" in warning
    assert "data loss" not in warning, "no position of a consumer is a timestamp here"


def test_present_now_is_not_warned_of(twin, clock, caplog):
    twin.store_chunk([{"id": 1, "x": "a"}])
    twin.store_chunk([{"id": 2, "x": "a"}], now=clock.tick(0))
    assert warned(caplog) == []


def test_past_now_loses_nothing(twin, clock):
    """Whoever reads on from an offset gets the rows, whatever time they claim."""
    twin.store_chunk([{"id": 1, "x": "a"}])
    clock.tick(3600)
    commit = twin.store_chunk([{"id": 1, "x": "b"}, {"id": 2, "x": "c"}], now=START - timedelta(days=1))
    assert commit.changed == commit.new == 1
    assert twin.dataset.changes_arrow(since=0)["x"].to_pylist() == ["a", "b", "c"]
    twin.check_all()


def test_system_time_stays_monotonic(twin, clock):
    for back in (0, 3600, 10, 7200):
        clock.tick()
        twin.store_chunk([{"id": back, "x": "a"}], now=START - timedelta(seconds=back))
    times = [block.system_time for _, block in blocks(twin.dataset)]
    assert times == sorted(times)
    of_records = twin.dataset.changes_arrow()["system_time"].to_pylist()
    assert of_records == sorted(of_records)
    assert min(of_records) > START
    assert twin.dataset.verify().ok


def test_state_as_of_a_time_is_not_changed_by_a_past_now(twin, clock):
    twin.store_chunk([{"id": 1, "x": "a"}])
    before = clock.tick(60)
    clock.tick(60)
    twin.store_chunk([{"id": 1, "x": "b"}], now=START)
    assert twin.dataset.to_arrow(as_of=before)["x"].to_pylist() == ["a"]


def test_given_time_is_seen_in_the_commit_and_in_the_log(twin, clock):
    clock.tick(90)
    past = START + timedelta(seconds=7)
    commit = twin.store_chunk([{"id": 1, "x": "a"}], now=past)
    assert commit.now == past
    newest = next(iter(twin.dataset.log()))
    assert "2026-03-01" in newest.summary
    assert "00:00:07" in newest.summary


def test_given_time_is_still_known_when_the_commit_is_found_again(twin, clock):
    clock.tick(90)
    first = twin.store_chunk([{"id": 1, "x": "a"}], now=START, source="s", state="1")
    again = twin.dataset.store_chunk(twin.table([{"id": 1, "x": "a"}]), source="s", state="1")
    assert (again, again.now) == (first, START)


def test_now_in_the_future_moves_no_system_time(twin, clock, caplog):
    commit = twin.store_chunk([{"id": 1, "x": "a"}], now=START + timedelta(days=1))
    assert (commit.system_time, commit.now) == (START, START + timedelta(days=1))
    assert warned(caplog) == []


@pytest.mark.parametrize("given", ["soon", float("nan"), float("inf"), 1e30, True, 1j, pd.NaT])
def test_now_that_is_no_time_is_refused(twin, given):
    head = twin.dataset.head
    with pytest.raises((ValueError, TypeError, FloodmarkError)):
        twin.dataset.store_chunk(twin.table([{"id": 1, "x": "a"}]), now=given)
    assert twin.dataset.head == head


@pytest.mark.parametrize("number", [float, int, np.float64, np.int32], ids=lambda kind: kind.__name__)
def test_now_may_be_seconds_since_1970_as_the_clock_gives_them(twin, clock, caplog, number):
    clock.tick(90)
    commit = twin.store_chunk([{"id": 1, "x": "a"}], now=number(START.timestamp()))
    assert commit.now == START
    [warning] = warned(caplog)
    assert "store_chunk called with now=2026-03-01T00:00:00+00:00 which is 90s in the past" in warning


def test_now_of_zero_is_1970(twin):
    """Datapipe's own tests write with now=0."""
    assert twin.store_chunk([{"id": 1, "x": "a"}], now=0).now == datetime(1970, 1, 1, tzinfo=UTC)


def test_fraction_of_a_second_is_kept(twin):
    assert twin.store_chunk([{"id": 1, "x": "a"}], now=1794857852.25).now.microsecond == 250_000
