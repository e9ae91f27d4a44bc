"""The changelist in single cases: what is listed, why, in which order, and what filters and limits leave for later."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from floodmark import Lake
from floodmark.errors import BadStep, RecordsPurged
from floodmark.transforms.changelist import (
    Changelist,
    Choice,
    advice,
    build_requested_changelist,
    build_stale_changelist,
)
from floodmark.transforms.specs import InputSpec, Required
from transforms.changing import World, failing, rows_of, world


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return tmp_path / "room"


def _rows(**columns: list[object]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _why(found: Changelist) -> dict[object, str]:
    return {key[0]: why for key, why in zip(rows_of(found.keys), found.pending.why.to_pylist(), strict=True)}


def _grouped(lake: Lake, room: Path) -> World:
    lake.create("a", key="id")
    return world(lake, room, ["g"], "a")


def test_an_update_that_moves_a_row_changes_the_group_it_leaves_and_the_one_it_joins(lake: Lake, room: Path) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3], g=[10, 10, 30]))
    made.run()
    lake["a"].write(_rows(id=[1], g=[20]))
    assert _why(made.changelist()) == {10: "changed", 20: "new"}


def test_a_group_that_loses_its_last_row_is_listed_and_gone(lake: Lake, room: Path) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2], g=[10, 20]))
    made.run()
    lake["a"].delete([1])
    found, [chunk] = made.run()
    assert _why(found) == {10: "changed"}
    assert (len(chunk), chunk.gone_keys) == (0, found.keys)


def test_a_row_deleted_and_written_again_between_runs_is_one_key(lake: Lake, room: Path) -> None:
    made = world(lake, room, ["id"], "a")
    lake.create("a", key="id")
    lake["a"].write(_rows(id=[1, 2], v=[1, 2]))
    made.run()
    lake["a"].delete([1])
    lake["a"].write(_rows(id=[1], v=[1]))
    found, [chunk] = made.run()
    assert rows_of(found.keys) == [(1,)]
    assert chunk.frames[0].to_pylist() == [{"id": 1, "v": 1}]


def test_thirty_changed_rows_of_one_group_are_one_key_with_all_its_rows(lake: Lake, room: Path) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=list(range(40)), g=[7] * 40))
    made.run()
    lake["a"].write(_rows(id=list(range(40, 70)), g=[7] * 30))
    found, [chunk] = made.run(chunk_size=5)
    assert rows_of(found.keys) == [(7,)]
    assert chunk.frames[0].num_rows == 70


def test_null_is_a_key_like_any_other(lake: Lake, room: Path) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3], g=[None, 5, None]))
    found, [chunk] = made.run()
    assert rows_of(found.keys) == [(None,), (5,)]
    assert chunk.frames[0].num_rows == 3
    assert len(made.changelist()) == 0


def test_a_key_changed_in_two_inputs_is_listed_once_at_its_earliest_position(lake: Lake, room: Path) -> None:
    for name in ("a", "b"):
        lake.create(name, key="id")
    made = world(lake, room, ["id"], "a", "b")
    lake["a"].write(_rows(id=[1, 2, 3]))
    lake["b"].write(_rows(id=[3]))
    found = made.changelist()
    assert rows_of(found.keys) == [(1,), (3,), (2,)]
    assert found.table.column("first_1").to_pylist() == [None, 0, None]
    assert found.table.column("position").to_pylist() == [1, 1, 2]


@pytest.mark.parametrize("version", [1, 2])
def test_a_run_that_found_no_keys_moves_the_position_that_the_order_counts_from(
    lake: Lake, room: Path, version: int
) -> None:
    lake.create("a", key="id", schema=pa.schema([("id", pa.int64()), ("g", pa.int64())]))
    lake.create("cats", key="g")
    made = world(lake, room, ["id", "g"], "a", "cats")
    lake["cats"].write(_rows(g=[1, 2], y=[0, 0]))
    assert rows_of(made.run()[0].keys) == []
    lake["a"].write(_rows(id=[1, 2], g=[2, 1]))
    found = made.changelist(version)
    assert rows_of(found.keys) == [(1, 2), (2, 1)]
    assert found.table.select(["position", "first_0", "first_1"]).to_pydict() == {
        "position": [1, 2],
        "first_0": [0, 1],
        "first_1": [None, None],
    }


@pytest.mark.parametrize("version", [1, 2])
def test_a_key_that_waited_for_its_partner_is_as_new_as_the_partner(lake: Lake, room: Path, version: int) -> None:
    for name in ("a", "b"):
        lake.create(name, key="id", schema=pa.schema([("id", pa.int64())]))
    made = world(lake, room, ["id"], "a", Required("b"))
    lake["a"].write(_rows(id=[1]))
    lake["a"].write(_rows(id=[2]))
    assert rows_of(made.run()[0].keys) == []
    lake["b"].write(_rows(id=[2]))
    lake["b"].write(_rows(id=[1]))
    assert rows_of(made.changelist(version).keys) == [(2,), (1,)]


def test_an_int32_key_meets_the_same_int64_key_and_values_too_large_for_it_meet_nobody(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    lake.create("b", key="id")
    made = world(lake, room, ["id"], "a", "b")
    lake["a"].write(pa.table({"id": pa.array([1, 2], pa.int32())}))
    lake["b"].write(pa.table({"id": pa.array([2, 2**40 + 1], pa.int64())}))
    _, chunks = made.run()
    assert sum(len(chunk) for chunk in chunks) == 3


@pytest.mark.slow
def test_a_deleted_partner_changes_what_it_was_joined_to(lake: Lake, room: Path) -> None:
    lake.create("orders", key="id")
    lake.create("users", key="user")
    made = world(lake, room, ["id", "user"], "orders", Required("users"))
    lake["orders"].write(_rows(id=[1, 2, 3], user=[7, 7, 8]))
    lake["users"].write(_rows(user=[7, 8]))
    made.run()
    lake["users"].delete([7])
    found, chunks = made.run()
    assert rows_of(found.keys) == [(1, 7), (2, 7)]
    assert sum(len(chunk) for chunk in chunks) == 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("has_run", [True, False])
def test_a_key_that_came_and_went_between_runs_needs_nothing(
    lake: Lake, room: Path, has_run: bool, version: int
) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2], g=[1, 2]))
    if has_run:
        made.run()
    lake["a"].write(_rows(id=[3, 4, 5], g=[3, 4, 4]))
    lake["a"].delete([3, 5])
    assert rows_of(made.changelist(version).keys)[-1:] == [(4,)]
    assert (3,) not in rows_of(made.changelist(version).keys)


@pytest.mark.parametrize("version", [1, 2])
def test_a_new_key_waits_for_its_required_partner_and_is_listed_when_that_comes(
    lake: Lake, room: Path, version: int
) -> None:
    lake.create("a", key="id")
    lake.create("b", key="user")
    made = world(lake, room, ["id", "user"], "a", Required("b"))
    lake["a"].write(_rows(id=[1, 2], user=[7, 8]))
    lake["b"].write(_rows(user=[8]))
    assert rows_of(made.run()[0].keys) == [(2, 8)]
    lake["b"].write(_rows(user=[7, 9]))
    assert rows_of(made.changelist(version).keys) == [(1, 7)]
    lake["b"].delete([7])
    assert rows_of(made.changelist(version).keys) == []


def test_a_failed_key_comes_last_until_it_changes(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    made = world(lake, room, ["id"], "a")
    lake["a"].write(_rows(id=[1, 2, 3, 4], v=[0, 0, 0, 0]))
    made.run()
    shape = made.shape()
    assert shape is not None
    made.known.failures = failing(shape, [{"id": 1}, {"id": 2}])
    lake["a"].write(_rows(id=[2, 4], v=[1, 1]))
    found = made.changelist()
    assert list(_why(found).items()) == [(2, "changed"), (4, "changed"), (1, "failed")]
    assert found.table.column("position").to_pylist()[-1] is None
    assert _why(made.changelist(1)) == _why(found)


def test_a_limit_keeps_the_earliest_and_positions_stop_before_the_rest(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    made = world(lake, room, ["id"], "a")
    lake["a"].write(_rows(id=[5, 4, 3]))
    found = made.changelist(choice=Choice(max_records=2))
    every = made.changelist()
    assert rows_of(found.keys) == rows_of(every.keys)[:2]
    assert (found.found, found.left_out, every.left_out) == (3, (2,), (None,))
    assert (every.first_pending(0), every.first_pending(1), every.first_pending(3)) == ((0,), (1,), (None,))


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"g": 1}, [1]),
        ({"g": [1, None]}, [1, None]),
        ([{"g": 1}, {"g": 3}], [1, 3]),
        (pc.field("g") > 1, [2, 3]),
        ({"g": []}, []),
        ([], []),
        ({}, [1, 2, 3, None]),
    ],
)
def test_filters_choose_by_value_by_any_of_several_or_by_expression(
    lake: Lake, room: Path, filters: object, kept: list[object]
) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3, 4], g=[1, 2, 3, None]))
    assert [key for (key,) in rows_of(made.changelist(choice=Choice(filters=filters)).keys)] == kept


def test_an_order_by_keys_goes_before_positions_and_a_minus_turns_it(lake: Lake, room: Path) -> None:
    lake.create("a", key=["x", "y"])
    made = world(lake, room, ["x", "y"], "a")
    lake["a"].write(_rows(x=[2], y=[1]))
    lake["a"].write(_rows(x=[1, 2], y=[5, 0]))
    assert rows_of(made.changelist(choice=Choice(order_by="-x")).keys) == [(2, 1), (2, 0), (1, 5)]
    assert rows_of(made.changelist(choice=Choice(order_by=["y"])).keys) == [(2, 0), (2, 1), (1, 5)]


@pytest.mark.parametrize(
    "choice",
    [
        Choice(filters={"h": 1}),
        Choice(filters={"g": "x"}),
        Choice(filters="g > 1"),
        Choice(filters=pc.field("h") > 1),
        Choice(order_by="h"),
    ],
)
def test_filters_and_orders_that_do_not_fit_are_refused(lake: Lake, room: Path, choice: Choice) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1], g=[1]))
    with pytest.raises(BadStep):
        made.changelist(choice=choice)


def test_a_filtered_run_leaves_the_rest_and_nothing_is_done_twice(lake: Lake, room: Path) -> None:
    made = _grouped(lake, room)
    lake["a"].write(_rows(id=[1, 2, 3], g=[1, 2, 3]))
    made.run(Choice(filters={"g": 2}))
    lake["a"].write(_rows(id=[4], g=[4]))
    for version in (1, 2):
        assert [key for (key,) in rows_of(made.changelist(version).keys)] == [1, 3, 4]


def test_records_purged_before_they_were_read_are_an_error_and_a_new_step_starts_after_them(
    lake: Lake, room: Path
) -> None:
    lake.create("a", key="id")
    made = world(lake, room, ["id"], "a")
    for n in range(3):
        lake["a"].write(_rows(id=[n], v=[n]))
    lake["a"].delete([2])
    lake["a"].write(_rows(id=[3], v=[3]))
    made.known.positions = {str(lake["a"].id): 0}
    lake["a"].purge(3)
    for version in (1, 2):
        with pytest.raises(RecordsPurged, match="records 1 to 2 of input 'a'") as caught:
            made.changelist(version)
        assert (caught.value.position, caught.value.purged_before) == (0, 3)
    made.known.positions = {}
    assert rows_of(made.changelist().keys) == [(0,), (1,), (3,)]  # carried rows were written first


def test_everything_is_stale_what_is_there_and_what_has_results(lake: Lake, room: Path) -> None:
    lake.create("a", key="x")
    lake.create("b", key="y")
    made = world(lake, room, ["x", "y"], "a", "b")
    lake["a"].write(_rows(x=[1, 2]))
    lake["b"].write(_rows(y=[5]))
    made.run()
    lake["a"].delete([1])
    shape = made.shape()
    assert shape is not None
    found = build_stale_changelist(shape, made.input_snapshots(), made.outputs(), made.runner)
    assert sorted(rows_of(found.keys)) == [(1, 5), (2, 5)]
    assert set(found.pending.why.to_pylist()) == {"stale"}


def test_keys_asked_for_by_a_part_are_all_that_have_it_processed_or_not(lake: Lake, room: Path) -> None:
    lake.create("orders", key="id")
    lake.create("users", key="user")
    made = world(lake, room, ["id", "user"], "orders", "users")
    lake["orders"].write(_rows(id=[1, 2, 3], user=[7, 7, 8]))
    lake["users"].write(_rows(user=[7, 8]))
    made.run()
    shape = made.shape()
    assert shape is not None
    found = build_requested_changelist(shape, made.input_snapshots(), made.outputs(), {1: _rows(user=[7])}, made.runner)
    assert sorted(rows_of(found.keys)) == [(1, 7), (2, 7)]
    whole = build_requested_changelist(
        shape, made.input_snapshots(), made.outputs(), {0: _rows(id=[9], user=[9])}, made.runner
    )
    assert rows_of(whole.keys) == [(9, 9)]


def test_a_value_that_does_not_fit_the_type_that_keys_have_already_is_refused(lake: Lake, room: Path) -> None:
    lake.create("a", key="id")
    lake.create("b", key="other")
    made = world(lake, room, ["id"], "a", InputSpec("b", keys={"id": "other"}))
    lake["a"].write(pa.table({"id": pa.array([1], pa.int32())}))
    made.run()
    lake["b"].write(_rows(other=[2**40]))
    with pytest.raises(BadStep, match="values of 'b' for the transform key 'id' do not fit"):
        made.changelist()


def test_advice_is_given_only_when_looking_beyond_the_positions_saves_little() -> None:
    assert advice(1_000_000, 1_000, 1_000_000) is None
    assert "saves almost nothing" in str(advice(9_999, 10, 100_000))
    assert "600,000 of 1,000,000" in str(advice(1_000_000, 600_000, 1_000_000))
    assert "processes every key" in str(advice(0, 50, 50))


def _categories(lake: Lake, room: Path) -> World:
    """Rows of an input by a lookup prefix of their key, and one more input that has the prefix only."""
    lake.create("a", key=["cat", "id"], lookup="cat")
    lake.create("cats", key="cat")
    made = world(lake, room, ["cat", "id"], "a", "cats")
    lake["a"].write(_rows(cat=[1, 1], id=[1, 2]))
    lake["a"].write(_rows(cat=[1, 2], id=[3, 1]))
    lake["cats"].write(_rows(cat=[1, 2], y=[0, 0]))
    return made


def test_a_changed_part_lists_the_keys_that_its_lookup_prefix_finds(lake: Lake, room: Path) -> None:
    made = _categories(lake, room)
    made.run()
    lake["a"].delete(_rows(cat=[1], id=[2]))
    made.run()
    lake["cats"].write(_rows(cat=[1, 3], y=[5, 5]))
    assert rows_of(made.changelist().keys) == [(1, 1), (1, 3)]


def test_a_lookup_prefix_does_not_find_purged_rows(lake: Lake, room: Path) -> None:
    made = _categories(lake, room)
    made.run()
    lake["a"].delete(_rows(cat=[1], id=[1]))
    made.run()
    lake["a"].purge(before=2)
    lake["cats"].write(_rows(cat=[1], y=[5]))
    _, chunks = made.run()
    found = [row for chunk in chunks for row in chunk.frames[0].to_pylist()]
    assert found == [{"cat": 1, "id": 3}, {"cat": 1, "id": 2}]  # the second one was carried
