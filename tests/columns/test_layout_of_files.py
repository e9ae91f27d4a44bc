"""Which files a backfill writes: a full fragment is one file, a growing one never has more than a few."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from floodmark.columns.manifest import ColumnSegment, Fragment
from floodmark.columns.plan import (
    MAX_SMALL_SEGMENTS,
    FragmentWindow,
    MissingRows,
    TargetFile,
    estimate_task_rows,
    plan_files,
    plan_fragment,
    split_shares,
)
from floodmark.storage import row_sets

ROWS = 64

World = tuple[FragmentWindow, tuple[ColumnSegment, ...], BitMap]


def window(end: int, *, start: int = 0, wanted: BitMap | None = None) -> FragmentWindow:
    live = row_sets.span(start, end)
    return FragmentWindow(0, start, end, 0, end == ROWS, live, live, live if wanted is None else wanted)


def segment(start: int, end: int) -> ColumnSegment:
    return ColumnSegment(start, end, f"{start}-{end}", 1, 1, 1)


def test_a_full_fragment_becomes_one_file() -> None:
    old = (segment(0, 32), segment(32, 40))
    assert plan_files(window(ROWS), old, row_sets.span(40, 64)) == (TargetFile(0, 64, old),)


def test_new_rows_become_a_segment_of_their_own_behind_a_larger_one() -> None:
    assert plan_files(window(34), (segment(0, 32),), row_sets.span(32, 34)) == (TargetFile(32, 34, ()),)


def test_new_rows_take_in_segments_that_are_no_larger_once_there_are_a_few() -> None:
    old = (segment(0, 32), *[segment(n, n + 2) for n in range(32, 44, 2)])
    assert plan_files(window(46), old, row_sets.span(44, 46)) == (TargetFile(32, 46, old[1:]),)
    assert plan_files(window(44), old[:-1], row_sets.span(42, 44)) == (TargetFile(42, 44, ()),)


def test_only_the_segment_that_a_row_falls_into_is_written_again() -> None:
    old = (segment(0, 16), segment(16, 20), segment(20, 22))
    assert plan_files(window(22), old, BitMap([17])) == (TargetFile(16, 20, (old[1],)),)


def test_a_file_that_was_lost_is_written_in_its_place() -> None:
    old = (segment(0, 16), segment(20, 22))
    assert plan_files(window(22), old, row_sets.span(16, 20)) == (TargetFile(16, 20, ()),)


def test_nothing_to_store_writes_nothing() -> None:
    assert plan_files(window(22), (), BitMap()) == ()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_a_growing_fragment_never_has_more_than_a_few_segments(appended: list[int]) -> None:
    segments: list[ColumnSegment] = []
    end = 0
    for rows in appended:
        end = min(end + rows, ROWS)
        start = segments[-1].end if segments else 0
        for target in plan_files(window(end), segments, row_sets.span(start, end)):
            segments = [s for s in segments if s not in target.replaced] + [segment(target.start, target.end)]
        segments.sort(key=lambda s: s.start)
        assert [s.end for s in segments[:-1]] == [s.start for s in segments[1:]]
        assert (segments[0].start, segments[-1].end) == (0, end)
        assert len(segments) <= math.log2(ROWS) + MAX_SMALL_SEGMENTS
    if end == ROWS:
        assert len(segments) == 1


@st.composite
def worlds(draw: st.DrawFn) -> World:
    cuts = sorted(draw(st.sets(st.integers(1, 40), min_size=2, max_size=6)))
    pairs = list(zip([0, *cuts], cuts, strict=False))
    kept = tuple(segment(a, b) for a, b in pairs if draw(st.booleans()))
    end = draw(st.sampled_from([cuts[-1], cuts[-1] + 3, ROWS]))
    rows = BitMap(draw(st.sets(st.integers(0, end - 1))))
    return window(end), kept, rows


@given(worlds())
def test_every_row_finds_a_place_and_no_file_overlaps_another(
    world: tuple[FragmentWindow, tuple[ColumnSegment, ...], BitMap],
) -> None:
    where, segments, rows = world
    targets = plan_files(where, segments, rows)
    replaced = [s for t in targets for s in t.replaced]
    assert len(replaced) == len(set(replaced))
    files = sorted([(t.start, t.end) for t in targets] + [(s.start, s.end) for s in segments if s not in replaced])
    assert all(a[1] <= b[0] for a, b in pairwise(files))
    assert all(any(t.start <= row < t.end for t in targets) for row in rows)
    for target in targets:
        assert all(target.start <= s.start and s.end <= target.end for s in target.replaced)


def test_rows_are_missing_for_the_first_reason_that_applies() -> None:
    before = Fragment(0, done=BitMap([0, 1]))
    reasons = [MissingRows(BitMap([2, 3]), "lost"), MissingRows(BitMap([3, 4]), "changed")]
    plan = plan_fragment(window(6), before, Fragment(0), before.done, reasons, (), ())
    found = [(sorted(m.rows), m.why) for m in plan.missing]
    assert found == [([2, 3], "lost"), ([4], "changed"), ([5], "not computed yet")]


def test_a_few_rows_are_one_task_and_many_fragments_one_each() -> None:
    assert estimate_task_rows(100_000, 1, 2, 1 << 20) == 1 << 20
    assert estimate_task_rows(4 << 20, 4, 2, 1 << 20) == 1 << 20
    assert estimate_task_rows(1 << 20, 1, 2, 1 << 20) == 1 << 18


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 50))
def test_shares_hold_every_missing_row_once_and_no_more_than_they_may(rows: set[int], most: int) -> None:
    found = split_shares([(3, BitMap(rows))], most)
    assert [row for share in found for row in share.rows] == sorted(rows)
    assert all(len(share.rows) <= most for share in found)
    assert all(share.start <= min(share.rows) and max(share.rows) < share.end for share in found)
    assert all(share.whole == (len(found) == 1) for share in found)
