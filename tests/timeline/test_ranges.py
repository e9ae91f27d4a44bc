"""Ranges: [start, end) as users give it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pandas as pd
import pytest

from floodmark.errors import BadRange
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, TimePoint
from floodmark.timeline.sections import Range, parse_range

DAY = 86_400_000_000


@pytest.mark.parametrize(
    "given",
    [
        "1970-01-03",
        "1970-01-03T00:00:00Z",
        "1970-01-03T01:00+01:00",
        date(1970, 1, 3),
        datetime(1970, 1, 3, tzinfo=UTC),
        datetime(1970, 1, 3, 2, tzinfo=timezone(timedelta(hours=2))),
        pd.Timestamp("1970-01-03", tz="UTC"),
    ],
)
def test_a_moment_is_text_a_date_in_utc_or_a_time_with_a_zone(given):
    assert parse_range(given, None) == Range(TimePoint(2 * DAY, -1), MAX_POINT)
    assert parse_range(None, given) == Range(MIN_POINT, TimePoint(2 * DAY, -1))


def test_times_before_1970_are_negative():
    assert parse_range("1969-12-31T23:59:59.999999Z", "1970-01-01").first == TimePoint(-1, -1)


def test_start_is_part_of_the_range_and_end_is_not():
    within = parse_range("1970-01-01", "1970-01-02")
    assert within.meets(TimePoint(0, 0), TimePoint(0, 0))
    assert not within.meets(TimePoint(DAY, 0), TimePoint(DAY, 0))
    assert within.meets(TimePoint(-5, 3), TimePoint(0, 0))
    assert not within.meets(TimePoint(-5, 3), TimePoint(-1, 99))


def test_a_range_of_no_length_is_empty():
    assert parse_range("2026-11-01", "2026-11-01").is_empty
    assert not parse_range(None, None).is_empty


def test_a_range_that_ends_before_it_starts_is_refused():
    with pytest.raises(BadRange, match="ends before it starts") as caught:
        parse_range("2026-11-02", "2026-11-01")
    assert (caught.value.start, caught.value.end) == ("2026-11-02", "2026-11-01")


@pytest.mark.parametrize("given", ["yesterday", 7, 1.5, pd.NaT, b"2026-11-01", ""])
def test_what_is_no_time_is_refused(given):
    with pytest.raises(BadRange, match="is not a time"):
        parse_range(given, None)
    with pytest.raises(BadRange, match="is not a time"):
        parse_range(None, given)
