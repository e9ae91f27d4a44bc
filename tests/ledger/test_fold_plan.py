"""What a fold rewrites: files with dead records and small neighbours, and never a large file that is clean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from floodmark.ledger.fold_plan import Rule, Window, plan
from floodmark.ledger.selection import DataFile

RULE = Rule(target_bytes=1000, target_rows=400)  # small: under 500 bytes and under 100 rows


def files(*shapes: tuple[int, int]) -> list[DataFile]:
    """Neighbours of so many rows and bytes."""
    made, at = [], 0
    for rows, size in shapes:
        made.append(DataFile(f"f{at}", at, at + rows, rows, size))
        at += rows
    return made


LARGE, SMALL = (200, 800), (10, 50)


def test_large_clean_files_stay():
    assert plan(files(LARGE, LARGE, LARGE), [0, 0, 0], RULE) == []


def test_small_neighbours_become_one():
    assert plan(files(LARGE, SMALL, SMALL, SMALL, LARGE), [0] * 5, RULE) == [Window(1, 4)]


def test_small_file_between_large_ones_stays():
    assert plan(files(LARGE, SMALL, LARGE), [0] * 3, RULE) == []


def test_file_with_a_dead_record_is_rewritten_by_itself():
    assert plan(files(LARGE, LARGE, LARGE), [0, 1, 0], RULE) == [Window(1, 2)]


def test_small_file_beside_a_dirty_one_goes_along():
    assert plan(files(SMALL, (150, 600), SMALL), [0, 50, 0], RULE) == [Window(0, 3)]


def test_few_dead_records_can_wait_when_the_rule_says_so():
    some = Rule(target_bytes=1000, target_rows=400, dead_part=0.05)
    assert plan(files(LARGE, LARGE), [9, 10], some) == [Window(1, 2)]


def test_windows_end_where_the_next_file_would_be_too_much():
    assert plan(files(*[(90, 400)] * 5), [0] * 5, RULE) == [Window(0, 2), Window(2, 4)]
    assert plan(files(*[(90, 1)] * 9), [0] * 9, RULE) == [Window(0, 4), Window(4, 8)]


def test_dead_records_take_no_room():
    assert plan(files(*[(90, 400)] * 5), [90] * 5, RULE) == [Window(0, 5)]


def test_nothing_gives_nothing():
    assert plan([], [], RULE) == []


SHAPES = st.lists(st.tuples(st.integers(0, 250), st.integers(0, 6), st.integers(0, 250)), max_size=30)


@given(SHAPES)
def test_plan_cleans_everything_and_then_has_nothing_left_to_do(shapes):
    given_files = files(*[(rows, rows * width) for rows, width, _ in shapes])
    dead = [min(d, rows) for rows, _, d in shapes]
    windows = plan(given_files, dead, RULE)

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
    assert plan(after, [0] * len(after), RULE) == []
