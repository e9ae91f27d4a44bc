"""Checkpoints grow and shrink towards the target duration, and stay within their bounds."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.columns.plan import checkpoint_bounds
from floodmark.engine.rounds import CheckpointSizer
from floodmark.errors import BadOption

MANY = 10**12


def durations(sizer: CheckpointSizer, rates: Iterator[float]) -> Iterator[float]:
    """What checkpoints take, one after the other, when rows are computed at these rates."""
    for rate in rates:
        rows = sizer.size
        yield rows / rate
        sizer.record(rows, rows / rate)


def settled(rate: float, target: float = 10.0) -> CheckpointSizer:
    sizer = CheckpointSizer(1, MANY, target)
    list(durations(sizer, itertools.repeat(rate, 30)))
    assert sizer.size == pytest.approx(rate * target, rel=0.01)
    return sizer


def test_the_first_checkpoint_is_small_and_the_next_ones_grow_tenfold_at_most():
    sizer = CheckpointSizer(1, MANY, 10.0)
    sizes = []
    for _ in range(6):
        sizes.append(sizer.size)
        sizer.record(sizer.size, sizer.size / 12_345)
    assert sizes == [1, 10, 100, 1000, 10_000, 100_000]
    assert sizer.size == 123_450


def test_the_first_checkpoint_has_the_size_to_start_with():
    assert CheckpointSizer(1, 100, start=7).size == 7
    assert CheckpointSizer(10, 100, start=7).size == 10
    assert CheckpointSizer(1, 5, start=7).size == 5


@pytest.mark.parametrize("change", [100, 30, 3, 1 / 3, 1 / 30, 1 / 100])
@pytest.mark.parametrize("target", [0.5, 10.0])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_from_the_third_checkpoint_after_a_change_of_speed_on_the_target_is_met(change, target, noise):
    chance = random.Random(4)
    sizer = settled(5000, target)
    rates = [5000 * change * chance.uniform(1 - noise, 1 + noise) for _ in range(40)]
    taken = list(durations(sizer, iter(rates)))
    assert all(target / 3 <= seconds <= target * 3 for seconds in taken[2:]), taken[:6]


@pytest.mark.parametrize("change", [100, 1 / 100])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_change_within_a_checkpoint_is_no_worse(change, share):
    sizer = settled(5000)
    new = 5000 * change
    rows = sizer.size
    sizer.record(rows, share * rows / 5000 + (1 - share) * rows / new)
    taken = list(durations(sizer, itertools.repeat(new, 20)))
    assert all(10 / 3 <= seconds <= 30 for seconds in taken[2:]), taken[:6]


@pytest.mark.parametrize("slower", [2, 100, 10**6])
@pytest.mark.parametrize("at", range(4))
def test_one_slow_checkpoint_does_not_matter(slower, at):
    sizer = settled(5000)
    rates = [5000.0] * 10
    rates[at] /= slower
    list(durations(sizer, iter(rates[: at + 1])))
    for rate in rates[at + 1 :]:
        assert sizer.size == pytest.approx(50_000, rel=0.01)
        sizer.record(sizer.size, sizer.size / rate)


def test_one_fast_checkpoint_does_not_matter():
    sizer = settled(5000)
    sizer.record(sizer.size, 1e-6)
    assert sizer.size == pytest.approx(50_000, rel=0.01)
    sizer.record(sizer.size, sizer.size / 5000)
    assert sizer.size == pytest.approx(50_000, rel=0.01)


def test_a_model_that_loads_in_the_first_call_delays_growth_by_one_checkpoint_only():
    sizer = CheckpointSizer(1, MANY, 10.0)
    sizer.record(1, 60.0)
    assert sizer.size == 1
    sizer.record(1, 1 / 5000)
    assert sizer.size == 10


def test_of_the_first_two_checkpoints_the_newer_counts():
    sizer = CheckpointSizer(1, MANY, 10.0)
    sizer.record(1, 1 / 5000)
    sizer.record(10, 20.0)
    assert sizer.size == 5


def test_growth_that_was_held_back_is_made_up_for_but_no_more():
    sizer = settled(5000)
    sizer.record(sizer.size, sizer.size / 5e9)
    sizer.record(sizer.size, sizer.size / 5e9)
    assert sizer.size == pytest.approx(50_000 * 100, rel=0.01)
    sizer.record(sizer.size, sizer.size / 5e9)
    assert sizer.size == pytest.approx(50_000 * 1000, rel=0.01)


def test_empty_checkpoints_say_nothing():
    sizer = settled(5000)
    for _ in range(5):
        sizer.record(0, 100.0)
    assert sizer.size == pytest.approx(50_000, rel=0.01)


@given(
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), max_size=20),
)
def test_the_size_never_leaves_its_bounds_and_never_grows_more_than_it_may(one, other, recorded):
    low, high = sorted((one, other))
    sizer = CheckpointSizer(low, high)
    for rows, seconds in recorded:
        before = sizer.size
        sizer.record(rows, seconds)
        assert low <= sizer.size <= high
        assert sizer.size <= max(before * 100, low)


def test_equal_bounds_fix_the_size():
    sizer = CheckpointSizer(64, 64)
    for seconds in (0.0, 1e-9, 1.0, 1e9):
        assert sizer.size == 64
        sizer.record(64, seconds)


def test_a_sizer_travels_to_a_worker():
    sizer = settled(5000)
    assert pickle.loads(pickle.dumps(sizer)).size == sizer.size


@pytest.mark.parametrize(("minimum", "maximum"), [(2, 1), (0, 5), (-1, 5), (1, 0)])
def test_bounds_that_contradict_themselves_are_refused(minimum, maximum):
    with pytest.raises(ValueError):
        CheckpointSizer(minimum, maximum)


@pytest.mark.parametrize(
    ("checkpoint_size", "min_", "max_", "udf_min", "udf_max", "rows", "expected"),
    [
        (None, None, None, None, None, 500, (1, 500)),
        (None, None, None, None, None, 0, (1, 1)),
        (100, None, None, None, None, 500, (1, 100)),
        (None, None, None, 5, 50, 500, (5, 50)),
        (None, 7, None, 5, 50, 500, (7, 50)),
        (None, None, 70, 5, 50, 500, (5, 70)),
        (None, 7, 70, 5, 50, 500, (7, 70)),
        (20, 7, 70, 5, 50, 500, (7, 20)),  # a larger maximum is capped
        (1000, None, None, None, None, 500, (1, 1000)),
        (20, None, None, 5, 50, 500, (5, 20)),
        (None, 64, 64, None, None, 500, (64, 64)),
        (None, 64, 64, None, None, 10, (10, 10)),  # there are not more rows
        (None, None, 10, 50, None, 500, (10, 10)),  # the function's own give way to the call's
        (None, 100, None, 5, 50, 500, (100, 100)),
        (3, None, None, 5, 50, 500, (3, 3)),
    ],
)
def test_values_of_the_call_win_over_those_of_the_function(
    checkpoint_size, min_, max_, udf_min, udf_max, rows, expected
):
    assert checkpoint_bounds(checkpoint_size, min_, max_, udf_min, udf_max, rows) == expected


@pytest.mark.parametrize(
    ("checkpoint_size", "min_", "max_", "udf_min", "udf_max"),
    [
        *((None, 8, 7, None, None), (7, 8, None, None, None), (7, 8, 9, None, None), (None, None, None, 8, 7)),
        *((0, None, None, None, None), (None, 0, None, None, None), (None, None, -1, None, None)),
        *((None, None, None, 0, None), (None, None, None, None, 0)),
    ],
)
def test_a_minimum_above_the_maximum_and_sizes_below_one_are_refused(checkpoint_size, min_, max_, udf_min, udf_max):
    with pytest.raises(BadOption) as caught:
        checkpoint_bounds(checkpoint_size, min_, max_, udf_min, udf_max, 500)
    assert caught.value.hint


sizes = st.one_of(st.none(), st.integers(1, 50))


@given(sizes, sizes, sizes, sizes, sizes, st.integers(0, 60))
def test_bounds_always_make_a_sizer(checkpoint_size, min_, max_, udf_min, udf_max, rows):
    try:
        low, high = checkpoint_bounds(checkpoint_size, min_, max_, udf_min, udf_max, rows)
    except BadOption:
        return
    assert 1 <= low <= high <= (checkpoint_size or max(rows, 1))
    assert max_ is None or high <= max_
    assert min_ is None or low == min(min_, high)
    CheckpointSizer(low, high)
