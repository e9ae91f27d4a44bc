"""Spans: every place of a range lies in one of them, with all pieces that may have rows there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Piece, PieceOrigin, TimePoint
from floodmark.timeline.sections import Range, estimate_share, groups, spans
from limits import set_limit


def piece(first: tuple[int, int], last: tuple[int, int], rows: int = 10, name: str = "data/a") -> Piece:
    return Piece(
        name, 0, 0, rows, rows, TimePoint(*first), TimePoint(*last), first[1], last[1], rows * 8, PieceOrigin.SLICE, 1
    )


def even(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Places spread evenly between a piece's ends."""
    times, offsets = (np.linspace(piece.first[i], piece.last[i], piece.rows).astype(np.int64) for i in (0, 1))
    return times, offsets


def unseen(_: Piece) -> tuple[np.ndarray, np.ndarray]:
    raise AssertionError("so few rows need not be looked at")


def rows_in(found, pieces, look) -> list[int]:
    """How many rows each span really has."""
    places = [place for p in pieces for place in zip(*(x.tolist() for x in look(p)), strict=True)]
    return [sum(span.lo <= place < span.hi for place in places) for span in found]


def layout(
    places: list[TimePoint], over: list[tuple[TimePoint, TimePoint]], rows: int
) -> tuple[list[Piece], list[Piece]]:
    """Settled pieces between every second place and the next, and pieces over them."""
    ordered = sorted(set(places))
    settled = [
        piece(a, b, rows, f"data/{i}") for i, (a, b) in enumerate(zip(ordered[::2], ordered[1::2], strict=False))
    ]
    return settled, [piece(*sorted(ends), rows, f"data/w{i}") for i, ends in enumerate(over)]


places = st.builds(TimePoint, st.integers(-20, 20), st.integers(0, 5))
ranges = st.one_of(st.just(Range()), st.tuples(places, places).map(sorted).map(lambda ends: Range(*ends)))


@given(
    st.lists(places, max_size=12),
    st.lists(st.tuples(places, places), max_size=6),
    ranges,
    st.sampled_from([1, 30, 10**6]),
    st.lists(places, max_size=10),
)
def test_every_place_of_a_range_is_in_one_span_with_all_pieces_around_it(settled_at, over_at, within, most, asked):
    settled, over = layout(settled_at, over_at, 50)
    found = list(spans(settled, over, within, most, even))
    for before, after in pairwise(found):
        assert before.hi <= after.lo
    for span in found:
        assert within.first <= span.lo < span.hi <= within.end
    for place in [*asked, *settled_at, *(end for p in over for end in (p.first, p.last))]:
        around = {p for p in (*settled, *over) if p.first <= place <= p.last}
        if around and within.first <= place < within.end:
            [span] = [s for s in found if s.lo <= place < s.hi]
            assert around <= set(span.pieces)


def test_pieces_outside_of_the_range_are_not_read():
    settled = [piece((t, t), (t + 5, t + 5)) for t in range(0, 100, 10)]
    found = list(spans(settled, [], Range(TimePoint(30, -1), TimePoint(50, -1)), 100, unseen))
    assert [s.settled for s in found] == settled[3:5]
    assert all(s.is_plain for s in found)


def test_a_piece_that_ends_where_a_span_begins_lies_over_both():
    settled = [piece((0, 0), (5, 5)), piece((10, 10), (15, 15))]
    late = piece((3, 3), (10, 10), name="data/late")
    assert [s.over for s in spans(settled, [late], Range(), 100, unseen)] == [(late,), (late,)]


def test_an_empty_range_has_no_spans():
    assert list(spans([piece((0, 0), (9, 9))], [], Range(TimePoint(3, -1), TimePoint(3, -1)), 100, unseen)) == []


def test_what_lies_over_one_stretch_in_masses_is_cut_by_time():
    over = [piece((0, i), (1000, i), 100, f"data/{i}") for i in range(50)]
    found = list(spans([], over, Range(), 500, even))
    assert (found[0].lo, found[-1].hi) == (MIN_POINT, MAX_POINT)
    assert max(rows_in(found, over, even)) <= 1000
    assert [span.rows for span in found] == rows_in(found, over, even)


def test_rows_of_one_time_are_cut_by_offset():
    over = [piece((7, 100 * i), (7, 100 * i + 99), 100, f"data/{i}") for i in range(50)]
    found = list(spans([], over, Range(), 500, even))
    assert len(found) >= 5
    assert max(rows_in(found, over, even)) <= 1000


def test_skewed_rows_are_cut_where_they_are():
    settled = [piece((t, t), (t + 99, t + 99), 100, f"data/{t}") for t in range(0, 1000, 100)]
    over = [piece((0, 1000 * i), (1000, 1000 * i + 99), 100, f"data/w{i}") for i in range(1, 51)]

    def skewed(p: Piece) -> tuple[np.ndarray, np.ndarray]:
        times, offsets = even(p)
        return (times, offsets) if p in settled else (np.where(np.arange(p.rows) % 10, 555, times), offsets)

    found = list(spans(settled, over, Range(), 500, skewed))
    counts = rows_in(found, [*settled, *over], skewed)
    assert sum(counts) == 6000
    assert max(counts) <= 1000
    assert len(found) < 30  # and not cut where there is nothing


def test_of_very_many_rows_some_pieces_tell_where_all_are(monkeypatch):
    set_limit(monkeypatch, "spans.looked_at_rows", 1000)
    over = [piece((0, 100 * i), (1000, 100 * i + 99), 100, f"data/{i}") for i in range(50)]
    looked = []
    found = list(spans([], over, Range(), 500, lambda p: looked.append(p) or even(p)))
    assert len(looked) == 10
    assert max(rows_in(found, over, even)) <= 1000


def test_groups_are_consecutive_and_bounded():
    settled = [piece((t, t), (t + 5, t + 5), rows=t + 1) for t in range(0, 200, 10)]
    found = list(spans(settled, [], Range(), 100, unseen))
    grouped = groups(found, 1000)
    assert [s for g in grouped for s in g] == found
    assert all(len(g) == 1 or sum(s.size for s in g) <= 1000 for g in grouped)
    assert len(grouped) > 2


@pytest.mark.parametrize(
    ("lo", "hi", "expected"),
    [
        (TimePoint(5, 0), TimePoint(5, 50), 0.5),  # half of the offsets
        (TimePoint(4, 80), TimePoint(5, 50), 0.5),  # from an earlier time: from the first offset
        (TimePoint(5, 50), TimePoint(6, 0), 0.5),  # to a later time: to the last offset
        (TimePoint(5, 20), TimePoint(5, 45), 0.25),
        (TimePoint(5, 200), TimePoint(6, 0), 0.0),
    ],
)
def test_the_share_of_a_piece_with_one_time_is_counted_in_offsets(lo: TimePoint, hi: TimePoint, expected: float):
    assert estimate_share(piece((5, 0), (5, 100)), lo, hi) == pytest.approx(expected)
