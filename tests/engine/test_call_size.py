"""The size of calls follows what calls cost: a fixed part, a part per row, and what changes."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from columns.cost_shapes import SHAPES
from columns.virtual_cores import Cost, best_fixed_size
from floodmark.engine.call_size import MIN_CALLS, CallCost, CallTimes
from floodmark.engine.rounds import CheckpointSizer
from profiles import examples, seeds

TARGET = 10.0
LARGEST = 1 << 16


def called(cost: Cost, rows: int) -> tuple[list[int], float]:
    """The sizes of all calls for so many rows, and the seconds that they take."""
    times, sizer, sizes, now = CallTimes(), CheckpointSizer(1, 1 << 20, TARGET), [], 0.0
    left = rows
    while left:
        short = -(-sizer.size // MIN_CALLS)
        size = min(times.next_rows(short, TARGET), left, LARGEST)
        seconds = cost(rows - left, size, not sizes)
        times = times.after(size, seconds)
        sizer.record(size, seconds)
        sizes.append(size)
        now += seconds
        left -= size
    return sizes, now


def measured(*calls: tuple[int, float]) -> CallTimes:
    times = CallTimes()
    for rows, seconds in calls:
        times = times.after(rows, seconds)
    return times


@given(st.floats(0, 100), st.floats(1e-6, 100), st.sets(st.integers(1, 10**5), min_size=2, max_size=9))
def test_the_cost_of_calls_without_noise_is_found(fixed, per_row, sizes):
    if len({size.bit_length() for size in sizes}) < 2:
        return
    cost = measured(*[(size, fixed + per_row * size) for size in sorted(sizes)]).cost
    assert cost is not None
    for size in sizes:
        assert cost.of(size) == pytest.approx(fixed + per_row * size, rel=0.01)


def test_one_size_does_not_show_what_a_row_costs():
    assert measured().cost is None
    assert measured((5, 1.0), (6, 1.0)).cost is None
    assert measured((5, 1.0), (50, 1.0)).cost == CallCost(pytest.approx(1.0), 0.0)


def test_first_call_that_loaded_a_model_does_not_count_once_a_larger_one_was_faster():
    sizes, _ = called(lambda first, rows, cold: 30.0 * cold + 1.0 * rows, 100)
    assert sizes[0] == 1
    assert max(sizes) <= 10, "no call takes longer than the target"


def test_calls_whose_rows_cost_nothing_grow_quickly():
    sizes, _ = called(lambda first, rows, cold: 0.3, 3000)
    assert sizes == [1, 33, 2966]


def test_size_at_which_memory_is_short_is_left_alone():
    sizes, _ = called(lambda first, rows, cold: 0.5 + (1e-4 if rows <= 4000 else 5e-3) * rows, 500_000)
    assert sum(size > 8191 for size in sizes) <= 6, "tried a few times"
    assert sum(size > 2000 for size in sizes) > len(sizes) // 2


def test_after_a_change_of_speed_earlier_calls_are_forgotten():
    times = measured((1, 1.0), (10, 1.0), *[(100, 1.0)] * 20)
    assert times.cost == CallCost(pytest.approx(1.0), 0.0)
    for size in (100, 100, 30):
        times = times.after(size, 0.5 * size)
    assert times.calls == ((100, 50.0), (30, 15.0))
    assert times.next_rows(1, TARGET) == 1


@pytest.mark.parametrize("seconds", [1e-6, 1e6])
def test_one_call_that_took_another_time_does_not_matter(seconds):
    before = measured((1, 1.0), *[(100, 1.99)] * 9)
    after = before.after(100, seconds)
    assert after.after(100, 1.99).cost == pytest.approx(before.cost) or after.cost is not None
    assert after.next_rows(1, TARGET) == before.next_rows(1, TARGET)


def test_tasks_that_began_with_the_same_calls_add_theirs():
    known = measured((1, 0.5), (10, 0.7))
    one, two = known.after(100, 2.0), known.after(110, 2.1)
    joined = CallTimes.joined([one, two])
    assert sorted(joined.calls) == [(1, 0.5), (10, 0.7), (100, 2.0), (110, 2.1)]
    assert CallTimes.joined([]) == CallTimes()


def test_times_travel_to_a_worker():
    times = measured((1, 0.5), (10, 0.7))
    assert pickle.loads(pickle.dumps(times)) == times


@settings(max_examples=examples(100))
@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e6)), max_size=40),
)
def test_next_call_is_never_empty_or_far_larger_than_any_before(short, calls):
    times = CallTimes()
    for rows, seconds in calls:
        times = times.after(rows, seconds)
        size = times.next_rows(short, TARGET)
        assert 1 <= size <= 100 * max(rows for rows, _ in times.calls)
        assert len([kept for kept in times.calls if kept[0].bit_length() == rows.bit_length()]) <= 3


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", SHAPES)
def test_any_shape_takes_little_longer_than_the_best_size_on_average(name):
    """Of one core, and of many seeds: a single history with noise says little."""
    shape = SHAPES[name]
    chosen = seeds(25)
    best, _ = best_fixed_size(lambda: shape.cost(random.Random(0)), shape.rows, 1, LARGEST)
    mean = sum(called(shape.cost(random.Random(seed)), shape.rows)[1] for seed in chosen) / len(chosen)
    assert mean <= 1.5 * best


@pytest.mark.soak
@settings(max_examples=examples(500))
@given(st.floats(0, 2), st.floats(1e-6, 1), st.floats(30, 300))
def test_any_cost_takes_little_longer_than_with_the_best_size(fixed, per_row, least):
    """Where the best size, the largest one, takes at least 30 s and at least sixteen calls' fixed costs."""
    rows = next(n for n in _powers() if fixed * -(-n // LARGEST) + per_row * n >= max(least, 16 * fixed))
    best = fixed * -(-rows // LARGEST) + per_row * rows
    sizes, seconds = called(lambda first, n, cold: fixed + per_row * n, rows)
    assert sum(sizes) == rows
    assert seconds <= 1.5 * best


def _powers() -> Iterator[int]:
    return (int(1.5**n) + 1 for n in itertools.count())
