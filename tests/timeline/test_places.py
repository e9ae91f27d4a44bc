"""Places: event times of any type as microseconds, put in order with offsets, and without the dead."""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.errors import BadEventTime
from floodmark.timeline import pieces
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, TimePoint

MOMENT = datetime(2026, 11, 1, 13, 30, tzinfo=UTC)
EARLY = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
TYPES = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")]


def exact(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**6


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_timestamps_of_every_unit_and_zone_become_the_same_microseconds(data_type):
    column = pa.chunked_array(
        [pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.array([EARLY], pa.timestamp("us", "UTC"))]
    )
    given = column.cast(pa.timestamp("us", data_type.tz)).cast(data_type)
    assert pieces.micros(given).tolist() == [exact(MOMENT), exact(EARLY)]


@pytest.mark.parametrize("data_type", [pa.date32(), pa.date64()], ids=str)
def test_a_date_is_its_first_moment(data_type):
    column = pa.array([date(2026, 11, 1), date(1969, 12, 31)], data_type)
    day = 86_400 * 10**6
    assert pieces.micros(column).tolist() == [exact(datetime(2026, 11, 1, tzinfo=UTC)), -day]


def test_nanoseconds_before_1970_round_down_as_those_after_it_do():
    assert pieces.micros(pa.array([-1, 1, 1999], pa.timestamp("ns"))).tolist() == [-1, 0, 1]


def test_slices_of_a_column_keep_their_own_values():
    column = pa.chunked_array([pa.array([1, 2, 3], pa.timestamp("us"))]).slice(1, 2)
    assert pieces.micros(column).tolist() == [2, 3]


def test_a_record_without_an_event_time_is_refused():
    with pytest.raises(BadEventTime, match="no event time"):
        pieces.micros(pa.array([1, None], pa.timestamp("us")))


def test_a_time_that_microseconds_cannot_hold_is_refused():
    with pytest.raises(BadEventTime, match="does not fit"):
        pieces.micros(pa.array([2**60], pa.timestamp("ms")))


def arrays(rows):
    return (np.array([row[i] for row in rows], np.int64) for i in (0, 1))


ROWS = st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 60)), unique_by=lambda row: row[1], max_size=40)


@given(ROWS)
def test_order_is_that_of_time_then_offset(rows):
    times, offsets = arrays(rows)
    positions = pieces.sort_positions(times, offsets)
    found = rows if positions is None else [rows[i] for i in positions]
    assert found == sorted(rows)
    assert (positions is None) == (rows == sorted(rows)) == pieces.in_order(times, offsets)


@pytest.mark.parametrize("runs", [2, 1000])
def test_order_of_many_rows_does_not_depend_on_how_many_runs_they_come_in(runs):
    rng = np.random.default_rng(7)
    rows = 20_000
    times = rng.integers(-(2**40), 2**40, rows) // 2**28  # many ties
    offsets = rng.permutation(rows)
    for part in np.array_split(np.arange(rows), runs):
        times[part] = np.sort(times[part])
    assert pieces.sort_positions(times, offsets).tolist() == np.lexsort((offsets, times)).tolist()


@given(ROWS, st.tuples(st.integers(-5, 5), st.integers(-1, 61)), st.tuples(st.integers(-5, 5), st.integers(-1, 61)))
def test_rows_between_two_places_are_those_from_the_first_up_to_the_second(rows, lo, hi):
    rows = sorted(rows)
    start, stop = pieces.rows_between(*arrays(rows), TimePoint(*lo), TimePoint(*hi))
    assert start <= stop
    assert rows[start:stop] == [row for row in rows if lo <= row < hi]


def test_all_rows_lie_between_beginning_and_end():
    times = np.array([-(2**63) + 1, 0, 2**63 - 1], np.int64)
    assert pieces.rows_between(times, np.arange(3), MIN_POINT, MAX_POINT) == (0, 3)


@given(
    st.lists(st.integers(0, 50) | st.integers(10**9, 10**9 + 9), unique=True, max_size=30),
    st.sets(st.integers(0, 50) | st.integers(10**9, 10**9 + 9), max_size=30),
    st.integers(0, 60),
)
@example([3, 5, 7], {7}, 0)  # the last one
@example([3, 5, 7], {3}, 0)
def test_only_the_living_are_left(offsets, dead, purged_before):
    expected = [o not in dead and o >= purged_before for o in offsets]
    mask = pieces.live_mask(np.array(offsets, np.int64), np.array(sorted(dead), np.int64), purged_before)
    assert (mask is None) == all(expected)
    assert mask is None or mask.tolist() == expected
