"""Eight segments of a size become one, and what was replaced stays for sixteen generations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.storage.tiers import KEEP_RETIRED_COMMITS, RetiredFiles, Tiers, retire


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1,), 1),
        ((1,) * 7, 1),
        ((1,) * 8, 8),
        ((1,) * 7 + (5000,), 1),
        ((1,) * 8 + (5000,), 8),
        ((5000, *(1,) * 7), 8),
        ((5000,) * 8 + (10**6,), 8),
        ((5000,) * 7 + (10**6,), 1),
        ((1000,) * 8 + (5000,) * 7 + (10**6,), 15),  # the merge makes another one due
    ],
)
def test_eight_segments_of_a_size_are_merged_and_larger_ones_left(sizes, expected):
    assert Tiers().due(sizes) == expected


def test_entries_are_rewritten_as_often_as_there_are_tiers():
    sizes: list[int] = []
    rewritten = most = 0
    commits = 8**4
    for _ in range(commits):
        sizes.insert(0, 1)
        count = Tiers(8, 8).due(sizes)
        if count > 1:
            rewritten += sum(sizes[:count])
            sizes[:count] = [sum(sizes[:count])]
        most = max(most, len(sizes))
    assert rewritten / commits <= 5
    assert most <= 7 * 4


@given(st.integers(2, 5), st.integers(1, 6), st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_after_a_merge_none_is_due(fan_in, smallest, commits):
    tiers = Tiers(fan_in, smallest)
    sizes: list[int] = []
    for size in commits:
        sizes.insert(0, size)
        count = tiers.due(sizes)
        sizes[:count] = [sum(sizes[:count])]
        assert tiers.due(sizes) == 1


def test_replaced_file_stays_for_sixteen_generations_unless_it_comes_back():
    retired: RetiredFiles = ()
    for generation in range(KEEP_RETIRED_COMMITS + 1):
        replaced = ["old", "back"] if generation == 0 else []
        names = {"back"} if generation == 5 else set()
        retired, gone = retire(retired, replaced, names, generation)
        assert gone == (["old"] if generation == KEEP_RETIRED_COMMITS else [])
    assert retired == ()
