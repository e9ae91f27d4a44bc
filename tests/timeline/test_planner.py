"""The planner by example: what the vectors do not say."""

from __future__ import annotations

import numpy as np
import pytest

from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, TimePoint
from floodmark.timeline.planner import CopyLate, CopyRowGroup, MergeLate, RowGroupBounds, cuts, plan, ranks, split


def late(*times):
    return np.array(times, np.int64)


def test_without_late_rows_every_row_group_stays():
    groups = [RowGroupBounds(0, 9, 10), RowGroupBounds(20, 29, 10)]
    assert plan(groups, late()) == [CopyRowGroup(0, 0, 10), CopyRowGroup(1, 0, 10)]


def test_nothing_at_all_needs_no_action():
    assert plan([], late()) == []


def test_rows_in_a_gap_go_into_a_small_next_row_group_if_the_previous_is_large():
    groups = [RowGroupBounds(100, 200, 50), RowGroupBounds(400, 500, 5)]
    assert plan(groups, late(300, 301), small=10) == [CopyRowGroup(0, 0, 50), MergeLate(1, 1, 0, 5, 0, 2)]


def test_of_two_small_neighbours_the_previous_takes_the_gap():
    groups = [RowGroupBounds(100, 200, 5), RowGroupBounds(400, 500, 5)]
    assert plan(groups, late(300), small=10) == [MergeLate(0, 0, 0, 5, 0, 1), CopyRowGroup(1, 0, 5)]


def test_a_small_row_group_takes_gaps_on_both_sides_with_what_it_overlaps():
    groups = [RowGroupBounds(0, 10, 50), RowGroupBounds(100, 200, 5), RowGroupBounds(400, 500, 50)]
    assert plan(groups, late(50, 150, 300), small=10) == [
        CopyRowGroup(0, 0, 50),
        MergeLate(1, 1, 0, 5, 0, 3),
        CopyRowGroup(2, 0, 50),
    ]


def test_a_row_group_of_exactly_small_rows_is_not_small():
    assert plan([RowGroupBounds(0, 1, 10)], late(5), small=10) == [CopyRowGroup(0, 0, 10), CopyLate(0, 1)]
    assert plan([RowGroupBounds(0, 1, 9)], late(5), small=10) == [MergeLate(0, 0, 0, 9, 0, 1)]


def test_row_groups_of_exactly_small_rows_take_nothing_from_the_gap_between_them():
    groups = [RowGroupBounds(0, 1, 10), RowGroupBounds(8, 9, 10)]
    assert plan(groups, late(5), small=10) == [CopyRowGroup(0, 0, 10), CopyLate(0, 1), CopyRowGroup(1, 0, 10)]


def test_rows_before_and_after_all_go_into_small_outer_row_groups():
    groups = [RowGroupBounds(100, 200, 5), RowGroupBounds(300, 400, 50), RowGroupBounds(500, 600, 5)]
    assert plan(groups, late(1, 999), small=10) == [
        MergeLate(0, 0, 0, 5, 0, 1),
        CopyRowGroup(1, 0, 50),
        MergeLate(2, 2, 0, 5, 1, 2),
    ]


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        (10, [10]),
        (12, [12]),  # a remainder below small is taken along
        (13, [10, 13]),  # one that is not small stands alone
        (22, [10, 22]),
        (23, [10, 20, 23]),
    ],
)
def test_the_last_chunk_of_a_gap_takes_a_small_remainder_along(rows, ends):
    starts = [0, *ends[:-1]]
    assert plan([], np.arange(rows), small=3, most=10) == [CopyLate(*c) for c in zip(starts, ends, strict=True)]


def test_a_remainder_that_would_make_a_chunk_too_large_stands_alone():
    assert plan([], np.arange(15), small=10, most=10) == [CopyLate(0, 15)]
    assert plan([], np.arange(16), small=10, most=10) == [CopyLate(0, 10), CopyLate(10, 16)]


def test_several_row_groups_that_share_a_timestamp_merge_together_when_duplicates_are_removed():
    groups = [
        RowGroupBounds(100, 200, 4),
        RowGroupBounds(200, 200, 4),
        RowGroupBounds(200, 300, 4),
        RowGroupBounds(300, 400, 4),
    ]
    assert plan(groups, late(150, 200), small=1, dedup=True) == [MergeLate(0, 2, 0, 12, 0, 2), CopyRowGroup(3, 0, 4)]


