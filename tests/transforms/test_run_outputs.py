"""Outputs that cannot be a step's, and steps with several of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadStep, OutputTaken
from transforms.oracle import assert_right
from transforms.racing import crash_before, raced_world
from transforms.worlds import MAP, TWO_OUTPUTS, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    return world


def _copy(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["v"]})


def test_dataset_that_data_is_written_to_is_no_output_of_a_step_that_replaces_all_rows(world: World) -> None:
    world.lake.create("taken", key="id")

    with pytest.raises(OutputTaken, match="'taken': it is a dataset with its own writes"):
        fm.DatatableTransform(_copy, ["a"], ["taken"]).run(world.lake)


def test_input_is_no_output_of_a_step_that_replaces_all_rows() -> None:
    with pytest.raises(BadStep, match="reads and writes 'A'"):
        fm.DatatableTransform(_copy, ["a"], ["A"])


def test_output_of_another_step_is_refused(world: World) -> None:
    world.run()

    with pytest.raises(OutputTaken, match="results of step 'step'") as caught:
        fm.BatchTransform(_copy, ["a"], ["out"]).run(world.lake)
    assert caught.value.owner == "step"  # type: ignore[attr-defined]
    assert "name='step'" in caught.value.hint
    assert_right(world)


def test_first_output_of_a_step_is_no_second_of_another(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1))
    world.run()

    def two(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        return _copy(rows), _copy(rows)

    with pytest.raises(OutputTaken, match="cannot write to 'out'"):
        fm.BatchTransform(two, ["a"], ["mine", "out"], ["id"]).run(world.lake)
    with pytest.raises(OutputTaken, match="cannot write to 'many'"):
        fm.BatchTransform(_copy, ["a"], ["many"], ["id"], version="9").run(world.lake)


def test_other_transform_keys_than_the_output_was_made_with_are_refused(world: World) -> None:
    world.run()

    with pytest.raises(OutputTaken, match=r"created with the transform keys \['id'\]") as caught:
        world.run(transform_keys=["v"])
    assert "drop 'out'" in caught.value.hint


def test_outputs_that_share_no_transform_key_are_refused(world: World) -> None:
    outputs = [fm.OutputSpec("one", key=["id"]), fm.OutputSpec("two", key=["v"])]
    step = fm.BatchTransform(lambda a: (a, a), ["a"], outputs, ["id", "v"])

    with pytest.raises(fm.FloodmarkError, match="no transform key is in the keys of all outputs: 'one' has id; 'two'"):
        step.run(world.lake)


def test_all_outputs_have_the_same_keys(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.write("a", (1, 2))
    world.delete("a", 3)

    report = world.run()

    assert world.calls.keys() == [(1,)]
    assert report.commits == 1
    assert_right(world)


def test_crash_between_two_outputs_is_made_good_without_calls_or_duplicates(tmp_path: Path) -> None:
    world = raced_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    crash_before(world, "out", world.run)
    records = world.lake["many"].last_offset
    assert records is not None
    assert world.lake["out"].last_offset is None

    report = world.run()

    assert world.calls.keys() == []
    assert report.reused == 3
    assert world.lake["many"].last_offset == records
    assert_right(world)


@pytest.mark.slow
def test_rows_that_a_crash_left_in_one_output_go_when_their_key_does(tmp_path: Path) -> None:
    """As far as the first output knows, the key was never processed, and it is not there any more."""
    world = raced_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))
    crash_before(world, "out", world.run)
    assert {row["id"] for row in world.rows("many")} == {1, 2}
    world.delete("a", 2)

    assert world.changelist(True) == world.changelist(False) == [(2,)]
    world.run()

    assert_right(world)


@pytest.mark.parametrize(
    ("outputs", "said", "hint"),
    [
        (["many", "out"], "its first output is 'out'", r"outputs=\['out', 'many'\]"),
        (["many"], r"no longer among \['many'\]", "name that output first again"),
    ],
)
def test_outputs_in_another_order_are_refused_with_the_right_one(
    outputs: list[str], said: str, hint: str, tmp_path: Path
) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1))
    world.run()
    before = world.step()
    step = fm.BatchTransform(before.function.function, ["a"], outputs, "id", name=before.name, version="1")

    with pytest.raises(OutputTaken, match=said) as refused:
        step.run(world.lake)

    assert refused.value.hint is not None
    assert re.search(hint, refused.value.hint)
    assert "name=" not in refused.value.hint


def test_second_output_that_was_dropped_is_filled_again(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.lake.drop("many")

    world.run()

    assert_right(world)


def test_first_output_that_was_dropped_is_filled_again_and_the_second_holds_nothing_else(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.delete("a", 2)
    world.write("a", (1, 10), (3, 30))
    world.lake["a"].purge(before=4)  # nothing tells of the deleted key any more
    world.lake.drop("out")

    world.run()

    assert_right(world)


def test_version_that_was_given_up_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    """A run of a new version dies between two outputs, and then the old function is run again."""
    world = raced_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()

    crash_before(world, "out", lambda: world.run("2"))
    world.run("1")

    assert_right(world)
    assert world.run("1").nothing


def test_filters_that_were_given_up_half_way_leave_nothing_behind(tmp_path: Path) -> None:
    """The function is the same: only the note of the second output says whose results it has."""
    world = raced_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()

    crash_before(world, "out", lambda: world.run(filters={"id": [2]}))
    assert set(world.lake["many"].to_arrow()["id"].to_pylist()) == {2}
    world.run()

    assert_right(world)
    assert world.run().nothing


@pytest.mark.parametrize("way", ["run_changelist", "retry"])
def test_keys_that_were_asked_for_are_not_left_half_done(way: str, tmp_path: Path) -> None:
    """They are pending nowhere, so no run would come back to them."""
    world = raced_world(TWO_OUTPUTS, tmp_path, on_error="skip")
    if way == "retry":
        world.calls.fail((2,))
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.calls.behave() if way == "retry" else world.calls.fail((2,))

    if way == "retry":
        crash_before(world, "out", lambda: world.step().retry(world.lake))
    else:
        crash_before(world, "out", lambda: world.step().run_changelist(world.lake, {"a": [2]}))
    world.calls.behave()
    assert world.step().status(world.lake).stale is not None
    world.run()

    assert_right(world)
    assert world.run().nothing


def test_step_without_its_second_output_can_be_reset(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.lake.drop("many")

    world.step().reset(world.lake)
    world.run()

    assert_right(world)


def test_output_may_have_an_event_time_and_a_schema(world: World) -> None:
    def timed(rows: pa.Table) -> pa.Table:
        moments = pa.array([v * 10**6 for v in rows["v"].to_pylist()], pa.timestamp("us", "UTC"))
        return pa.table({"id": rows["id"], "at": moments, "small": rows["v"]})

    schema = {"id": "int64", "at": pa.timestamp("us", "UTC"), "small": "int8"}
    step = fm.BatchTransform(
        timed,
        ["a"],
        [
            fm.OutputSpec("out", schema=schema, event_time="at"),
        ],
    )
    step.run(world.lake)

    out = world.lake["out"]
    assert out.event_time == "at"
    assert out.schema.field("small").type == pa.int8()
    assert out.verify().problems == ()


def test_schema_that_an_output_does_not_have_is_refused(world: World) -> None:
    fm.BatchTransform(_copy, ["a"], ["copy"]).run(world.lake)
    fm.BatchTransform(_copy, ["a"], [fm.OutputSpec("copy", schema={"id": "int64", "w": "int64"})]).run(world.lake)

    with pytest.raises(BadStep, match="'w' of output 'copy' is int64, but step '_copy' declares double"):
        fm.BatchTransform(_copy, ["a"], [fm.OutputSpec("copy", schema={"id": "int64", "w": "float64"})]).run(world.lake)


def test_first_result_may_decide_the_columns_of_an_output_with_event_time(world: World) -> None:
    def timed(rows: pa.Table) -> pa.Table:
        return pa.table({"id": rows["id"], "at": pa.array([10**6] * rows.num_rows, pa.timestamp("us", "UTC"))})

    fm.BatchTransform(timed, ["a"], [fm.OutputSpec("out", event_time="at")]).run(world.lake)

    assert world.lake["out"].event_time == "at"
    assert world.lake["out"].verify().problems == ()


def test_output_of_a_step_is_the_input_of_another(world: World) -> None:
    def add(rows: pa.Table) -> pa.Table:
        return pa.table({"id": rows["id"], "x": [w + 1 for w in rows["w"].to_pylist()]})

    second = fm.BatchTransform(add, ["out"], ["last"])
    world.run()
    second.run(world.lake)
    world.write("a", (2, 20), (3, 3))
    world.delete("a", 1)
    world.run()

    report = second.run(world.lake)

    assert report.keys == 3
    assert sorted(world.lake["last"].to_arrow()["x"].to_pylist()) == [31, 201]
    assert second.run(world.lake).nothing


def test_function_that_returns_no_rows_at_all_is_done_too(world: World) -> None:
    def none(rows: pa.Table) -> pa.Table:
        return pa.table({"id": pa.array([], pa.int64()), "w": pa.array([], pa.int64())})

    step = fm.BatchTransform(none, ["a"], ["out"])

    assert step.run(world.lake).keys == 2
    assert step.run(world.lake).nothing
    assert world.lake["out"].last_offset is None
