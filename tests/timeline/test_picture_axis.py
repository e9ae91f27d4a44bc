"""The axis of a picture has round times, as many as there is room for, and none that overlap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.scene import Axis
from floodmark.timeline.settings import parse_partition, partition_end
from timeline.drawn import DAY, HOUR


def ticks(lo: int, hi: int, cells: int = 70) -> list[str]:
    return [tick.text for tick in Axis(lo, hi, cells, 1).ticks()]


@pytest.mark.parametrize(
    ("unit", "label", "shown"),
    [
        ("hour", "2026-11-01T13", ["13:00", "13:10", "13:20", "13:30", "13:40", "13:50"]),
        ("day", "2026-11-01", ["00:00", "03:00", "06:00", "09:00", "12:00", "15:00", "18:00", "21:00"]),
        ("week", "2026-W45", ["11-02", "11-03", "11-04", "11-05", "11-06", "11-07", "11-08"]),
        ("month", "2026-11", ["11-02", "11-09", "11-16", "11-23"]),
        ("year", "2026", ["2026-01", "2026-04", "2026-07", "2026-10"]),
    ],
)
def test_every_unit_has_the_labels_that_people_would_write(unit, label, shown):
    start = parse_partition(label, unit)
    assert ticks(start, partition_end(start, unit)) == shown


def test_a_microsecond_has_a_label():
    assert ticks(5, 6) == ["00:00:00.000005"]


def test_a_few_milliseconds_have_labels_that_differ():
    found = ticks(0, 4000)
    assert found[:2] == ["00:00:00", "00:00:00.001"]
    assert len(set(found)) == len(found)


def test_times_before_1970_and_far_away_have_labels():
    assert ticks(-DAY, 0)[0] == "00:00"
    far = 400 * 365 * 10 * DAY
    assert ticks(far, far + HOUR)


def test_cells_are_the_nearest_ones_and_never_outside():
    axis = Axis(100, 200, 10, 1)
    assert [axis.cell(time) for time in (0, 100, 104, 105, 150, 199, 200, 999)] == [0, 0, 0, 1, 5, 10, 10, 10]


@given(st.integers(-(2**52), 2**52), st.integers(0, 50), st.integers(20, 200), st.integers(1, 4))
def test_labels_never_overlap_or_leave_the_axis(lo: int, power: int, width: int, letter: int):
    axis = Axis(lo, lo + 2**power, width * letter, letter)
    found = axis.ticks()
    assert found
    assert all(tick.cell >= 0 for tick in found)
    assert all(a.cell + len(a.text) * letter < b.cell for a, b in itertools.pairwise(found))
    assert all(tick.cell + len(tick.text) * letter <= axis.cells for tick in found)


def test_two_days_have_labels_with_the_day_and_the_minute():
    start = parse_partition("2026-11-01", "day")
    assert ticks(start, start + 2 * DAY)[:3] == ["11-01 00:00", "11-01 12:00", "11-02 00:00"]
