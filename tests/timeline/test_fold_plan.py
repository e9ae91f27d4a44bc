"""What a fold rewrites, and what is folded without being asked."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline import cost
from floodmark.timeline.piece_cuts import cut_piece
from floodmark.timeline.pieces import Partition, Piece, PieceOrigin
from timeline.models import Model, run_of

MOST = 100


def _pieces(model: Model, *sizes: int) -> list[Piece]:
    found, at = [], 0
    for size in sizes:
        found += model.slice(range(at, at + size))
        at += size + 10
    return found


def test_partition_that_is_as_it_should_be_is_left_alone() -> None:
    model = Model(MOST)
    assert cost.find_fold_stretches(Partition(0, tuple(_pieces(model, 100, 60, 100, 3))), MOST) == []
    assert cost.find_fold_stretches(Partition(0), MOST) == []


def test_what_lies_under_waiting_rows_is_rewritten_and_nothing_else() -> None:
    model = Model(MOST)
    settled = _pieces(model, 100, 100, 100)
    late = run_of(0, 0, *model.slice([120, 121]))
    assert cost.find_fold_stretches(Partition(0, tuple(settled), (late,)), MOST) == [(1, 2)]


def test_piece_with_dead_rows_is_rewritten() -> None:
    model = Model(MOST)
    settled = _pieces(model, 100, 100)
    settled[0] = replace(settled[0], dead=1)
    assert cost.find_fold_stretches(Partition(0, tuple(settled)), MOST) == [(0, 1)]


def test_small_pieces_are_put_together() -> None:
    model = Model(MOST)
    assert cost.find_fold_stretches(Partition(0, tuple(_pieces(model, 100, 20, 20, 20, 100))), MOST) == [(1, 4)]


def test_too_few_rows_take_the_smaller_neighbour_along() -> None:
    model = Model(MOST)
    assert cost.find_fold_stretches(Partition(0, tuple(_pieces(model, 90, 5, 80, 100, 7, 9, 50))), MOST) == [
        (1, 3),
        (4, 7),
    ]
    assert cost.find_fold_stretches(Partition(0, tuple(_pieces(model, 70, 5, 80, 3))), MOST) == [(0, 2)]


def test_half_of_a_row_group_of_our_own_is_written_anew_and_most_of_a_slice_stays() -> None:
    model = Model(MOST)
    (piece,) = _pieces(model, 100)
    most_of_it = cut_piece(piece, [80], model.places(piece))[0]
    own = replace(most_of_it, how=PieceOrigin.MERGED)
    assert cost.find_fold_stretches(Partition(0, (most_of_it,)), MOST) == []
    assert cost.find_fold_stretches(Partition(0, (own,)), MOST) == [(0, 1)]
    half = cut_piece(piece, [50], model.places(piece))[0]
    assert cost.find_fold_stretches(Partition(0, (half,)), MOST) == [(0, 1)]


def test_partition_folds_by_itself_when_it_has_too_many_pieces() -> None:
    model = Model(MOST)
    few = Partition(0, tuple(_pieces(model, *[1] * cost.CROWDED)))
    many = Partition(0, tuple(_pieces(model, *[1] * (cost.CROWDED + 1))))
    assert cost.find_automatic_folds(few, MOST) == []
    assert cost.find_automatic_folds(many, MOST) == [(0, cost.CROWDED + 1)]


def test_large_fragment_is_not_written_again_for_a_few_rows_beside_it() -> None:
    model = Model(MOST)
    assert cost.group_crowded(_pieces(model, 20, 1, 1, 1, 1, 1), MOST) == [(1, 6)]
    assert cost.group_crowded(_pieces(model, 20, 1, 1, 1), MOST) == []
    assert cost.group_crowded(_pieces(model, 5, 1, 1, 1, 1, 1), MOST) == [(0, 6)]


@given(st.lists(st.integers(1, 120), max_size=30))
def test_crowds_are_apart_hold_no_more_than_a_row_group_and_double_each_piece(sizes: list[int]) -> None:
    model = Model(200)
    settled = _pieces(model, *sizes)
    end = 0
    for lo, hi in cost.group_crowded(settled, MOST):
        rows = [p.rows for p in settled[lo:hi]]
        assert lo >= end
        assert hi - lo >= cost.MIN_CROWD
        assert 2 * max(rows) <= sum(rows) <= MOST
        end = hi


def test_bytes_that_nobody_shows_count_only_in_row_groups_written_for_the_partition() -> None:
    model = Model(MOST)
    (piece,) = _pieces(model, 100)
    quarter = cut_piece(piece, [25], model.places(piece))[0]
    assert cost.unseen_bytes(Partition(0, (quarter,))) == 0
    own = Partition(0, (replace(quarter, how=PieceOrigin.MERGED),))
    assert cost.unseen_bytes(own) == 3 * quarter.size
    assert not cost.is_wasteful(own)
    large = Partition(0, (replace(quarter, how=PieceOrigin.MERGED, size=cost.DEAD_BYTES),))
    assert cost.find_automatic_folds(large, MOST) == [(0, 1)]
