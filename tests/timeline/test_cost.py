"""When merging late rows pays, which runs are put together, and where a piece is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline import cost
from floodmark.timeline.pieces import Piece, WaitingRun
from timeline.models import Model, run_of

MOST = 1024


def _day(model: Model, groups: int = 4) -> tuple[Piece, ...]:
    """Whole row groups, a row for each unit of time."""
    return model.slice(range(groups * MOST))


def _late(model: Model, number: int, times: range | list[int]) -> WaitingRun:
    return run_of(number, 0, *model.slice(times))


def test_nothing_is_due_while_merging_writes_more_than_it_may_for_each_late_row() -> None:
    model = Model(MOST)
    settled = _day(model)
    few = _late(model, 0, range(0, MOST, 10))
    assert cost.select_due(settled, [few], MOST, 10**9) == []


def test_row_group_is_due_when_an_eighth_of_its_rows_waits_over_it() -> None:
    model = Model(MOST)
    settled = _day(model)
    rows = (MOST + cost.overhead(MOST)) // cost.RATIO
    assert cost.select_due(settled, [_late(model, 0, list(range(rows)))], MOST, 10**9) == [(0, 1)]
    assert cost.select_due(settled, [_late(model, 0, list(range(rows - 1)))], MOST, 10**9) == []


def test_row_group_is_due_when_a_quarter_of_it_is_dead() -> None:
    model = Model(MOST)
    settled = list(_day(model))
    settled[2] = replace(settled[2], dead=MOST // 4)
    assert cost.select_due(settled, [], MOST, 10**9) == []
    settled[2] = replace(settled[2], dead=MOST // 4 + cost.overhead(MOST))
    assert cost.select_due(settled, [], MOST, 10**9) == [(2, 3)]


def test_the_most_indebted_come_first_when_not_all_are_allowed() -> None:
    model = Model(MOST)
    settled = _day(model)
    runs = [_late(model, i, [i * MOST + 1] * (200 + 100 * i)) for i in range(4)]
    assert cost.select_due(settled, runs, MOST, 10**9) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert cost.select_due(settled, runs, MOST, 3 * MOST) == [(2, 3), (3, 4)]


def test_one_that_is_due_is_rewritten_whatever_is_allowed() -> None:
    model = Model(MOST)
    assert cost.select_due(_day(model), [_late(model, 0, [1] * 500)], MOST, 0) == [(0, 1)]


def test_fragments_are_rewritten_with_their_neighbours_and_whole_row_groups_alone() -> None:
    model = Model(MOST)
    whole = _day(model)
    small = [*model.slice(range(5000, 5100)), *model.slice(range(5100, 5200)), *model.slice(range(5200, 6224))]
    assert cost.blocks([*whole, *small], MOST) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 6), (6, 7)]


def test_fragments_are_not_taken_together_beyond_half_as_many_rows_again() -> None:
    model = Model(MOST)
    pieces = [model.slice(range(i * 300, i * 300 + 200))[0] for i in range(12)]
    assert [hi - lo for lo, hi in cost.blocks(pieces, MOST)] == [7, 5]


def test_fragment_that_is_late_again_and_again_is_merged_without_its_neighbours() -> None:
    model = Model(MOST)
    pieces = [model.slice(range(i * 300, i * 300 + 200))[0] for i in range(5)]
    assert cost.select_due(pieces, [_late(model, 0, [305] * 50)], MOST, 10**9) == [(1, 2)]


@given(st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=30), max_size=6), st.integers(1, 5))
def test_rows_by_span_are_exact_for_pieces_inside_one_and_add_up_always(late: list[list[int]], groups: int) -> None:
    model = Model(40)
    settled = model.slice(range(groups * 40))
    runs = [run_of(i, 0, *model.slice(times)) for i, times in enumerate(late)]
    found = cost.waiting_rows(settled, runs)
    assert sum(found) == pytest.approx(sum(run.rows for run in runs))
    inside = [p for run in runs for p in run.pieces if p.last.time < 40]
    if len(inside) == sum(len(run.pieces) for run in runs):
        assert found[0] == sum(p.rows for p in inside)


def test_narrow_rows_cut_a_piece_around_them() -> None:
    model = Model(MOST)
    settled = _day(model)
    run = _late(model, 0, [1500] * 20)
    (middle,) = cost.find_narrow_merges(settled, run.pieces, [run], [], MOST, model.places)
    assert middle.index == 1
    assert middle.row_hi - middle.row_lo == MOST // cost.MIDDLE
    assert middle.row_lo <= 1500 - MOST < middle.row_hi
    assert middle.lo <= run.pieces[0].first
    assert run.pieces[-1].last < middle.hi


def test_rows_spread_over_a_piece_do_not_cut_it_and_it_is_not_read() -> None:
    model = Model(MOST)
    settled = _day(model)
    run = _late(model, 0, range(1030, 2000, 9))
    assert cost.find_narrow_merges(settled, run.pieces, [run], [], MOST, model.places) == []
    assert model.reads == 0


def test_rows_that_are_too_few_do_not_cut_a_piece() -> None:
    model = Model(MOST)
    run = _late(model, 0, [1500] * 3)
    assert cost.find_narrow_merges(_day(model), run.pieces, [run], [], MOST, model.places) == []


def test_pieces_are_cut_no_more_when_there_are_too_many() -> None:
    model = Model(MOST)
    settled = [model.slice(range(i * 100, i * 100 + 90))[0] for i in range(19)]
    run = _late(model, 0, [850] * 50)
    assert cost.spare(settled, MOST) < 2
    assert cost.find_narrow_merges(settled, run.pieces, [run], [], MOST, model.places) == []


def test_piece_that_is_rewritten_anyway_is_not_cut() -> None:
    model = Model(MOST)
    settled = _day(model)
    run = _late(model, 0, [1500] * 20)
    assert cost.find_narrow_merges(settled, run.pieces, [run], [(1, 2)], MOST, model.places) == []


@given(st.integers(0, 4 * MOST - 1), st.integers(1, 300), st.integers(5, 200))
def test_no_part_of_a_cut_piece_is_too_small(at: int, width: int, rows: int) -> None:
    model = Model(MOST)
    settled = _day(model)
    rng = np.random.default_rng(at)
    run = _late(model, 0, rng.integers(at, at + width, rows).tolist())
    least = MOST // cost.MIDDLE
    for middle in cost.find_narrow_merges(settled, run.pieces, [run], [], MOST, model.places):
        assert middle.row_lo == 0 or middle.row_lo >= least
        assert middle.row_hi == MOST or MOST - middle.row_hi >= least
        assert middle.row_hi - middle.row_lo >= least
        assert middle.row_hi - middle.row_lo <= cost.RATIO * rows
        inside = [p for p in run.pieces if p.first.time // MOST == middle.index == p.last.time // MOST]
        assert all(middle.lo <= p.first and p.last < middle.hi for p in inside)


def test_rows_behind_the_last_one_of_a_piece_are_merged_with_its_end() -> None:
    model = Model(60)
    settled = [*model.slice(range(60)), *model.slice(range(200, 260))]
    run = _late(model, 0, [100] * 30)
    (middle,) = cost.find_narrow_merges(settled, run.pieces, [run], [], 60, model.places)
    assert (middle.row_lo, middle.row_hi) == (59, 60)
    assert middle.hi == settled[1].first


def test_eight_runs_of_a_tier_are_put_together() -> None:
    model = Model(MOST)
    runs = [_late(model, i, [i]) for i in range(cost.FAN)]
    assert cost.merge_tiers(runs[:-1]) == (runs[:-1], [])
    left, (found,) = cost.merge_tiers(runs)
    assert (left, found.tier, list(found.runs)) == ([], 1, runs)


def test_what_overflows_two_tiers_is_written_once() -> None:
    model = Model(MOST)
    low = [_late(model, i, [i]) for i in range(cost.FAN)]
    high = [replace(_late(model, 10 + i, [i]), tier=1) for i in range(cost.FAN - 1)]
    other = replace(_late(model, 30, [1]), tier=2)
    left, (found,) = cost.merge_tiers([*low, *high, other])
    assert left == [other]
    assert (found.tier, {run.id for run in found.runs}) == (2, {run.id for run in (*low, *high)})
