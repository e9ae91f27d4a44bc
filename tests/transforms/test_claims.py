"""When runs become one, none claims a record that it did not see and that lies beyond the positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from floodmark.transforms.meta_entries import MOST_RUNS, RunInfo, collapse_runs

OFFSETS = st.dictionaries(st.sampled_from("abc"), st.integers(-1, 9))
RUNS = (st.lists(OFFSETS, max_size=9) | st.lists(OFFSETS, min_size=60, max_size=60)).map(
    lambda last_offsets: {n: RunInfo(str(n), n, p) for n, p in enumerate(last_offsets)}
)


@given(RUNS, OFFSETS)
def test_claim_lies_between_the_positions_and_what_was_seen(runs, positions):
    result = collapse_runs(runs, positions, len(runs))
    assert set(result.number_of) == set(runs)
    assert set(result.number_of.values()) == set(result.runs)
    assert len(result.runs) <= MOST_RUNS
    for number, run in runs.items():
        claim = result.runs[result.number_of[number]]
        for dataset in "abc":
            position = positions.get(dataset, -1)
            assert claim.up_to(dataset) <= max(run.up_to(dataset), position)
            assert claim.up_to(dataset) >= min(run.up_to(dataset), position)


@given(RUNS, OFFSETS)
def test_a_number_that_stays_means_the_run_that_it_meant(runs, positions):
    for number, run in collapse_runs(runs, positions, len(runs)).runs.items():
        assert number >= len(runs) or run == runs[number]


def test_run_that_is_beyond_the_positions_in_one_input_keeps_what_it_saw_in_all():
    runs = {0: RunInfo("0", 0, {"a": 5, "b": 1}), 1: RunInfo("1", 1, {"a": 3, "b": 2})}
    result = collapse_runs(runs, {"a": 4, "b": 4}, 2)
    assert result.number_of == {0: 0, 1: 2}
    assert result.runs == {0: runs[0], 2: RunInfo("", 1, {"a": 4, "b": 4})}


def test_runs_that_must_share_a_number_claim_what_all_of_them_saw():
    runs = {n: RunInfo(str(n), n, {"a": 10 + n, "b": 99 - n}) for n in range(MOST_RUNS + 2)}
    result = collapse_runs(runs, {"a": 3}, len(runs))
    assert len(result.runs) == MOST_RUNS
    crowd = [number for number in runs if result.number_of[number] == result.number_of[0]]
    assert crowd == [0, 1, 2]
    assert result.runs[result.number_of[0]].last_offsets == {"a": 10, "b": 97}


def test_input_without_a_position_has_none():
    runs = {0: RunInfo("0", 0, {"a": 0})}
    assert collapse_runs(runs, {}, 1).runs == runs
