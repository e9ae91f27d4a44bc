"""Outputs that cannot be a step's, and steps with several of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.ledger.errors import CommitConflict
from floodmark.transform import publish
from floodmark.transform.errors import BadStep, KeysChanged, OutputTaken
from transform.oracle import assert_right
from transform.worlds import MAP, TWO_OUTPUTS, World, in_this_process, make_world


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


def test_dataset_that_data_is_written_to_is_no_output(world: World) -> None:
    world.lake.create("taken", key="id")

    with pytest.raises(OutputTaken, match="'taken': it is a dataset that data is written to"):
        fm.BatchTransform(_copy, ["a"], ["taken"]).run(world.lake)


def test_input_is_no_output() -> None:
    with pytest.raises(BadStep, match="reads and writes 'A'"):
        fm.BatchTransform(_copy, ["a"], ["A"])


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

    with pytest.raises(KeysChanged, match=r"made by transform keys \['id'\]") as caught:
        world.run(transform_keys=["v"])
    assert "drop 'out'" in caught.value.hint


def test_key_of_an_output_must_hold_the_transform_keys(world: World) -> None:
    step = fm.BatchTransform(_copy, ["a"], [fm.OutputSpec("out", key=["w"])], ["id"])

    with pytest.raises(fm.FloodmarkError, match="lacks the transform key 'id'"):
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


def test_crash_between_two_outputs_is_made_good_without_calls_or_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    derive = publish.derive

    def dies(name: str, *rest: object) -> object:
        if name == "out":
            raise KeyboardInterrupt
        return derive(name, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(publish, "derive", dies)
        with pytest.raises(KeyboardInterrupt):
            world.run()
    records = world.lake["many"].last_offset
    assert records is not None
    assert world.lake["out"].last_offset is None

    report = world.run()

    assert world.calls.keys() == []
    assert report.reused == 3
    assert world.lake["many"].last_offset == records
    assert_right(world)


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
    world.lake.drop("out")

    world.run()

    assert_right(world)


def test_run_that_loses_every_race_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise CommitConflict("lost")

    monkeypatch.setattr(publish, "derive", lost)
    with pytest.raises(CommitConflict):
        world.run()
