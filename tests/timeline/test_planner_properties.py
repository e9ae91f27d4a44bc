"""The planner for any row groups and any late rows, against what a row-by-row reading of its rules says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.pieces import TimePoint
from floodmark.timeline.planner import CopyLate, CopyRowGroup, MergeLate, RowGroupBounds, cuts, plan, ranks, split


@st.composite
def row_groups(draw):
    """Row groups in order; neighbours may touch, and a few times are enough for many ties."""
    edges = sorted(draw(st.lists(st.integers(0, 30), max_size=12)))
    return [RowGroupBounds(a, b, draw(st.integers(1, 20))) for a, b in zip(edges[::2], edges[1::2], strict=False)]


late_rows = st.lists(st.integers(-2, 32), max_size=40).map(lambda times: np.array(sorted(times), np.int64))
options = {"small": st.integers(0, 20), "most": st.integers(1, 15), "dedup": st.booleans()}


def taken(groups, time, small):
    """The row group that a late row goes into by the rules, row by row; None for one that stands alone."""
    inside = [i for i, g in enumerate(groups) if g.min <= time <= g.max]
    if inside:
        return inside[0]
    before = [i for i, g in enumerate(groups) if g.max < time][-1:]
    after = [i for i, g in enumerate(groups) if g.min > time][:1]
    return next((i for i in (*before, *after) if groups[i].rows < small), None)


def coalesced(groups, late, dedup):
    """Row groups with those put together that share a timestamp of a late row; and which ones they are made of."""
    blocks = [(g, i, i) for i, g in enumerate(groups)]
    while dedup:
        at = next((n for n, (a, b) in enumerate(pairwise(blocks)) if a[0].max == b[0].min and a[0].max in late), None)
        if at is None:
            break
        (a, first, _), (b, _, last) = blocks[at : at + 2]
        blocks[at : at + 2] = [(RowGroupBounds(a.min, b.max, a.rows + b.rows), first, last)]
    return blocks


@given(row_groups(), late_rows, options["small"], options["most"], options["dedup"])
def test_every_late_row_is_claimed_once_in_order_and_by_the_row_group_that_the_rules_name(
    groups, late, small, most, dedup
):
    blocks = coalesced(groups, late.tolist(), dedup)
    claimed = []
    for action in plan(groups, late, small=small, most=most, dedup=dedup):
        match action:
            case MergeLate(first, last, _, _, lo, hi):
                claimed += [(row, (first, last)) for row in range(lo, hi)]
            case CopyLate(lo, hi):
                claimed += [(row, None) for row in range(lo, hi)]
    wanted = [taken([b for b, _, _ in blocks], time, small) for time in late.tolist()]
    assert claimed == [(i, None if w is None else blocks[w][1:]) for i, w in enumerate(wanted)]


@given(row_groups(), late_rows, options["small"], options["most"], options["dedup"])
def test_every_row_group_is_copied_or_merged_once_and_whole(groups, late, small, most, dedup):
    seen = []
    for action in plan(groups, late, small=small, most=most, dedup=dedup):
        match action:
            case MergeLate(first, last, lo, hi, late_lo, late_hi):
                assert late_lo < late_hi
                assert (lo, hi) == (0, sum(g.rows for g in groups[first : last + 1]))
                assert first == last or dedup
                seen += range(first, last + 1)
            case CopyRowGroup(index, lo, hi):
                assert (lo, hi) == (0, groups[index].rows)
                seen.append(index)
    assert seen == list(range(len(groups)))


@given(row_groups(), late_rows, options["small"], options["most"], options["dedup"])
def test_what_the_actions_make_is_in_time_order(groups, late, small, most, dedup):
    spans = []
    for action in plan(groups, late, small=small, most=most, dedup=dedup):
        match action:
            case MergeLate(first, last, _, _, lo, hi):
                spans.append((min(groups[first].min, late[lo]), max(groups[last].max, late[hi - 1])))
            case CopyRowGroup(index):
                spans.append((groups[index].min, groups[index].max))
            case CopyLate(lo, hi):
                spans.append((late[lo], late[hi - 1]))
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@given(row_groups(), late_rows, options["small"], options["most"], options["dedup"])
def test_rows_that_stand_alone_are_cut_within_bounds(groups, late, small, most, dedup):
    actions = plan(groups, late, small=small, most=most, dedup=dedup)
    for action, following in pairwise([*actions, None]):
        if isinstance(action, CopyLate):
            rows = action.late_hi - action.late_lo
            assert 0 < rows <= most + most // 2
            if isinstance(following, CopyLate):
                assert rows == most  # only the last of them may differ
            else:
                assert rows <= most or rows - most < small


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_a_split_is_even_complete_and_no_finer_than_it_must_be(total, most):
    chunks = split(total, most)
    largest = most + most // 2
    assert sum(chunks) == total
    assert chunks == sorted(chunks, reverse=True)
    assert all(0 < c <= largest for c in chunks)
    assert not chunks or chunks[0] - chunks[-1] <= 1
    assert (len(chunks) - 1) * largest < total or not chunks


@given(st.lists(st.integers(0, 12), max_size=300).map(sorted), st.integers(1, 60))
def test_cuts_keep_chunks_within_bounds_and_spare_ties_that_they_can(times, most):
    found = cuts(np.array(times, np.int64), most)
    sizes = split(len(times), most)
    even = np.cumsum(sizes).tolist()
    assert len(found) == max(0, len(sizes) - 1)
    chunks = [b - a for a, b in pairwise([0, *found, len(times)])]
    assert all(0 < c <= most + most // 2 for c in chunks) or not times
    for i, cut in enumerate(found):
        near = min(sizes[i], sizes[i + 1]) // 8
        assert abs(cut - even[i]) <= near
        if times[cut] == times[cut - 1]:
            assert cut == even[i]
            before = found[i - 1] if i else 0
            free = [p for p in range(cut - near, cut + near + 1) if times[p] != times[p - 1]]
            largest = most + most // 2
            assert all(p - before > largest or even[i + 1] - p > largest for p in free)


places = st.tuples(st.integers(-3, 3), st.integers(0, 60))


@given(st.sets(places, max_size=20).map(sorted), st.sets(places, max_size=30).map(sorted))
def test_ranks_compare_as_places_do(bounds, late):
    if len(bounds) % 2:
        bounds = bounds[:-1]
    groups = [(TimePoint(*a), TimePoint(*b)) for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
    numbers, rows = ranks(groups, np.array([t for t, _ in late], np.int64), np.array([o for _, o in late], np.int64))
    for pair, ranked in zip(groups, numbers, strict=True):
        for place, number in zip(pair, ranked, strict=True):
            for (time, offset), row in zip(late, rows.tolist(), strict=True):
                own = (time, offset)
                assert (own < place, own == place) == (row < number, row == number)
    flat = [n for pair in numbers for n in pair]
    assert flat == sorted(flat)
    assert rows.tolist() == sorted(set(rows.tolist()))
