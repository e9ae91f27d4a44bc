"""Replay of what steps made: the same again, whatever became of the inputs; what differs or cannot be told is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.provenance.comparison import ReplayReport
from floodmark.provenance.replay import replay
from transforms.worlds import MAP, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def _replayed(world: World, *names: str, steps: Any = None) -> list[ReplayReport]:
    wanted = names or tuple(output.name for output in world.case.outputs)
    return list(replay(world.lake, wanted, [world.step()] if steps is None else steps))


def _tampered(world: World) -> None:
    """A row that the step never made, committed as if it had: by a function of the same version."""

    def lying(a: pa.Table) -> pa.Table:
        return pa.table({"id": a["id"], "w": pa.array([666] * a.num_rows)})

    fm.BatchTransform(lying, inputs=["a"], outputs=["out"], name="step", version="1").run(world.lake)


def test_other_rows_than_the_function_gives_are_told_by_key(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (2, 5), (3, 3))
    _tampered(world)

    right, wrong = _replayed(world)

    assert (right.outcome, wrong.outcome) == ("same", "differs")
    assert wrong.compared is not None
    assert wrong.compared.stored != wrong.compared.replayed
    assert wrong.compared.differing == 2
    assert {
        (d.key["id"], d.stored["w"], d.replayed["w"]) for d in wrong.compared.differences if d.stored and d.replayed
    } == {
        (2, 666, 50),
        (3, 666, 30),
    }
    assert wrong.compared.differences[0].columns == ("w",)


def test_a_row_too_few_and_one_too_many_are_told(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))

    def right(a: pa.Table) -> pa.Table:
        return pa.table({"id": a["id"], "n": a["v"]})

    def shifted(a: pa.Table) -> pa.Table:
        found = right(a)
        return pa.table({"id": found["id"], "n": pa.array([n if n == 1 else 9 for n in found["n"].to_pylist()])})

    options: dict[str, Any] = {"outputs": [fm.OutputSpec("many", key=["id", "n"])], "name": "step", "version": "1"}
    fm.BatchTransform(shifted, inputs=["a"], **options).run(world.lake)

    [found] = _replayed(world, "many", steps=[fm.BatchTransform(right, inputs=["a"], **options)])

    assert found.compared is not None
    assert (found.outcome, found.compared.differing) == ("differs", 2)
    assert [(d.key, d.stored is None, d.replayed is None) for d in found.compared.differences] == [
        ({"id": 2, "n": 9}, False, True),
        ({"id": 2, "n": 2}, True, False),
    ]


def test_code_that_is_gone_is_reported_as_not_available(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.run(version="2")

    found = _replayed(world, steps=[world.step(version="2")])
    nobody = _replayed(world, steps=[])

    assert [one.outcome for one in found] == ["code not available", "same"]
    assert "has another version now" in (found[0].why or "")
    assert [one.outcome for one in nobody] == ["code not available"] * 2


FACTOR = 10


def _tenfold(a: pa.Table) -> pa.Table:
    return pa.table({"id": a["id"], "n": pc.multiply(a["v"], 10)})


def _elevenfold(a: pa.Table) -> pa.Table:
    return pa.table({"id": a["id"], "n": pc.multiply(a["v"], 11)})


def _by_factor(a: pa.Table) -> pa.Table:
    return pa.table({"id": a["id"], "n": pc.multiply(a["v"], FACTOR)})


def _step(function: Callable[..., Any]) -> fm.BatchTransform:
    return fm.BatchTransform(function, inputs=["a"], outputs=["out"], name="step")


@pytest.mark.parametrize(("old", "outcome"), [(_tenfold, "same"), (_by_factor, "code not available")])
def test_stored_code_replays_old_versions_that_need_nothing_else(
    old: Callable[..., Any], outcome: str, tmp_path: Path
) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    _step(old).run(world.lake)
    world.write("a", (3, 3))
    _step(_elevenfold).run(world.lake)

    without = list(replay(world.lake, ["out"], [_step(_elevenfold)]))
    with_it = list(replay(world.lake, ["out"], [_step(_elevenfold)], run_stored_code=True))

    assert [one.outcome for one in without] == ["code not available", "same"]
    assert [one.outcome for one in with_it] == [outcome, "same"]


@pytest.mark.slow
def test_purged_inputs_are_never_passed(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 5))
    world.run()
    world.lake["a"].purge(2)
    world.write("a", (1, 7))
    world.run()

    found = _replayed(world)

    assert [one.outcome for one in found] == ["not replayable", "not replayable", "same"]
    assert "purged" in (found[0].why or "")


def test_a_dropped_input_is_never_passed(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.lake._drop_alone("a")  # another program did it

    [found] = _replayed(world)

    assert (found.outcome, "dropped" in (found.why or "")) == ("not replayable", True)


def test_a_function_that_fails_now_differs(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.calls.fail((2,))

    [found] = _replayed(world)

    assert (found.outcome, "told to fail" in (found.why or "")) == ("differs", True)


def test_columns_that_came_later_are_not_shown_to_older_transactions(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)

    def width(a: pa.Table) -> pa.Table:
        return pa.table({"id": a["id"], "w": pa.array([len(a.column_names)] * a.num_rows)})

    step = fm.BatchTransform(width, inputs=["a"], outputs=["out"], name="step", version="1")
    world.write("a", (1, 1))
    step.run(world.lake)
    world.lake["a"].evolve({"more": "string"})
    world.lake["a"].write(pa.table({"id": [2], "v": [2], "more": ["x"]}))
    step.run(world.lake)

    assert [one.outcome for one in _replayed(world, steps=[step])] == ["same", "same"]
    assert world.shown("w") == {1: 2, 2: 3}


def test_keys_that_filters_leave_out_have_no_rows(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    some = world.step(filters={"id": [1]})
    some.run(world.lake)  # the row of key 2 goes

    found = _replayed(world, steps=[some])

    assert [one.outcome for one in found] == ["not replayable", "same"]
    assert "filters" in (found[0].why or "")


def test_a_transform_of_whole_datasets_is_computed_again(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)

    def total(a: pa.Table) -> pa.Table:
        return pa.table({"id": pa.array([0]), "n": pa.array([a.num_rows])})

    def other(a: pa.Table) -> pa.Table:
        return pa.table({"id": pa.array([0]), "n": pa.array([a.num_rows + 1])})

    step = fm.DatatableTransform(total, ["a"], [fm.OutputSpec("sums", key=["id"])], version="1", name="total")
    liar = fm.DatatableTransform(other, ["a"], [fm.OutputSpec("sums", key=["id"])], version="1", name="total")
    for number in range(3):
        world.write("a", (number, number))
        step.run(world.lake)

    assert [one.outcome for one in _replayed(world, "sums", steps=[step])] == ["same"] * 3
    assert [one.outcome for one in _replayed(world, "sums", steps=[liar])] == ["differs"] * 3
