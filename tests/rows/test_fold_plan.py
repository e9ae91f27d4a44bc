"""What a fold rewrites: files with dead records and small neighbours, and never a large file that is clean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from floodmark.ledger.selection import DataFile
from floodmark.rows.fold import FoldRule, FoldWindow, plan_windows

RULE = FoldRule(target_bytes=1000, target_rows=400)  # small: under 500 bytes and under 100 rows


def files(*shapes: tuple[int, int]) -> list[DataFile]:
    """Neighbours of so many rows and bytes."""
    made, at = [], 0
    for rows, size in shapes:
        made.append(DataFile(f"f{at}", at, at + rows, rows, size))
        at += rows
    return made


LARGE, SMALL = (200, 800), (10, 50)


def test_large_clean_files_stay():
    assert plan_windows(files(LARGE, LARGE, LARGE), [0, 0, 0], RULE) == []


def test_small_neighbours_become_one():
    assert plan_windows(files(LARGE, SMALL, SMALL, SMALL, LARGE), [0] * 5, RULE) == [FoldWindow(1, 4)]


def test_small_file_between_large_ones_stays():
    assert plan_windows(files(LARGE, SMALL, LARGE), [0] * 3, RULE) == []


def test_file_with_a_dead_record_is_rewritten_by_itself():
    assert plan_windows(files(LARGE, LARGE, LARGE), [0, 1, 0], RULE) == [FoldWindow(1, 2)]


def test_small_file_beside_a_dirty_one_goes_along():
    assert plan_windows(files(SMALL, (150, 600), SMALL), [0, 50, 0], RULE) == [FoldWindow(0, 3)]


def test_few_dead_records_can_wait_when_the_rule_says_so():
    some = FoldRule(target_bytes=1000, target_rows=400, dead_part=0.05)
    assert plan_windows(files(LARGE, LARGE), [9, 10], some) == [FoldWindow(1, 2)]


def test_windows_end_where_the_next_file_would_be_too_much():
    assert plan_windows(files(*[(90, 400)] * 5), [0] * 5, RULE) == [FoldWindow(0, 2), FoldWindow(2, 4)]
    assert plan_windows(files(*[(90, 1)] * 9), [0] * 9, RULE) == [FoldWindow(0, 4), FoldWindow(4, 8)]


def test_dead_records_take_no_room():
    assert plan_windows(files(*[(90, 400)] * 5), [90] * 5, RULE) == [FoldWindow(0, 5)]


def test_nothing_gives_nothing():
    assert plan_windows([], [], RULE) == []


SHAPES = st.lists(st.tuples(st.integers(0, 250), st.integers(0, 6), st.integers(0, 250)), max_size=30)


@given(SHAPES)
def test_plan_cleans_everything_and_then_has_nothing_left_to_do(shapes):
    given_files = files(*[(rows, rows * width) for rows, width, _ in shapes])
    dead = [min(d, rows) for rows, _, d in shapes]
    windows = plan_windows(given_files, dead, RULE)

    covered = [i for w in windows for i in range(w.first, w.last)]
    assert covered == sorted(set(covered))  # in order, nothing twice
    assert {i for i, d in enumerate(dead) if d > 0} <= set(covered)
    for w in windows:
        chosen = range(w.first, w.last)
        large = [i for i in chosen if not RULE.is_small(given_files[i].rows, given_files[i].size)]
        assert all(dead[i] for i in large)  # a large clean file is never copied
        if len(chosen) > 1:
            assert sum(given_files[i].rows - dead[i] for i in chosen) <= RULE.target_rows
        else:
            assert dead[w.first] > 0

    after, at = [], 0
    while at < len(given_files):
        window = next((w for w in windows if w.first == at), None)
        chosen = range(at, window.last) if window else range(at, at + 1)
        living = sum(given_files[i].rows - dead[i] for i in chosen)
        size = sum(given_files[i].size * (given_files[i].rows - dead[i]) // max(given_files[i].rows, 1) for i in chosen)
        after.append(DataFile("", given_files[at].start, given_files[chosen[-1]].end, living, size))
        at = chosen[-1] + 1
    assert plan_windows(after, [0] * len(after), RULE) == []
