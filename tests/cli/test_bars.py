"""Coverage as a line of characters: never wider than there is room, and never better than it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.cli.columns import (
    ASCII_BAR_MARKS,
    BLOCK_BAR_MARKS,
    BarPart,
    draw_bar,
    fragments_per_mark,
    marks_for,
    percent,
)


@st.composite
def parts(draw):
    rows = draw(st.integers(0, 50))
    done = draw(st.integers(0, rows))
    return BarPart(rows, done, draw(st.integers(0, rows - done)))


FRAGMENTS = st.lists(parts(), max_size=60)
WIDTHS = st.integers(1, 100)


@given(FRAGMENTS, WIDTHS)
def test_bar_is_no_wider_than_there_is_room(fragments, width):
    assert len(draw_bar(fragments, width, ASCII_BAR_MARKS)) <= width


@given(st.lists(parts(), min_size=1, max_size=60), WIDTHS)
def test_every_fragment_is_in_the_bar(fragments, width):
    shown = draw_bar(fragments, width, ASCII_BAR_MARKS)
    if together := fragments_per_mark(len(fragments), width):
        assert (len(shown) - 1) * together < len(fragments) <= len(shown) * together
    else:
        bars = shown.split(ASCII_BAR_MARKS.border)
        assert (len(bars), len(set(map(len, bars)))) == (len(fragments), 1)


@given(FRAGMENTS, WIDTHS)
def test_only_a_fragment_that_is_done_looks_done(fragments, width):
    if not fragments_per_mark(len(fragments), width):
        looks = (
            [set(one) for one in draw_bar(fragments, width, ASCII_BAR_MARKS).split(ASCII_BAR_MARKS.border)]
            if fragments
            else []
        )
        assert [one == {ASCII_BAR_MARKS.done} for one in looks] == [f.done == f.rows for f in fragments]


@given(FRAGMENTS, WIDTHS)
def test_a_fragment_with_a_computed_row_never_looks_empty(fragments, width):
    if not fragments_per_mark(len(fragments), width):
        looks = draw_bar(fragments, width, ASCII_BAR_MARKS).split(ASCII_BAR_MARKS.border) if fragments else []
        assert [bool(set(one) & {ASCII_BAR_MARKS.done, ASCII_BAR_MARKS.partly}) for one in looks] == [
            f.done > 0 or f.rows == 0 for f in fragments
        ]


@given(FRAGMENTS, WIDTHS)
def test_a_character_for_several_fragments_says_what_holds_for_all_of_them(fragments, width):
    if together := fragments_per_mark(len(fragments), width):
        for i, mark in enumerate(draw_bar(fragments, width, ASCII_BAR_MARKS)):
            some = fragments[i * together : (i + 1) * together]
            assert (mark == ASCII_BAR_MARKS.done) is all(f.done == f.rows for f in some)
            assert (mark in (ASCII_BAR_MARKS.kept, ASCII_BAR_MARKS.nothing)) is (
                not any(f.done for f in some) and any(f.rows for f in some)
            )


def test_few_fragments_have_a_bar_each():
    fragments = [BarPart(10, 10, 0), BarPart(10, 5, 0), BarPart(10, 1, 9), BarPart(10, 0, 0)]
    assert draw_bar(fragments, 43, ASCII_BAR_MARKS) == "##########|#####.....|#ooooooooo|.........."


def test_fragments_without_room_have_a_character_each_or_share_one():
    fragments = [BarPart(4, 4, 0)] * 6 + [BarPart(4, 1, 0)] + [BarPart(4, 0, 4)] * 2 + [BarPart(4, 0, 0)] * 3
    assert draw_bar(fragments, 12, ASCII_BAR_MARKS) == "######+oo..."
    assert draw_bar(fragments, 6, ASCII_BAR_MARKS) == "###+o."
    assert draw_bar(fragments, 3, ASCII_BAR_MARKS) == "#+o"


def test_rows_that_are_all_dead_leave_nothing_to_do():
    assert draw_bar([BarPart(0, 0, 0)], 5, ASCII_BAR_MARKS) == "#####"


@pytest.mark.parametrize(
    ("encoding", "marks"),
    [
        ("utf-8", BLOCK_BAR_MARKS),
        ("cp437", BLOCK_BAR_MARKS),
        ("latin-1", ASCII_BAR_MARKS),
        ("ascii", ASCII_BAR_MARKS),
        (None, ASCII_BAR_MARKS),
    ],
)
def test_characters_that_the_output_lacks_are_replaced(encoding, marks):
    assert marks_for(encoding) == marks


def test_legend_names_what_is_shown_and_nothing_else():
    assert ASCII_BAR_MARKS.legend(["##..", "#+.."]) == "# computed, + partly computed, . not computed"
    assert ASCII_BAR_MARKS.legend(["####"]) == "# computed"


@pytest.mark.parametrize(
    ("done", "rows", "text"),
    [
        (0, 0, "100 %"),
        (0, 7, "0 %"),
        (7, 7, "100 %"),
        (5, 6, "83.3 %"),
        (99_999, 100_000, "99.9 %"),
        (1, 100_000, "<0.1 %"),
        (1, 1000, "0.1 %"),
    ],
)
def test_percentage_is_rounded_down(done, rows, text):
    assert percent(done, rows) == text
