"""Replay finds rows that should be there and are in no transaction, and takes none of them for missing that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.provenance.comparison import ReplayReport
from floodmark.provenance.replay import replay
from floodmark.provenance.why import why
from transforms.worlds import JOIN, MAP, MOVING_GROUPS, TWO_OUTPUTS, Case, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


def _replayed(world: World, *versions: str) -> list[ReplayReport]:
    steps = [world.step(version) for version in versions or ("1",)]
    return list(replay(world.lake, [output.name for output in world.case.outputs], steps))


def _outcomes(world: World, *versions: str) -> set[str]:
    return {one.outcome for one in _replayed(world, *versions)}


def _without(key: int, case: Case, world: World) -> fm.BatchTransform:
    """The step of the same version that leaves out one key, as if its rows had got lost."""
    right: Callable[..., Any] = case.function(world.calls, 10)

    def losing(a: pa.Table) -> Any:
        return right(a.filter(pa.compute.not_equal(a[case.keys[0]], key)))

    return fm.BatchTransform(
        losing, inputs=["a"], outputs=[o.name for o in case.outputs], transform_keys=list(case.keys), version="1",
        name="step",
    )  # fmt: skip


@pytest.mark.parametrize("case", [MAP, MOVING_GROUPS], ids=str)
def test_a_row_that_no_transaction_has_written_is_missing(case: Case, tmp_path: Path) -> None:
    world = make_world(case, tmp_path)
    world.write("a", *[(n, n, n)[: len(case.sources[0].columns)] for n in (1, 2, 3)])
    _without(2, case, world).run(world.lake)

    written, lost = _replayed(world)

    assert (written.outcome, lost.outcome, lost.keys) == ("same", "differs", 1)
    assert lost.compared is not None
    [difference] = lost.compared.differences
    assert (difference.key[case.keys[0]], difference.stored) == (2, None)


def test_a_row_that_is_lost_by_a_run_that_writes_nothing_is_missing(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))
    _without(2, MAP, world).run(world.lake)

    assert [one.outcome for one in _replayed(world)] == ["same", "differs"]


@pytest.mark.slow
def test_keys_that_were_skipped_lost_their_rows_and_are_not_missing(tmp_path: Path) -> None:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 5), (2, 6))
    world.calls.fail((2,))
    world.run(on_error="skip")  # takes back the row of 2
    world.calls.behave()

    assert _outcomes(world) == {"same"}
    records = world.lake["out"].changes_arrow().to_pylist()
    [gone] = [record["offset"] for record in records if record["op"] == 1]
    found = why(world.lake, "out", gone)
    assert found.failed
    assert [one.record.values["v"] for one in found.inputs[0].records] == [6]

    world.step().retry(world.lake)  # it is tried again, and there again
    assert _outcomes(world) == {"same"}
    assert not why(world.lake, "out", {"id": 2}).failed


@pytest.mark.slow
def test_keys_that_failed_in_a_step_of_several_outputs_are_not_missing_in_any(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 5), (2, 6))
    world.calls.fail((2,))
    world.run()
    world.calls.behave()

    assert _outcomes(world) == {"same"}
    assert len(_replayed(world)) == 4


def test_a_step_that_is_behind_its_inputs_is_not_said_to_lack_rows(tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run(run={"max_records": 1})
    assert _outcomes(world) == {"same"}
    world.run()
    world.write("a", (3, 3))  # nobody has read it
    assert _outcomes(world) == {"same"}
