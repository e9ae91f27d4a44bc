"""New pieces settle where there is room, and pieces are cut by reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.piece_cuts import (
    cut_at,
    cut_at_spans,
    cut_evenly,
    cut_piece,
    remove_range,
    settle,
    span,
    span_of,
)
from floodmark.timeline.pieces import MAX_POINT, MIN_POINT, Piece, TimePoint
from timeline.models import Model, run_of

TIMES = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def _rows(model: Model, pieces: list[Piece] | tuple[Piece, ...]) -> list[tuple[int, int]]:
    return [place for p in pieces for place in zip(*(a.tolist() for a in model.places(p)), strict=True)]


def test_piece_beyond_the_last_one_settles_as_it_is() -> None:
    model = Model(100)
    (there,), (new,) = model.slice([1, 2, 3]), model.slice([3, 4])
    found = settle([there], [new], 100, model.places)
    assert (found.pieces, found.rest) == ((there, new), ())
    assert model.reads == 0


def test_piece_in_a_gap_settles_however_small_it_is() -> None:
    model = Model(100)
    (one,), (two,), (new,) = model.slice([1, 2]), model.slice([8, 9]), model.slice([5])
    assert settle([one, two], [new], 100, model.places).pieces == (one, new, two)


def test_equal_times_are_ordered_by_offset_so_a_later_record_settles_behind() -> None:
    model = Model(100)
    (one,), (new,) = model.slice([5, 5]), model.slice([5, 5])
    assert settle([one], [new], 100, model.places).pieces == (one, new)
    assert settle([new], [one], 100, model.places).pieces == (one, new)


def test_stream_that_is_nearly_in_order_settles_but_for_its_first_rows() -> None:
    model = Model(100)
    (there,), (new,) = model.slice(range(10)), model.slice(range(8, 20))
    found = settle([there], [new], 100, model.places)
    assert [p.rows for p in found.pieces] == [10, 11]  # the newer record at an equal time comes after
    assert [p.rows for p in found.rest] == [1]


def test_few_rows_in_a_gap_wait_with_the_others_of_their_piece() -> None:
    model = Model(100)
    (one,), (two,) = model.slice(range(0, 10)), model.slice(range(20, 30))
    (new,) = model.slice([5, 15, 25])
    assert settle([one, two], [new], 100, model.places).rest == (new,)


def test_many_rows_in_a_gap_are_cut_out_by_reference() -> None:
    model = Model(100)
    (one,), (two,) = model.slice(range(0, 10)), model.slice(range(40, 50))
    (new,) = model.slice([5, *range(15, 30), 45])
    found = settle([one, two], [new], 100, model.places)
    assert [(p.first.time, p.last.time) for p in found.pieces] == [(0, 9), (15, 29), (40, 49)]
    assert [p.first.time for p in found.rest] == [5, 45]
    assert {p.file for p in (*found.pieces[1:2], *found.rest)} == {new.file}


def test_row_group_that_is_too_large_is_cut_evenly() -> None:
    model = Model(1000)
    (large,) = model.slice(range(400))
    assert [p.rows for p in cut_evenly(large, 100, model.places)] == [134, 133, 133]
    assert cut_evenly(large, 300, model.places) == [large]


@given(st.lists(TIMES, max_size=5), TIMES)
def test_every_row_settles_once_or_waits_once(there: list[list[int]], times: list[int]) -> None:
    model = Model(16)
    settled: tuple[Piece, ...] = ()
    rest: list[Piece] = []
    for each in [*there, times]:
        found = settle(settled, model.slice(each), 16, model.places)
        settled = found.pieces
        rest += found.rest
    assert sorted(_rows(model, [*settled, *rest])) == model.expected()
    assert all(a.last < b.first for a, b in pairwise(settled))


@given(TIMES, st.lists(st.integers(-2, 45)))
def test_parts_of_a_cut_piece_have_exact_bounds(times: list[int], rows: list[int]) -> None:
    model = Model(100)
    (piece,) = model.slice(times)
    parts = cut_piece(piece, rows, model.places(piece))
    assert _rows(model, parts) == _rows(model, [piece])
    assert sum(p.size for p in parts) == piece.size
    assert len(parts) == 1 + len({row for row in rows if 0 < row < piece.rows})
    for part in parts:
        places = [TimePoint(*place) for place in _rows(model, [part])]
        assert (part.first, part.last) == (places[0], places[-1])
        assert (part.offset_min, part.offset_max) == (min(p.offset for p in places), max(p.offset for p in places))


@given(TIMES, st.lists(st.tuples(st.integers(-1, 61), st.integers(-1, 50)), max_size=4))
def test_piece_is_cut_where_naive_comparison_says(times: list[int], at: list[tuple[int, int]]) -> None:
    model = Model(100)
    (piece,) = model.slice(times)
    edges = sorted(TimePoint(*each) for each in at)
    parts = cut_at(piece, edges, model.places)
    naive = [sum(edge <= TimePoint(*row) for edge in edges) for row in _rows(model, [piece])]
    sizes = [naive.count(number) for number in sorted(set(naive))]
    assert [p.rows for p in parts] == sizes


@given(TIMES, TIMES, st.integers(0, 60), st.integers(0, 60))
def test_rows_between_two_places_are_taken_from_runs(a: list[int], b: list[int], one: int, other: int) -> None:
    model = Model(8)
    lo, hi = TimePoint(min(one, other), -1), TimePoint(max(one, other), -1)
    runs = [run_of(0, 0, *model.slice(a)), run_of(1, 1, *model.slice(b))]
    taken, left = remove_range(runs, lo, hi, model.places)
    rows = sorted(_rows(model, [p for run in runs for p in run.pieces]))
    assert sorted(_rows(model, taken)) == [row for row in rows if lo <= TimePoint(*row) < hi]
    kept = [p for run in left for p in run.pieces]
    assert sorted(_rows(model, kept)) == [row for row in rows if not lo <= TimePoint(*row) < hi]
    assert all(run.pieces for run in left)


def test_spans_cover_all_places_and_meet() -> None:
    model = Model(2)
    settled = model.slice([1, 2, 5, 6, 8, 9])
    assert [span(settled, i, i) for i in range(3)] == [
        (MIN_POINT, settled[1].first),
        (settled[1].first, settled[2].first),
        (settled[2].first, MAX_POINT),
    ]
    assert span(settled, 0, 2) == (MIN_POINT, MAX_POINT)
    assert [span_of(settled, TimePoint(time, 0)) for time in (-5, 1, 4, 5, 7, 9, 20)] == [0, 0, 0, 0, 1, 2, 2]


def test_waiting_rows_are_cut_at_spans_but_not_into_crumbs() -> None:
    model = Model(100)
    settled = [*model.slice(range(0, 10)), *model.slice(range(10, 20)), *model.slice(range(20, 30))]
    (late,) = model.slice([1, 2, 3, 11, 21, 22, 23])
    assert [p.rows for p in cut_at_spans([late], settled, 1, model.places)] == [3, 1, 3]
    assert [p.rows for p in cut_at_spans([late], settled, 3, model.places)] == [3, 4]
    assert cut_at_spans([late], settled, 4, model.places) == [late]


def test_dead_rows_are_shared_out_among_the_parts() -> None:
    model = Model(100)
    piece = model.slice(range(10))[0]
    parts = cut_piece(replace(piece, dead=5), [3], model.places(piece))
    assert sum(p.dead for p in parts) == 5
    assert all(p.dead > 0 for p in parts)
