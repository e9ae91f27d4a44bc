"""Whatever comes in, every living row is in exactly one piece and the bounds hold; and what it costs stays bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.timeline import cost
from floodmark.timeline.pieces import Partition, PieceOrigin
from limits import set_limit
from profiles import examples
from timeline.models import ROW_BYTES, Model

MOST = 100


@st.composite
def _batches(draw: st.DrawFn) -> list[list[int]]:
    """What one update takes in: clusters, rows spread over everything, rows after all others, equal times."""
    kind = draw(st.sampled_from(["cluster", "spread", "later", "equal"]))
    rows = draw(st.sampled_from([1, 2, 5, 30, 120, 400]))
    at = draw(st.integers(0, 1000))
    width = {"cluster": 20, "spread": 1000, "later": 100, "equal": 1}[kind]
    begin = {"spread": 0, "later": 1000 + at}.get(kind, at)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return [rng.integers(begin, begin + width, rows).tolist() for _ in range(draw(st.integers(1, 2)))]


@settings(max_examples=examples(20))
@given(st.lists(_batches(), min_size=1, max_size=25), st.sampled_from(["auto", "always"]), st.data())
def test_every_living_row_is_in_one_piece_after_every_update(
    rounds: list[list[list[int]]], late_merge: str, data: Any
) -> None:
    model = Model(data.draw(st.sampled_from([4, 64, MOST])), late_merge)
    for batches in rounds:
        share = data.draw(st.sampled_from([0.0, 0.0, 0.1, 0.6]))
        rng = np.random.default_rng(len(model.times))
        kill = [o for o in range(len(model.times)) if o not in model.dead and rng.random() < share]
        model.commit(*batches, kill=kill)
        assert model.problems() == []
        if late_merge == "always":
            assert not model.partition.waiting
    model.fold()
    assert [problem for problem in model.problems() if model.expected()] == []
    assert not model.partition.waiting
    assert sum(4 * p.rows < model.most for p in model.partition.settled) <= 1


def test_in_order_rows_are_never_written_a_second_time_until_pieces_are_many() -> None:
    model = Model(MOST)
    for i in range(60):
        model.commit(range(10 * i, 10 * i + 10))
    assert model.rows_written == 0
    assert len(model.partition.settled) == 60


@pytest.mark.slow
def test_drip_of_in_order_rows_is_written_a_few_times_at_most() -> None:
    model = Model(1000)
    for i in range(1500):
        model.commit([10 * i, 10 * i + 1])
    assert model.problems() == []
    assert len(model.partition.settled) < 120
    assert model.rows_written < 6 * len(model.times)


@pytest.mark.slow
@pytest.mark.parametrize("width", [10, 1000])
def test_late_rows_cost_about_ten_times_themselves(width: int) -> None:
    """As late_narrow in small: row groups of 1,000, commits of 10 rows inside one row group's span."""
    model = Model(1000)
    model.commit(range(20_000))
    rng = np.random.default_rng(7)
    for _ in range(800):
        at = int(rng.integers(0, 20)) * 1000 + int(rng.integers(0, 1001 - width))
        model.commit(rng.integers(at, at + width, 10))
        assert max(p.rows for p in model.partition.settled) <= 1500
    assert model.problems() == []
    assert model.rows_written <= 14 * 8000
    assert len(model.partition.settled) <= 2 * 28 + 16 + 2
    model.fold()
    assert not model.partition.waiting


def test_always_rewrites_the_row_groups_with_late_rows_and_no_others() -> None:
    model = Model(MOST, "always")
    model.commit(range(10 * MOST))
    before = model.partition.settled
    model.commit([150, 151, 420, 555])
    rewritten = [i for i, p in enumerate(before) if p not in model.partition.settled]
    assert rewritten == [1, 4, 5]
    assert model.rows_written == 3 * MOST + 4
    assert len(model.partition.settled) == 10


def test_always_takes_in_sorted_rows_by_reference() -> None:
    model = Model(MOST, "always")
    model.commit(range(0, 95), range(200, 295))
    model.commit(range(300, 400), range(500, 630))
    assert model.rows_written == 0
    assert [p.how for p in model.partition.settled] == [PieceOrigin.SLICE] * len(model.partition.settled)


def test_always_points_at_whole_row_groups_whatever_their_size() -> None:
    model = Model(100, "always", slice_groups=96)
    model.commit(range(1440))
    assert len(model.partition.settled) == 15
    assert all(p.is_whole for p in model.partition.settled)


