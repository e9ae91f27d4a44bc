"""The comparison of two work trees: medians, ratio and spread of each figure."""

from __future__ import annotations

from compare import table


def test_a_line_has_both_medians_their_ratio_and_the_larger_spread():
    [line] = table("backfill", {"backfill.more": [1.0, 2.0, 3.0]}, {"backfill.more": [4.0, 4.0, 6.0]})
    assert line.split() == ["backfill.more", "2", "4", "ratio", "2.000", "spread", "1.00"]


def test_figures_of_other_benchmarks_are_left_out():
    assert list(table("backfill", {"backfill_all.more": [1.0]}, {"backfill_all.more": [1.0]})) == []


def test_a_figure_that_is_gone_or_was_zero_has_no_ratio():
    before = {"backfill.more": [1.0], "backfill.small": [0.0]}
    lines = list(table("backfill", before, {"backfill.more": [], "backfill.small": [0.0]}))
    assert [line.split() for line in lines] == [["backfill.more", "no", "ratio"], ["backfill.small", "no", "ratio"]]
