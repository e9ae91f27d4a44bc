"""What other systems got wrong: each of these lost rows, showed old ones, or computed them again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.chain.events import ExecuteTransform, SetTransform
from floodmark.errors import BadResult, RecordsPurged
from profiles import IN_FULL
from transforms.oracle import assert_right, input_rows
from transforms.racing import crash_before, raced_world
from transforms.worlds import (
    AGGREGATION,
    ALIAS,
    APPENDED,
    CASES,
    CROSS,
    GROUP_JOIN,
    JOIN,
    LOOKUP,
    MAP,
    MOVING_GROUPS,
    ONE_TO_MANY,
    REQUIRED,
    STAR,
    TWO_OUTPUTS,
    Calls,
    Case,
    World,
    in_this_process,
    make_world,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOTH = pytest.mark.parametrize("offsets", [True, False], ids=["v2", "v1"])


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda case, **options: make_world(case, tmp_path / case.name, **options)


def each_case_either_way() -> list[tuple[Case, bool]]:
    """Every case with one of the two changelists, in turn; under `soak` with both."""
    every = itertools.product(CASES, [True, False])
    return [(case, way) for n, (case, way) in enumerate(every) if IN_FULL or n % 4 in (0, 3)]


def nanos(time: datetime) -> int:
    return int(time.timestamp()) * 10**9


def events(world: World, name: str = "out") -> list[Any]:
    """What the blocks of a dataset say, oldest first."""
    return [entry.event for entry in world.lake[name].log()][::-1]


def transactions(world: World, name: str = "out") -> list[ExecuteTransform]:
    return [event for event in events(world, name) if isinstance(event, ExecuteTransform)]


def once(*keys: Any) -> dict[tuple[Any, ...], int]:
    """Each of these keys was called for once, and no other."""
    return {key if isinstance(key, tuple) else (key,): 1 for key in keys}


def fill(world: World) -> None:
    """Some rows in every input, with keys that meet and keys that do not."""
    for number, source in enumerate(world.case.sources):
        rows = []
        for i in range(6):
            values = {"id": i + number, "ref": i + number, "i": i, "j": i, "n": i, "cat": i % 3, "g": i % 3}
            rows.append(tuple(values.get(column, i * 7) for column in source.columns))
        if source.key is not None:
            at = [list(source.columns).index(column) for column in source.key]
            rows = list({tuple(row[n] for n in at): row for row in rows}.values())
        world.write(source.name, *rows)


# Clocks


@BOTH
def test_row_committed_at_the_very_time_of_the_last_run_is_processed(offsets, world):
    """Everything has the same timestamp: the rows, the runs, and the rows after the runs."""
    lake = world(MAP, runtime=fm.Runtime(clock=lambda: nanos(NOON)), use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    lake.write("a", (2, 20), (3, 3))
    assert set(lake.changelist(offsets)) == {(2,), (3,)}
    lake.run()
    assert lake.calls.count() == once(2, 3)
    assert lake.run().called == 0
    assert_right(lake)


@BOTH
def test_row_committed_late_with_an_earlier_time_is_processed(offsets, world):
    """The clock of whoever wrote it is an hour slow."""
    now = [NOON]
    lake = world(MAP, runtime=fm.Runtime(clock=lambda: nanos(now[0])), use_offset_optimization=offsets)
    lake.write("a", (1, 1))
    lake.run()
    now[0] = NOON - timedelta(hours=1)
    lake.write("a", (1, 10), (2, 2))
    assert set(lake.changelist(offsets)) == {(1,), (2,)}
    lake.run()
    assert lake.calls.count() == once(1, 2)
    now[0] = NOON + timedelta(hours=1)
    assert lake.run().nothing
    assert_right(lake)


# What is written meanwhile


@BOTH
def test_row_written_and_in_flight_key_updated_while_a_run_is_under_way_are_processed_by_the_next(offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    step = lake.step()
    lake.calls.wait()
    with ThreadPoolExecutor(1) as pool:
        run: Future[Any] = pool.submit(step.run, lake.lake)
        lake.calls.await_calls(1)
        lake.write("a", (3, 3))
        lake.write("a", (1, 100))
        lake.calls.go_on()
        assert run.result().keys == 2
    assert lake.shown("w") == {1: 10, 2: 20}, "what was there when the run began"
    assert lake.positions() == {"a": 1}
    assert set(lake.changelist(offsets)) == {(1,), (3,)}
    lake.run()
    assert lake.calls.count() == once(1, 3)
    assert_right(lake)


def test_join_partner_written_while_a_run_is_under_way_is_processed_by_the_next(world):
    lake = world(JOIN)
    lake.write("a", (1, 1))
    step = lake.step()
    lake.calls.wait()
    with ThreadPoolExecutor(1) as pool:
        run: Future[Any] = pool.submit(step.run, lake.lake)
        lake.calls.await_calls(1)
        lake.write("b", (1, 5))
        lake.calls.go_on()
        run.result()
    assert lake.shown("sides") == {1: "a"}
    lake.run()
    assert lake.shown("z") == {1: 15}
    assert_right(lake)


# Part of the keys


@BOTH
@pytest.mark.parametrize("one", [1, 3], ids=["first", "last"])
def test_full_run_after_a_filtered_run_processes_the_others_and_nothing_twice(one, offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2), (3, 3))
    lake.run(run={"filters": {"id": one}})
    assert lake.shown("w") == {one: one * 10}
    assert lake.positions() == {"a": -1}, "a filtered run does not move the offset"
    lake.write("a", (4, 4))
    others = {1, 2, 3, 4} - {one}
    assert set(lake.changelist(offsets)) == {(key,) for key in others}
    lake.run()
    assert lake.calls.count() == once(*others)
    assert lake.positions() == lake.heads()
    assert_right(lake)


def test_key_of_a_filtered_run_that_changed_after_it_is_processed_by_the_full_run(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    lake.run(run={"filters": {"id": 2}})
    lake.write("a", (2, 20))
    lake.run()
    assert lake.calls.count() == once(1, 2)
    assert_right(lake)


@pytest.mark.slow
@pytest.mark.parametrize("case", [STAR, CROSS, GROUP_JOIN], ids=str)
def test_change_of_any_input_is_processed_once_by_a_filtered_run_and_the_full_run_after_it(case, world):
    lake = world(case)
    fill(lake)
    lake.run()
    for source in case.sources:
        rows = [tuple(row[c] for c in source.columns) for row in lake.lake[source.name].to_arrow().to_pylist()]
        lake.write(source.name, *[(*row[:-1], row[-1] + 1) for row in rows])
        pending = lake.changelist()
        some = {case.keys[0]: pending[0][0]}
        lake.run(run={"filters": some})
        first = lake.calls.count()
        assert set(first) == {key for key in pending if key[0] == pending[0][0]}
        assert set(lake.changelist(True)) == set(lake.changelist(False)) == set(pending) - set(first)
        lake.run()
        assert lake.calls.count() == once(*(set(pending) - set(first)))
        assert_right(lake)


def test_step_with_filters_never_processes_the_others(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    lake.run(filters={"id": [2]})
    lake.write("a", (1, 10), (3, 3))
    lake.run(filters={"id": [2]})
    assert lake.calls.count() == {}
    lake.run()
    assert lake.calls.count() == once(1, 2, 3), "other filters are another step, as another function is"
    assert_right(lake)


@pytest.mark.parametrize("part", [{"filters": {"id": [2, 3]}}, {"max_records": 2}], ids=["filtered", "limited"])
def test_offset_optimization_switched_on_after_part_is_processed_loses_nothing(part, world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2), (3, 3), (4, 4))
    lake.run(run=part, use_offset_optimization=False)
    first = set(lake.calls.keys())
    assert len(first) == 2
    lake.write("a", (5, 5))
    lake.run(use_offset_optimization=True)
    assert lake.calls.count() == once(*({1, 2, 3, 4, 5} - {key for (key,) in first}))
    assert_right(lake)


@BOTH
def test_runs_limited_by_max_records_together_process_everything_once(offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", *[(i, i) for i in range(7)])
    called: list[Any] = []
    for size in (3, 3, 1, 0):
        lake.run(run={"max_records": 3})
        assert len(lake.calls.keys()) == size
        assert lake.positions()["a"] <= lake.heads()["a"]
        called += lake.calls.keys()
    assert sorted(called) == [(i,) for i in range(7)]
    assert lake.positions() == lake.heads()
    assert_right(lake)


def test_limited_run_takes_the_earliest_changes_first_and_then_in_the_order_of_keys(world):
    lake = world(MAP)
    lake.write("a", (9, 1), (8, 1))
    lake.write("a", (1, 1))
    lake.write("a", (8, 2))
    assert lake.changelist() == [(8,), (9,), (1,)]
    lake.run(run={"max_records": 2})
    assert set(lake.calls.keys()) == {(8,), (9,)}
    assert lake.changelist() == [(1,)], "the second change of 8 was read with its first"


@pytest.mark.slow
def test_first_of_several_pending_changes_of_a_key_says_when_its_turn_is_and_how_far_the_position_goes(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (8, 8))
    lake.run()
    before = lake.positions()["a"]
    lake.write("a", (8, 80))
    lake.write("a", (1, 10))
    lake.write("a", (8, 800))
    assert lake.changelist(True) == lake.changelist(False) == [(8,), (1,)]
    lake.run(run={"max_records": 1}, order_by="id")
    assert lake.calls.keys() == [(1,)]
    assert lake.positions() == {"a": before}, "the first change of 8 is not done"
    lake.run()
    assert lake.calls.count() == once(8)
    assert_right(lake)


@pytest.mark.slow
def test_limited_runs_that_updates_keep_overtaking_lose_nothing(world):
    lake = world(JOIN)
    lake.write("a", *[(i, i) for i in range(6)])
    for i in range(6):
        lake.run(run={"max_records": 1})
        lake.write("b", (5 - i, i))
    lake.run()
    assert lake.positions() == lake.heads()
    assert_right(lake)


def test_order_by_says_which_keys_a_limited_run_takes(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2), (3, 3))
    lake.run(run={"max_records": 1}, order_by="-id")
    assert lake.calls.keys() == [(3,)]
    lake.run(order_by="-id")
    assert lake.calls.count() == once(1, 2)
    assert_right(lake)


def test_given_keys_are_processed_whether_they_changed_or_not(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2), (3, 3))
    lake.run()
    before = lake.positions()
    lake.write("a", (3, 30))
    lake.calls.forget()
    lake.step().run_changelist(lake.lake, {"a": [1, 3]})
    assert lake.calls.count() == once(1, 3)
    assert lake.positions() == before, "keys that somebody asked for do not move the offset"
    assert lake.run().called == 0
    assert_right(lake)


# Deletes


@BOTH
def test_delete_alone_takes_the_output_away_without_a_call(offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    lake.delete("a", 1)
    assert lake.changelist(offsets) == [(1,)]
    lake.run()
    assert lake.calls.keys() == []
    assert lake.shown("w") == {2: 20}
    assert lake.positions() == lake.heads()
    assert lake.changelist(offsets) == []


def test_key_deleted_before_it_was_ever_processed_shows_nothing(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    lake.delete("a", 1)
    lake.run()
    assert lake.calls.count() == once(2)
    assert lake.run().nothing
    assert_right(lake)


def test_key_that_comes_back_after_its_delete_is_processed_again(world):
    lake = world(MAP)
    lake.write("a", (1, 1))
    lake.run()
    lake.delete("a", 1)
    lake.run()
    lake.write("a", (1, 1))
    lake.run()
    assert lake.calls.count() == once(1)
    assert lake.shown("w") == {1: 10}


@BOTH
def test_key_deleted_and_written_again_between_two_runs_is_one_call(offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    lake.delete("a", 1)
    lake.write("a", (1, 5))
    report = lake.run()
    assert lake.calls.count() == once(1)
    assert report.keys == 1
    assert_right(lake)


@pytest.mark.slow
def test_deleted_join_partner_changes_the_result_of_its_key(world):
    lake = world(JOIN)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 5), (2, 6))
    lake.run()
    lake.delete("b", 1)
    lake.run()
    assert lake.calls.count() == once(1)
    assert lake.shown("sides") == {1: "a", 2: "ab"}
    lake.delete("a", 1)
    lake.run()
    assert lake.calls.keys() == []
    assert_right(lake)


@pytest.mark.slow
def test_deleted_required_partner_takes_the_output_away_and_its_return_brings_it_back(world):
    lake = world(REQUIRED)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 5), (3, 6))
    lake.run()
    assert lake.calls.count() == once(1, 3), "b is required, a is not"
    lake.delete("b", 1)
    lake.run()
    assert lake.calls.keys() == []
    assert_right(lake)
    lake.write("b", (1, 7))
    lake.run()
    assert lake.calls.count() == once(1)
    assert_right(lake)


@pytest.mark.slow
def test_deleted_lookup_row_changes_every_key_that_looked_it_up(world):
    lake = world(LOOKUP)
    lake.write("a", (1, 7, 1), (2, 7, 2), (3, 8, 3))
    lake.write("cats", (7, 70), (8, 80))
    lake.run()
    lake.delete("cats", 7)
    lake.run()
    assert lake.calls.count() == once((1, 7), (2, 7))
    assert lake.shown("label") == {(1, 7): 0, (2, 7): 0, (3, 8): 80}
    assert_right(lake)


@pytest.mark.slow
def test_changed_lookup_row_changes_every_key_that_looks_it_up_now(world):
    lake = world(LOOKUP)
    lake.write("a", (1, 7, 1), (2, 7, 2), (3, 8, 3))
    lake.write("cats", (7, 70), (8, 80))
    lake.run()
    lake.write("a", (2, 8, 2))
    lake.write("cats", (7, 71))
    lake.run()
    assert lake.calls.count() == once((1, 7), (2, 8))
    assert_right(lake)


# Joins, cross joins, groups


@pytest.mark.slow
def test_change_on_one_side_of_a_cross_join_meets_all_of_the_other(world):
    lake = world(CROSS)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 10), (2, 20), (3, 30))
    lake.run()
    assert lake.calls.count() == once(*itertools.product((1, 2), (1, 2, 3)))
    lake.write("b", (2, 21))
    lake.run()
    assert lake.calls.count() == once((1, 2), (2, 2))
    lake.write("a", (3, 3))
    lake.run()
    assert lake.calls.count() == once((3, 1), (3, 2), (3, 3))
    lake.delete("a", 1)
    lake.run()
    assert lake.calls.keys() == []
    assert_right(lake)


def test_both_sides_of_a_cross_join_may_change_at_once(world):
    lake = world(CROSS)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 10), (2, 20))
    lake.run()
    lake.write("a", (1, 5))
    lake.write("b", (1, 50), (3, 30))
    lake.delete("b", 2)
    lake.run()
    assert lake.calls.count() == once((1, 1), (1, 3), (2, 1), (2, 3))
    assert_right(lake)


@BOTH
def test_thirty_changed_rows_of_one_group_are_one_call(offsets, world):
    lake = world(AGGREGATION, use_offset_optimization=offsets)
    lake.write("a", *[(g, i, i) for g in (1, 2, 3) for i in range(30)])
    lake.run()
    assert lake.calls.count() == once(1, 2, 3)
    for part in range(3):
        lake.write("a", *[(2, i, i + 100) for i in range(part * 10, part * 10 + 10)])
    lake.run()
    assert lake.calls.all() == [[((2,), False)]]
    assert_right(lake)


def test_group_larger_than_a_chunk_is_still_one_call(world):
    lake = world(AGGREGATION, chunk_size=1)
    lake.write("a", *[(1, i, i) for i in range(50)], (2, 1, 1))
    lake.run()
    assert lake.calls.count() == once(1, 2)
    assert_right(lake)


@pytest.mark.slow
def test_row_that_moves_to_another_group_changes_both(world):
    lake = world(MOVING_GROUPS)
    lake.write("a", (1, 1, 5), (2, 1, 6), (3, 2, 7), (4, 3, 8))
    lake.run()
    lake.write("a", (2, 2, 6))
    assert set(lake.changelist()) == {(1,), (2,)}
    lake.run()
    assert lake.calls.count() == once(1, 2)
    lake.write("a", (4, 2, 8))
    lake.run()
    assert lake.calls.count() == once(2)
    assert_right(lake)


def test_group_of_an_append_only_input_is_called_with_all_its_records(world):
    lake = world(APPENDED)
    lake.write("a", (1, 1), (2, 1), (1, 1))
    lake.run()
    lake.write("a", (1, 1))
    lake.run()
    assert lake.calls.count() == once(1)
    assert lake.shown("n") == {1: 3, 2: 1}
    assert_right(lake)


def test_two_changed_inputs_of_one_key_are_one_call(world):
    lake = world(JOIN)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 1), (2, 2))
    lake.run()
    lake.write("a", (1, 10))
    lake.write("b", (1, 10))
    lake.write("b", (1, 11))
    lake.run()
    assert lake.calls.all() == [[((1,), False)]]
    assert_right(lake)


def test_inputs_joined_by_an_alias_meet(world):
    lake = world(ALIAS)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (2, 5), (3, 6))
    lake.run()
    assert lake.shown("sides") == {1: "a", 2: "ab", 3: "b"}
    lake.write("b", (1, 7))
    lake.run()
    assert lake.calls.count() == once(1)
    assert_right(lake)


@pytest.mark.parametrize("case", [MOVING_GROUPS, APPENDED], ids=str)
def test_null_in_a_transform_key_is_a_key_like_any_other(case, world):
    lake = world(case)
    rows = [(None, 1), (None, 2), (3, 3)]
    numbered = [(n, *row) for n, row in enumerate(rows)] if case is MOVING_GROUPS else rows
    lake.write("a", *numbered)
    lake.run()
    assert lake.calls.count() == once(None, 3)
    assert lake.shown("n") == {None: 2, 3: 1}
    lake.write("a", (9, None, 4) if case is MOVING_GROUPS else (None, 4))
    assert lake.changelist(True) == lake.changelist(False) == [(None,)]
    lake.run()
    assert lake.calls.count() == once(None)
    assert lake.shown("total") == {None: 70, 3: 30}
    assert lake.run().nothing
    assert_right(lake)


def test_null_in_a_transform_key_can_be_filtered_for(world):
    lake = world(MOVING_GROUPS)
    lake.write("a", (1, None, 1), (2, 2, 2), (3, 3, 3))
    lake.run(run={"filters": {"g": [None, 3]}})
    assert lake.calls.count() == once(None, 3)
    lake.run()
    assert lake.calls.count() == once(2)
    assert_right(lake)


def test_null_in_a_transform_key_that_goes_away_takes_its_output_along(world):
    lake = world(MOVING_GROUPS)
    lake.write("a", (1, None, 1), (2, 2, 2))
    lake.run()
    lake.write("a", (1, 2, 1))
    lake.run()
    assert lake.calls.count() == once(2)
    assert lake.shown("n") == {2: 2}


@pytest.mark.slow
def test_null_in_one_of_two_transform_keys_looks_up_what_has_null_and_no_other(world):
    lake = world(LOOKUP)
    lake.write("a", (1, None, 1), (2, 7, 2))
    lake.write("cats", (7, 70))
    lake.run()
    assert lake.shown("label") == {(1, None): 0, (2, 7): 70}
    lake.write("cats", (7, 71))
    lake.run()
    assert lake.calls.count() == once((2, 7))
    assert_right(lake)


# Outputs


def test_output_rows_that_a_key_no_longer_yields_vanish(world):
    lake = world(ONE_TO_MANY)
    lake.write("a", (1, 3), (2, 2))
    lake.run()
    assert set(lake.shown("w")) == {(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)}
    lake.write("a", (1, 1))
    lake.run()
    assert set(lake.shown("w")) == {(1, 0), (2, 0), (2, 1)}
    lake.write("a", (1, 4))
    lake.run()
    assert set(lake.shown("w")) == {(2, 0), (2, 1)}, "four rows less four are none"
    assert_right(lake)


@pytest.mark.slow
def test_output_that_vanishes_and_comes_back_is_right_in_both_outputs(world):
    lake = world(TWO_OUTPUTS)
    lake.write("a", (1, 3), (2, 2))
    lake.run()
    lake.delete("a", 1)
    lake.run()
    assert_right(lake)
    lake.write("a", (1, 2))
    lake.run()
    assert_right(lake)
    assert lake.lake["many"].changes_arrow()["op"].to_pylist().count(1) == 3


def test_identical_output_rows_are_not_written_again(world):
    lake = world(ONE_TO_MANY)
    lake.write("a", (1, 0), (2, 3))
    lake.run()
    before = lake.lake["many"].last_offset
    lake.write("a", (1, 4))
    lake.run()
    assert lake.calls.count() == once(1)
    assert lake.lake["many"].last_offset == before


# The chain


def test_run_commits_data_meta_and_half_open_inputs_in_one_event(world):
    lake = world(JOIN)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (2, 5))
    lake.run()
    [first] = transactions(lake)
    assert first.new_data is not None
    assert first.new_checkpoint is not None
    by_id = {i.dataset_id: i for i in first.query_inputs}
    for name, last in (("a", 1), ("b", 0)):
        found = by_id[lake.lake[name].id]
        assert (found.prev_block_hash, found.prev_offset) == (None, None)
        assert (found.new_block_hash, found.new_offset) == (lake.lake[name].head, last)
    head = lake.lake["a"].head
    lake.write("a", (3, 3))
    lake.run()
    _, second = transactions(lake)
    by_id = {i.dataset_id: i for i in second.query_inputs}
    moved, stayed = by_id[lake.lake["a"].id], by_id[lake.lake["b"].id]
    assert (moved.prev_block_hash, moved.prev_offset) == (head, 1)
    assert (moved.new_block_hash, moved.new_offset) == (lake.lake["a"].head, 2)
    assert (stayed.prev_block_hash, stayed.prev_offset) == (lake.lake["b"].head, 0)
    assert (stayed.new_block_hash, stayed.new_offset) == (None, None), "an interval that is empty"
    assert second.prev_checkpoint == first.new_checkpoint.physical_hash


def test_run_with_nothing_new_commits_nothing(world):
    lake = world(STAR)
    fill(lake)
    lake.run()
    before = {dataset.name: dataset.head for dataset in lake.lake}
    report = lake.run()
    assert report.nothing
    assert (report.keys, report.called, report.commits) == (0, 0, 0)
    assert lake.calls.keys() == []
    assert {dataset.name: dataset.head for dataset in lake.lake} == before


def test_run_over_empty_inputs_calls_nothing_and_shows_nothing(world):
    lake = world(JOIN)
    lake.run()
    assert lake.calls.keys() == []
    lake.write("a", (1, 1))
    lake.run()
    assert_right(lake)


def test_inputs_that_move_without_changing_the_output_advance_and_carry_the_offset(world):
    lake = world(ONE_TO_MANY)
    lake.write("a", (1, 0), (2, 3))
    lake.run()
    last = lake.lake["many"].last_offset
    lake.write("a", (1, 4), (3, 0))
    lake.run()
    event = transactions(lake, "many")[-1]
    assert event.new_data is None
    assert event.prev_offset == last
    assert event.new_checkpoint is not None
    [moved] = event.query_inputs
    assert moved.new_offset == lake.lake["a"].last_offset
    assert lake.positions() == lake.heads()
    lake.write("a", (2, 2))
    lake.run()
    assert lake.calls.count() == once(2), "what an empty event said is remembered"
    assert_right(lake)


def test_failure_alone_is_remembered_by_an_event_without_data(world):
    lake = world(MAP, max_failed=1)
    lake.calls.fail((1,))
    lake.write("a", (1, 1))
    lake.run()
    assert lake.lake["out"].last_offset is None
    assert lake.positions() == lake.heads()
    lake.calls.behave()
    lake.run()
    assert_right(lake)


def test_offsets_are_the_table_of_the_seed(world):
    lake = world(JOIN)
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    table = lake.step().offsets(lake.lake)
    assert table.column_names == ["transform", "input", "offset", "time"]
    rows = {row["input"]: row for row in table.to_pylist()}
    assert {row["transform"] for row in rows.values()} == {"step"}
    assert rows["a"]["offset"] == 1
    assert rows["b"]["offset"] in (None, -1)
    times = lake.lake["a"].changes_arrow()["system_time"].to_pylist()
    assert abs((rows["a"]["time"] - times[-1]).total_seconds()) < 1


# Errors


@pytest.mark.parametrize("size", [1, 4, 100])
def test_failing_keys_stand_alone_and_the_others_succeed_in_the_same_run(size, world):
    lake = world(MAP, chunk_size=size)
    lake.write("a", *[(i, i) for i in range(11)])
    lake.calls.fail((3,), (4,))
    report = lake.run()
    assert (report.keys, report.failed) == (11, 2)
    assert_right(lake, failed={(3,), (4,)})
    errors = lake.step().errors(lake.lake)
    assert errors.sort_by("id")["id"].to_pylist() == [3, 4]
    [one, _] = errors.sort_by("id").to_pylist()
    assert one["type"].endswith("ToldToFail")
    assert one["message"] == "told to fail for (3,)"
    assert "note" in one["traceback"]
    assert "raise ToldToFail" in one["traceback"]
    assert one["attempts"] == 1


@pytest.mark.parametrize("size", [4, 100])
def test_failing_keys_of_a_cross_join_stand_alone(size, world):
    lake = world(CROSS, chunk_size=size)
    lake.write("a", (1, 1), (2, 2), (3, 3))
    lake.write("b", (1, 10), (2, 20), (3, 30))
    lake.calls.fail((2, 2), (3, 1))
    report = lake.run()
    assert (report.keys, report.failed) == (9, 2)
    assert_right(lake, failed={(2, 2), (3, 1)})
    calls = lake.calls.all()
    for number, call in enumerate(calls):
        if not any(bad for _, bad in call):
            later = {key for other in calls[number + 1 :] for key, _ in other}
            assert not later & {key for key, _ in call}, "a call without a failing key was not good enough"
    lake.calls.behave()
    lake.run()
    assert lake.calls.count() == once((2, 2), (3, 1))
    assert_right(lake)


@BOTH
def test_failed_pairs_of_a_cross_join_are_forgotten_when_one_side_is_gone(offsets, world):
    lake = world(CROSS, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    lake.write("b", (1, 10), (2, 20))
    lake.calls.fail((2, 2), (1, 2))
    lake.run()
    lake.delete("a", 2)
    report = lake.run()
    assert report.failed == 1
    assert_right(lake, failed={(1, 2)})
    assert [(row["i"], row["j"]) for row in lake.step().errors(lake.lake).to_pylist()] == [(1, 2)]


@pytest.mark.slow
@BOTH
def test_failed_keys_are_always_in_the_changelist_and_tried_without_end(offsets, world):
    lake = world(MAP, use_offset_optimization=offsets)
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((2,))
    for attempt in range(1, 5):
        lake.run()
        assert lake.changelist(offsets) == [(2,)]
        [error] = lake.step().errors(lake.lake).to_pylist()
        assert error["attempts"] == attempt
    assert lake.positions() == lake.heads(), "failures are kept by key, not by holding the offset back"
    since = error["since"]
    assert since <= error["last"]
    lake.calls.behave()
    lake.run()
    assert lake.calls.count() == once(2)
    assert lake.step().errors(lake.lake).num_rows == 0
    assert lake.changelist(offsets) == []
    assert_right(lake)


def test_failed_keys_come_after_the_changed_ones(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    lake.run()
    lake.write("a", (3, 3), (2, 4))
    assert lake.changelist() == [(2,), (3,), (1,)]


def test_key_that_fails_now_keeps_all_rows_of_its_last_success(world):
    lake = world(ONE_TO_MANY)
    lake.write("a", (1, 3), (2, 3))
    lake.run()
    before = lake.rows()
    lake.write("a", (1, 2), (2, 0))
    lake.calls.fail((1,))
    lake.run()
    assert lake.rows() == [row for row in before if row["id"] == 1]
    lake.calls.behave()
    lake.run()
    assert_right(lake)


def test_failed_key_that_is_deleted_is_no_error_any_more(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    lake.run()
    lake.delete("a", 1)
    lake.run()
    assert lake.calls.keys() == []
    assert lake.step().errors(lake.lake).num_rows == 0
    assert lake.changelist() == lake.changelist(False) == []


def test_attempts_are_limited_when_a_limit_is_set_until_retry_is_called(world):
    lake = world(MAP, on_error=fm.OnError.retry(attempts=2))
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    lake.run()
    lake.run()
    assert lake.calls.count() == once(1)
    lake.run()
    assert lake.calls.keys() == []
    assert lake.changelist(True) == lake.changelist(False) == []
    assert lake.step().status(lake.lake).exhausted == 1
    lake.calls.behave()
    lake.step().retry(lake.lake)
    lake.run()
    assert_right(lake)
    assert lake.step().errors(lake.lake).num_rows == 0


def test_exhausted_key_that_changes_is_tried_again(world):
    lake = world(MAP, on_error=fm.OnError.retry(attempts=1))
    lake.write("a", (1, 1))
    lake.calls.fail((1,))
    lake.run()
    lake.write("a", (1, 2))
    assert lake.changelist(True) == lake.changelist(False) == [(1,)]
    lake.calls.behave()
    lake.run()
    assert_right(lake)


def test_back_off_waits_twice_as_long_after_each_failure(world):
    now = [NOON]
    lake = world(MAP, runtime=fm.Runtime(clock=lambda: nanos(now[0])))
    lake.options["on_error"] = fm.OnError.retry(backoff=60.0)
    lake.write("a", (1, 1))
    lake.calls.fail((1,))
    called = []
    for minute in range(10):
        now[0] = NOON + timedelta(minutes=minute, seconds=1)
        lake.run()
        if lake.calls.keys():
            called.append(minute)
    assert called == [0, 1, 3, 7]
    [error] = lake.step().errors(lake.lake).to_pylist()
    assert (error["since"], error["last"]) == (NOON + timedelta(seconds=1), NOON + timedelta(minutes=7, seconds=1))


def test_back_off_from_a_clock_that_was_a_year_ahead_does_not_wait_for_a_year(world):
    now = [NOON + timedelta(days=365)]
    lake = world(MAP, runtime=fm.Runtime(clock=lambda: nanos(now[0])))
    lake.options["on_error"] = fm.OnError.retry(backoff=60.0)
    lake.write("a", (1, 1))
    lake.calls.fail((1,))
    lake.run()
    lake.calls.behave()
    now[0] = NOON
    lake.run()
    assert_right(lake)


def test_changed_key_does_not_wait_for_its_back_off(world):
    lake = world(MAP, on_error=fm.OnError.retry(backoff=3600.0))
    lake.write("a", (1, 1))
    lake.calls.fail((1,))
    lake.run()
    lake.write("a", (1, 2))
    lake.calls.behave()
    lake.run()
    assert_right(lake)


def test_skipped_keys_are_not_tried_again_until_they_change(world):
    lake = world(MAP, on_error="skip")
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    lake.run()
    assert_right(lake, failed={(1,)})
    lake.calls.behave()
    lake.run()
    assert lake.calls.keys() == []
    assert lake.step().status(lake.lake).skipped == 1
    lake.write("a", (1, 3))
    lake.run()
    assert lake.calls.count() == once(1)
    assert_right(lake)


def test_fail_fast_raises_and_commits_nothing_of_it(world):
    lake = world(MAP, on_error="fail_fast")
    lake.write("a", (1, 1))
    lake.run()
    lake.write("a", (1, 2), (2, 2))
    lake.calls.fail((2,))
    with pytest.raises(fm.FloodmarkError, match="told to fail"):
        lake.run()
    assert lake.shown("w") == {1: 10}
    lake.calls.behave()
    lake.run()
    assert_right(lake)


def _returning(lake: World, change: Callable[[list[Any]], list[Any]]) -> fm.BatchTransform:
    """A step that returns its rows after something was done to them."""

    def function(a: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(change([{"id": row["id"], "w": row["v"] * 10} for row in a.to_pylist()]))

    return fm.BatchTransform(function, inputs=["a"], outputs=["out"], version="1", name="step", chunk_size=4)


def _twice(rows: list[Any]) -> list[Any]:
    return rows + [row for row in rows if row["id"] == 2]


def _strange(rows: list[Any]) -> list[Any]:
    return [{**row, "id": 77} if row["id"] == 2 else row for row in rows]


@pytest.mark.parametrize(("change", "said"), [(_twice, "2"), (_strange, "77")], ids=["duplicate", "outside the chunk"])
def test_key_whose_result_has_bad_keys_fails_alone_and_the_error_says_which(change, said, world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2), (3, 3))
    report = _returning(lake, change).run(lake.lake)
    assert (report.keys, report.failed) == (3, 1)
    [error] = lake.step().errors(lake.lake).to_pylist()
    assert error["id"] == 2
    assert said in error["message"]
    assert_right(lake, failed={(2,)})


def test_result_with_wrong_columns_ends_the_run_and_the_error_says_which(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))
    with pytest.raises(BadResult, match="'id'"):
        _returning(lake, lambda rows: [{"w": row["w"]} for row in rows]).run(lake.lake)
    lake.run()
    lake.write("a", (3, 3))
    with pytest.raises(BadResult, match="'surplus'"):
        _returning(lake, lambda rows: [{**row, "surplus": 1} for row in rows]).run(lake.lake)
    assert lake.shown("w") == {1: 10, 2: 20}
    lake.run()
    assert_right(lake)


# Exact resume


def test_commits_go_in_the_order_of_positions(world):
    lake = world(MAP, chunk_size=2)
    for i in range(6):
        lake.write("a", (5 - i, i))
    report = lake.run(run={"commit_every": 2})
    assert report.commits == 3
    moved = [i.new_offset for event in transactions(lake) for i in event.query_inputs]
    assert moved == [1, 3, 5]
    sizes = [event.new_data.offset_interval for event in transactions(lake) if event.new_data]
    assert [(s.start, s.end) for s in sizes] == [(0, 1), (2, 3), (4, 5)]
    assert_right(lake)


@pytest.mark.parametrize("case", [MAP, JOIN], ids=str)
@BOTH
def test_what_was_committed_before_a_failure_stays_and_is_not_done_again(offsets, case, world):
    lake = world(case, chunk_size=1, on_error="fail_fast", use_offset_optimization=offsets)
    lake.write("a", *[(i, i) for i in range(6)])
    lake.calls.fail((4,))
    with pytest.raises(fm.FloodmarkError):
        lake.run(run={"commit_every": 2})
    assert lake.shown(case.outputs[0].schema.names[1]) == {i: 10 * i for i in range(4)}
    assert lake.positions()["a"] <= 3
    assert set(lake.changelist(True)) == set(lake.changelist(False)) == {(4,), (5,)}
    lake.calls.behave()
    lake.run()
    assert not {(i,) for i in range(4)} & set(lake.calls.keys())
    assert_right(lake)


def test_what_was_computed_before_a_failure_is_stored_and_not_done_again(world):
    lake = world(MAP, chunk_size=1, on_error="fail_fast")
    lake.write("a", *[(i, i) for i in range(6)])
    lake.calls.fail((4,))
    with pytest.raises(fm.FloodmarkError):
        lake.run()
    assert lake.calls.count() == once(*range(5))
    lake.calls.behave()
    assert lake.run().reused == 4
    assert lake.calls.count() == once(4, 5)
    assert_right(lake)


@pytest.mark.parametrize("case", [MAP, JOIN], ids=str)
def test_results_stored_before_a_crash_serve_the_keys_that_did_not_change_since(case, tmp_path):
    lake = raced_world(case, tmp_path)
    lake.write("a", *[(i, i) for i in range(6)])
    crash_before(lake, "out", lake.run)
    assert len(lake.calls.keys()) == 6
    lake.write("a", (1, 100), (7, 7))
    lake.delete("a", 2)
    report = lake.run()
    assert lake.calls.count() == once(1, 7)
    assert (report.reused, report.called) == (4, 2)
    assert_right(lake)


@pytest.mark.parametrize("case", [MAP, JOIN], ids=str)
def test_key_that_was_gone_when_a_run_crashed_may_have_come_back(case, tmp_path):
    lake = raced_world(case, tmp_path)
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    lake.delete("a", 1)
    lake.write("a", (2, 20))
    crash_before(lake, "out", lake.run)
    lake.write("a", (1, 10))
    lake.run()
    assert lake.calls.count() == once(1)
    assert_right(lake)


def test_failure_stored_before_a_crash_counts_as_one_attempt(tmp_path):
    lake = raced_world(MAP, tmp_path)
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    crash_before(lake, "out", lake.run)
    lake.run()
    [error] = lake.step().errors(lake.lake).to_pylist()
    assert error["attempts"] == 1
    lake.calls.behave()
    lake.run()
    assert lake.calls.count() == once(1), "a failure that is committed is tried again, stored or not"
    assert_right(lake)


# Versions


@BOTH
def test_new_version_processes_everything_in_one_commit_while_readers_keep_the_old(offsets, world):
    lake = world(MAP, chunk_size=2, use_offset_optimization=offsets)
    lake.write("a", *[(i, i) for i in range(6)])
    lake.run()
    before = len(events(lake))
    lake.calls.wait()
    lake.calls.forget()
    with ThreadPoolExecutor(1) as pool:
        run: Future[Any] = pool.submit(lake.step("2").run, lake.lake, commit_every=2)
        lake.calls.await_calls(1)
        assert lake.shown("w") == {i: i * 10 for i in range(6)}
        lake.calls.go_on()
        report = run.result()
    assert report.commits == 1
    assert lake.calls.count() == once(*range(6))
    assert_right(lake, 100)
    new = events(lake)[before:]
    assert [type(event) for event in new] == [SetTransform, ExecuteTransform]
    assert lake.run("2").nothing


def test_version_that_cannot_be_computed_leaves_the_old_output(world):
    lake = world(MAP, on_error="fail_fast")
    lake.write("a", (1, 1), (2, 2))
    lake.run()
    lake.calls.fail((2,))
    with pytest.raises(fm.FloodmarkError):
        lake.run("2")
    assert lake.shown("w") == {1: 10, 2: 20}
    lake.calls.behave()
    lake.run("2")
    assert_right(lake, 100)


def test_new_version_takes_away_what_only_the_old_one_yields(world):
    lake = world(ONE_TO_MANY)
    lake.write("a", (1, 3), (2, 2))
    lake.run()
    lake.delete("a", 2)
    lake.run("2")
    assert_right(lake, 100)


@pytest.mark.parametrize("case", [MAP, JOIN], ids=str)
def test_new_version_of_a_step_with_filters_takes_away_what_is_gone(case, world):
    lake = world(case, filters={"id": [1, 2, 3]})
    lake.write("a", (1, 1), (2, 2), (3, 3), (4, 4))
    lake.run()
    lake.delete("a", 2)
    lake.run("2")
    assert set(lake.shown(case.outputs[0].schema.names[1])) == {1, 3}
    assert lake.calls.count() == once(1, 3)


def test_keys_that_failed_in_the_old_version_are_as_new_in_the_new_one(world):
    lake = world(MAP, on_error=fm.OnError.retry(attempts=1))
    lake.write("a", (1, 1), (2, 2))
    lake.calls.fail((1,))
    lake.run()
    lake.calls.behave()
    lake.run("2")
    assert_right(lake, 100)
    assert lake.step("2").errors(lake.lake).num_rows == 0


def _renamed(calls: Calls, case: Case) -> Any:
    def another_name(a: Any) -> Any:
        calls.note([(key,) for key in a["id"].to_list()])
        return a.assign(w=a["v"] * 10)[["id", "w"]]

    return another_name


def _as_it_was(calls: Calls, case: Case) -> Any:
    def first_name(a: Any) -> Any:
        # a comment that changes nothing
        calls.note([(key,) for key in a["id"].to_list()])
        return a.assign(w=a["v"] * 10)[["id", "w"]]

    return first_name


def _another(calls: Calls, case: Case) -> Any:
    def first_name(a: Any) -> Any:
        calls.note([(key,) for key in a["id"].to_list()])
        return a.assign(w=a["v"] * 100)[["id", "w"]]

    return first_name


@pytest.mark.slow
def test_renaming_the_function_or_the_step_processes_nothing_and_changing_it_everything(world):
    lake = world(MAP)
    lake.write("a", (1, 1), (2, 2))

    def step(make: Any, **options: Any) -> fm.BatchTransform:
        return fm.BatchTransform(make(lake.calls, MAP), inputs=["a"], outputs=["out"], **options)

    assert step(_as_it_was).name == "first_name"
    assert step(_as_it_was).run(lake.lake).called == 2
    assert step(_renamed).name == "another_name"
    assert step(_renamed).run(lake.lake).nothing
    assert step(_as_it_was, name="other").run(lake.lake).nothing
    lake.write("a", (3, 3))
    assert step(_renamed, name="third").run(lake.lake).called == 1
    assert_right(lake)
    assert step(_another, name="third").run(lake.lake).called == 3
    assert_right(lake, 100)


def test_given_version_is_what_counts_whatever_the_function_does(world):
    lake = world(MAP)
    lake.write("a", (1, 1))
    lake.run()
    step = fm.BatchTransform(_another(lake.calls, MAP), inputs=["a"], outputs=["out"], version="1", name="step")
    lake.calls.forget()
    assert step.run(lake.lake).nothing
    lake.write("a", (2, 2))
    step.run(lake.lake)
    assert lake.shown("w") == {1: 10, 2: 200}


def test_other_kwargs_are_another_version(world):
    lake = world(MAP)
    lake.write("a", (1, 1))

    def times(a: Any, factor: int) -> Any:
        return a.assign(w=a["v"] * factor)[["id", "w"]]

    def run(factor: int) -> Any:
        return fm.BatchTransform(times, inputs=["a"], outputs=["out"], kwargs={"factor": factor}).run(lake.lake)

    assert run(10).called == 1
    assert run(10).nothing
    assert run(100).called == 1
    assert_right(lake, 100)


def test_reset_makes_everything_stale_and_readers_keep_the_output(world):
    lake = world(JOIN)
    fill(lake)
    lake.run()
    before = lake.rows()
    lake.step().reset(lake.lake)
    assert lake.rows() == before
    everything = {tuple(key) for key in lake.changelist(True)}
    assert everything == set(lake.changelist(False)) == set(JOIN.keys_in(input_rows(lake.lake, JOIN)))
    offset = lake.lake["out"].last_offset
    lake.run()
    assert lake.calls.count() == once(*everything)
    assert lake.lake["out"].last_offset == offset, "identical rows are not written"
    assert lake.run().nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "how"),
    [(MAP, "new version"), (CROSS, "new version"), (JOIN, "reset"), (LOOKUP, "reset"), (AGGREGATION, "reset")],
    ids=str,
)
def test_key_that_was_gone_before_everything_was_processed_anew_is_done_with(how, case, world):
    """Both changelists agree that there is nothing to do, though its records are still there."""
    lake = world(case)
    fill(lake)
    lake.run()
    key = case.sources[0].key
    assert key is not None
    first = lake.lake["a"].to_arrow().to_pylist()[0]
    lake.delete("a", {column: first[column] for column in key})
    lake.run()
    version = "2" if how == "new version" else "1"
    if how == "reset":
        lake.step().reset(lake.lake)
    lake.run(version)
    step = lake.step(version)
    assert step.changelist(lake.lake, True).num_rows == step.changelist(lake.lake, False).num_rows == 0
    assert_right(lake, {"1": 10, "2": 100}[version])


def test_purge_of_records_that_were_not_read_is_refused_until_reset(world):
    lake = world(APPENDED)
    lake.write("a", (1, 1))
    lake.run()
    lake.write("a", (1, 2))
    lake.write("a", (2, 3))
    assert lake.lake["a"].purge(before=2).before == 2
    with pytest.raises(RecordsPurged) as missed:
        lake.run()
    assert missed.value.input == "a"
    lake.step().reset(lake.lake)
    lake.run()
    assert_right(lake)


def test_purge_of_records_that_were_read_changes_no_output(world):
    lake = world(APPENDED)
    lake.write("a", (1, 1))
    lake.write("a", (2, 2))
    lake.run()
    before = lake.rows()
    lake.lake["a"].purge(before=1)
    lake.run()
    assert lake.rows() == before
    assert lake.calls.keys() == []


# All cases


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("case", "offsets"), each_case_either_way(), ids=str)
def test_every_case_is_right_at_first_and_after_each_kind_of_change(case, offsets, world):
    lake = world(case, use_offset_optimization=offsets)
    fill(lake)
    lake.run()
    assert_right(lake)
    assert set(lake.calls.count().values()) == {1}
    for source in case.sources:
        read = list(source.reads or source.columns)[-1]
        rows = lake.lake[source.name].to_arrow().to_pylist()[:2]
        lake.write(source.name, *[tuple({**row, read: row[read] + 1}[c] for c in source.columns) for row in rows])
        assert set(lake.changelist(True)) == set(lake.changelist(False)) != set()
        lake.run()
        assert_right(lake)
        assert set(lake.calls.count().values()) == {1}
        if source.key is not None:
            lake.lake[source.name].delete([{c: lake.lake[source.name].to_arrow()[c][0].as_py() for c in source.key}])
            assert set(lake.changelist(True)) == set(lake.changelist(False))
            lake.run()
            assert_right(lake)
        assert lake.positions() == lake.heads()
    assert lake.run().nothing


@pytest.mark.slow
@pytest.mark.parametrize("case", [STAR, TWO_OUTPUTS], ids=str)
def test_v1_and_v2_may_take_turns(case, world):
    lake = world(case)
    fill(lake)
    for number, offsets in enumerate([True, False, True, True, False]):
        source = case.sources[number % len(case.sources)]
        rows = [tuple(row[c] for c in source.columns) for row in lake.lake[source.name].to_arrow().to_pylist()]
        lake.write(source.name, (*rows[number][:-1], 1000 + number) if number < len(rows) else rows[0])
        lake.run(use_offset_optimization=offsets)
        assert set(lake.calls.count().values()) <= {1}
        assert_right(lake)