def test_always_writes_much_that_overlaps_as_several_files() -> None:
    model = Model(10, "always")
    model.commit(range(0, 1000, 2), range(9, 1009, 2))  # each row group overlaps the next
    assert model.problems() == []
    assert model.files_written == 7
    assert all(p.rows <= 15 for p in model.partition.settled)


def test_always_puts_small_neighbours_into_one_file() -> None:
    model = Model(MOST, "always")
    model.commit(*[range(10 * i, 10 * i + 5) for i in range(30)])
    assert model.files_written == 1
    assert [p.rows for p in model.partition.settled] == [150]


def test_rows_in_the_same_place_again_and_again_do_not_snowball() -> None:
    model = Model(MOST)
    model.commit(range(10 * MOST))
    for _ in range(300):
        model.commit([505] * 5)
        assert max(p.rows for p in model.partition.pieces) <= 150
    assert model.problems() == []
    assert model.rows_written <= 12 * 1500


def test_partition_whose_settled_rows_all_died_keeps_the_others() -> None:
    model = Model(MOST)
    model.commit(range(100))
    model.commit([50, 51])
    model.commit([60], kill=range(100))
    assert [p.rows for p in model.partition.settled] == [3]
    assert model.problems() == []


def test_row_group_of_which_a_third_died_is_written_anew_though_nothing_is_late() -> None:
    model = Model(MOST)
    model.commit(range(300))
    model.commit(kill=range(110, 145))
    assert [p.rows for p in model.partition.settled] == [100, 65, 100]
    assert [p.dead for p in model.partition.settled] == [0, 0, 0]
    assert model.problems() == []


def test_update_that_only_kills_counts_the_dead_where_they_were() -> None:
    model = Model(MOST)
    model.commit(range(300))
    model.commit(kill=[5, 110, 111])
    assert [p.dead for p in model.partition.settled] == [1, 2, 0]
    assert model.rows_written == 0


def test_fold_of_a_folded_partition_writes_nothing() -> None:
    model = Model(MOST)
    model.commit(range(1000))
    model.commit([5, 50, 95, 301, 390])
    assert model.fold() == 1
    written = model.rows_written
    assert written == 2 * MOST + 5
    assert model.fold() == 0
    assert model.rows_written == written


def test_fold_of_much_is_shared_out_among_files() -> None:
    model = Model(10)
    model.commit(range(2000), range(5, 2000, 10))
    model.fold()
    assert model.problems() == []
    assert not model.partition.waiting
    assert len(model.works) >= 10
    assert max(work.rows for work in model.works) <= 2 * 16 * 10


def test_few_rows_from_a_gap_go_into_the_file_of_a_neighbour_that_is_rewritten() -> None:
    model = Model(MOST)
    model.commit(range(100), range(200, 300))
    model.commit([*range(0, 90, 3), 150, 151, 152])
    assert [p.rows for p in model.partition.settled] == [133, 100]
    assert model.files_written == 1


def test_fold_by_itself_rewrites_no_more_than_an_update_may() -> None:
    model = Model(MOST)
    model.partition = Partition(0, tuple(model.slice(range(10 * i, 10 * i + 9))[0] for i in range(1000)))
    model.commit([20_000])
    assert 0 < model.rows_written <= cost.ALLOWED_GROUPS * MOST
    assert model.problems() == []


def test_many_waiting_rows_are_put_together_in_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "works.file_groups", 1)
    model = Model(MOST)
    model.commit(range(0, 100_000, 10))
    for n in range(cost.FAN):
        model.commit(range(n, 100_000, 3000 + n))
    assert [run.tier for run in model.partition.waiting] == [1]
    assert len(model.works) == 3
    assert max(work.rows for work in model.works) <= MOST
    assert model.problems() == []


def test_files_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, "works.file_bytes", 5 * MOST * ROW_BYTES)
    model = Model(MOST)
    for n in range(60):
        model.commit(range(20 * n, 20 * n + 20))
    assert model.fold() == 1
    assert model.problems() == []
    assert [work.rows for work in model.works] == [520, 520, 140]
    always = Model(MOST, "always")
    always.commit(range(0, 3000, 3), range(1, 3000, 3))
    assert always.problems() == []
    assert [work.rows for work in always.works] == [4 * MOST] * 5  # each two pieces that overlap stay together
