"""Partitions of event time: where they begin and end, and what they are called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.errors import BadRange
from floodmark.timeline import settings

EPOCH = datetime(1970, 1, 1)
FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
units = st.sampled_from(settings.UNITS)
moments = st.datetimes(FIRST, LAST)


def micros(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def beginning(moment, unit):
    """The same by Python's calendar."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return {
        "hour": day.replace(hour=moment.hour),
        "day": day,
        "week": day - timedelta(days=moment.weekday()),
        "month": day.replace(day=1),
        "year": day.replace(month=1, day=1),
    }[unit]


@given(st.lists(moments, max_size=5), units)
@example([FIRST, LAST, EPOCH - timedelta(microseconds=1)], "week")
@example([FIRST, LAST, EPOCH - timedelta(microseconds=1)], "month")
def test_each_time_lies_in_the_partition_that_the_calendar_says(times, unit):
    found = settings.partition_starts(np.array([micros(t) for t in times], np.int64), unit)
    assert found.dtype == np.int64
    assert found.tolist() == [micros(beginning(t, unit)) for t in times]


@given(moments, units)
@example(LAST, "year")
@example(FIRST, "week")
def test_a_partition_ends_where_the_next_begins(moment, unit):
    start = micros(beginning(moment, unit))
    end = settings.partition_end(start, unit)
    assert start <= micros(moment) < end
    assert settings.partition_starts(np.array([end - 1, end], np.int64), unit).tolist() == [start, end]


@given(moments, units)
@example(FIRST, "year")
@example(datetime(2020, 12, 31), "week")  # in the 53rd week
@example(datetime(2024, 12, 30), "week")  # in the first week of 2025
def test_a_label_names_its_partition_again(moment, unit):
    start = micros(beginning(moment, unit))
    assert settings.parse_partition(settings.partition_label(start, unit), unit) == start
    assert settings.parse_partition(moment.isoformat(), unit) == start


@pytest.mark.parametrize(
    ("unit", "label"),
    [("hour", "2026-11-01T13"), ("day", "2026-11-01"), ("week", "2026-W44"), ("month", "2026-11"), ("year", "2026")],
)
def test_labels_are_those_of_the_calendar(unit, label):
    start = settings.partition_starts(np.array([micros(datetime(2026, 11, 1, 13, 45))], np.int64), unit)[0]
    assert settings.partition_label(int(start), unit) == label


@given(units, st.lists(moments, min_size=2, max_size=2))
def test_labels_sort_as_their_partitions_do(unit, pair):
    a, b = sorted(micros(beginning(t, unit)) for t in pair)
    assert (settings.partition_label(a, unit) < settings.partition_label(b, unit)) == (a < b)


def test_a_time_with_a_zone_is_taken_as_the_instant_it_is():
    start = settings.parse_partition("2026-11-01T00:30+02:00", "day")
    assert settings.partition_label(start, "day") == "2026-10-31"
    assert settings.parse_partition(datetime(2026, 10, 31, tzinfo=UTC).isoformat(), "day") == start


@pytest.mark.parametrize(
    ("text", "unit", "start"),
    [
        ("2026-11-04", "week", datetime(2026, 11, 2)),
        ("2026-11-04", "month", datetime(2026, 11, 1)),
        ("2026-11", "year", datetime(2026, 1, 1)),
        ("2026-11-04 13", "day", datetime(2026, 11, 4)),
        (" 2026-11-04T13:59:59.5Z ", "hour", datetime(2026, 11, 4, 13)),
    ],
)
def test_whatever_lies_in_one_partition_names_it(text, unit, start):
    assert settings.parse_partition(text, unit) == micros(start)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("2026-11-01", "hour"),
        ("2026-11", "day"),
        ("2026-W45", "day"),
        ("2026-W45", "month"),  # a week may lie in two months
        ("2026", "month"),
        ("2026-W54", "week"),
        ("2026-13", "month"),
        ("2026-02-30", "day"),
        ("yesterday", "day"),
        ("", "year"),
    ],
)
def test_a_label_that_names_no_partition_or_several_is_refused(text, unit):
    with pytest.raises(BadRange, match=f"is not a partition by {unit}") as caught:
        settings.parse_partition(text, unit)
    assert caught.value.start == text
    assert settings.parse_partition(caught.value.hint.split(" such as ")[1].split(",")[0], unit)