def test_a_shared_timestamp_that_no_late_row_has_keeps_row_groups_apart():
    groups = [RowGroupBounds(100, 200, 4), RowGroupBounds(200, 300, 4)]
    assert plan(groups, late(150, 250), small=1, dedup=True) == [
        MergeLate(0, 0, 0, 4, 0, 1),
        MergeLate(1, 1, 0, 4, 1, 2),
    ]


@pytest.mark.parametrize(
    ("low", "high", "times"),
    [
        (np.datetime64("2026-01-02"), np.datetime64("2026-01-03"), ["2026-01-01T12", "2026-01-02T12"]),
        (np.datetime64("2026-01-02T00:00:00.000001"), np.datetime64("2026-01-03"), ["2026-01-02", "2026-01-03"]),
    ],
)
def test_event_times_may_be_datetimes_of_any_precision(low, high, times):
    hours = np.array(times, "datetime64[h]")
    assert plan([RowGroupBounds(low, high, 9)], hours, small=0) == [CopyLate(0, 1), MergeLate(0, 0, 0, 9, 1, 2)]


def test_event_times_may_be_text_or_floats():
    assert plan([RowGroupBounds("bb", "dd", 9)], np.array(["a", "c"]), small=0) == [
        CopyLate(0, 1),
        MergeLate(0, 0, 0, 9, 1, 2),
    ]
    assert plan([RowGroupBounds(0.5, 0.6, 9)], np.array([0.4, 0.5]), small=0) == [
        CopyLate(0, 1),
        MergeLate(0, 0, 0, 9, 1, 2),
    ]


def test_large_integers_are_compared_exactly():
    near = np.array([2**60 + 1], np.uint64)
    assert plan([RowGroupBounds(2**60, 2**60, 9)], near, small=0) == [CopyRowGroup(0, 0, 9), CopyLate(0, 1)]


@pytest.mark.parametrize(
    "groups",
    [
        [RowGroupBounds(5, 9, 1), RowGroupBounds(0, 4, 1)],
        [RowGroupBounds(0, 5, 1), RowGroupBounds(4, 9, 1)],
        [RowGroupBounds(2, 1, 1)],
    ],
)
def test_row_groups_out_of_order_are_refused(groups):
    with pytest.raises(ValueError, match="in time order"):
        plan(groups, late(3))


def test_a_merge_result_is_cut_at_the_nearest_change_of_time():
    times = np.repeat(np.arange(5), [48, 44, 12, 50, 46])  # 200 rows; around 100, the time changes at 92 and 104
    assert split(200, 100) == [100, 100]
    assert cuts(times, 100) == [104]


def test_a_cut_stays_inside_a_tie_that_reaches_too_far():
    assert cuts(np.repeat([1, 2], [80, 120]), 100) == [100]
    assert cuts(np.full(1000, 7), 100) == np.cumsum(split(1000, 100))[:-1].tolist()


@pytest.mark.parametrize("change", [149, 151])
def test_a_cut_does_not_move_if_a_chunk_would_grow_beyond_the_largest(change):
    assert split(300, 100) == [150, 150]
    assert cuts(np.repeat([1, 2], [change, 300 - change]), 100) == [150]


def test_what_fits_into_one_row_group_is_not_cut():
    assert cuts(np.arange(150), 100) == []
    assert cuts(np.arange(0), 100) == []


def test_ranks_tell_places_at_one_time_apart_by_their_offsets():
    groups = [(TimePoint(5, 10), TimePoint(7, 12)), (TimePoint(7, 20), TimePoint(9, 30))]
    times, offsets = late(7, 7, 7), late(11, 15, 25)
    bounds, rows = ranks(groups, times, offsets)
    planned = plan([RowGroupBounds(*b, 100) for b in bounds], rows, small=0)
    assert planned == [MergeLate(0, 0, 0, 100, 0, 1), CopyLate(1, 2), MergeLate(1, 1, 0, 100, 2, 3)]


def test_ranks_take_the_ends_of_all_time():
    bounds, rows = ranks([(MIN_POINT, MAX_POINT)], late(-(2**63), 2**63 - 1), late(0, 0))
    assert plan([RowGroupBounds(*bounds[0], 1)], rows, small=0) == [MergeLate(0, 0, 0, 1, 0, 2)]
