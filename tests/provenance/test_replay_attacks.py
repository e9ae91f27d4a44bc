"""Replay names every kind of damage by its key, and by the block that should have been right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import floodmark as fm
from floodmark.derive import commit as commit_module
from floodmark.derive import positions as publish
from floodmark.derive.commit import KeyResults
from floodmark.provenance.comparison import ReplayReport, compare
from floodmark.provenance.replay import replay
from floodmark.transforms import commit, waves
from transforms.worlds import MAP, TWO_OUTPUTS, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(MAP, tmp_path)


def _replayed(world: World, *versions: str) -> list[ReplayReport]:
    steps = [world.step(version) for version in versions or ("1",)]
    return list(replay(world.lake, [output.name for output in world.case.outputs], steps))


def _said(found: list[ReplayReport]) -> list[tuple[str, set[Any]]]:
    """What is not the same, and the keys it is said of."""
    return [(o.outcome, {d.key["id"] for d in o.compared.differences} if o.compared else set()) for o in _wrong(found)]


def _wrong(found: list[ReplayReport]) -> list[ReplayReport]:
    return [one for one in found if one.outcome != "same"]


def _spoiling(world: World, version: str = "1", **values: Any) -> fm.BatchTransform:
    """The step, but for the value that some keys get (k2=7: key 2 gets 7); `lost` are keys that get no row."""
    lost = values.pop("lost", ())
    right = world.case.function(world.calls, 10)

    def work(a: pa.Table) -> pa.Table:
        rows = [row for row in right(a).to_pylist() if row["id"] not in lost]
        return pa.Table.from_pylist(
            [{**row, "w": values.get(f"k{row['id']}", row["w"])} for row in rows], world.case.outputs[0].schema
        )

    return fm.BatchTransform(work, inputs=["a"], outputs=["out"], name="step", version=version)


def test_a_row_that_a_run_of_some_keys_has_lost_is_missing_while_others_wait(world: World) -> None:
    world.write("a", (1, 1), (2, 2), (3, 3), (4, 4))
    _spoiling(world, lost=[2]).run(world.lake, max_records=2)

    written, lost = _replayed(world)

    assert (written.outcome, _said([lost])) == ("same", [("differs", {2})])
    assert lost.compared is not None
    assert lost.compared.differences[0].replayed == {"id": 2, "w": 20}
    assert lost.compared.differences[0].stored is None


def test_a_row_that_a_filtered_run_has_lost_is_missing_as_of_what_that_run_saw(world: World) -> None:
    world.write("a", (1, 1), (2, 2), (3, 3))
    _spoiling(world, lost=[3]).run(world.lake, filters={"id": [2, 3]})
    world.write("a", (2, 20), (3, 30))
    world.run(run={"filters": {"id": [2]}})  # reads the first of these; the other waits

    found = _replayed(world)

    assert _said(found) == [("differs", {3})]
    assert found[-1].compared is not None
    assert found[-1].compared.differences[0].replayed == {"id": 3, "w": 30}  # of 3, not of 30


@pytest.mark.slow
def test_a_row_is_missing_in_the_block_of_the_run_that_has_lost_it(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    _spoiling(world, lost=[2]).run(world.lake)
    for n in range(3, 6):
        world.write("a", (n, n))
        world.run()

    first, *others = _replayed(world)

    [wrong] = _wrong(others)
    assert first.block is not None
    assert wrong.block is not None
    assert (_said([wrong]), wrong.block.hash) == ([("differs", {2})], first.block.hash)


def test_a_row_that_was_not_brought_up_to_date_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (2, 5))
    _spoiling(world, k2=20).run(world.lake)  # what is there already: nothing is written

    found = _replayed(world)

    assert _said(found) == [("differs", {2})]
    assert found[-1].compared is not None
    [difference] = found[-1].compared.differences
    assert (difference.columns, difference.stored, difference.replayed) == (
        ("w",),
        {"id": 2, "w": 20},
        {"id": 2, "w": 50},
    )


def test_a_null_where_a_value_belongs_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    _spoiling(world, k1=None).run(world.lake)

    assert _said(_replayed(world)) == [("differs", {1})]


def test_a_row_of_a_key_that_is_gone_and_was_not_taken_back_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.delete("a", 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("floodmark.transforms.commit.results", lambda *_: KeyResults((), ()))
        world.run()

    assert _said(_replayed(world)) == [("differs", {2})]


def test_a_key_that_was_skipped_and_kept_its_row_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (2, 5))
    world.calls.fail((2,))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("floodmark.transforms.commit.results", lambda *_: KeyResults((), ()))
        world.run(on_error="skip")
    world.calls.behave()

    found = _replayed(world)

    assert _said(found) == [("differs", {2})]
    assert found[-1].compared is not None
    assert found[-1].compared.differences[0].replayed is None


def test_a_key_that_failed_and_keeps_the_row_of_its_last_success_is_the_same(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 4), (2, 5))
    world.calls.fail((2,))
    world.run()
    world.calls.behave()

    assert {found.outcome for found in _replayed(world)} == {"same"}


def test_a_step_that_has_lost_everything_it_ever_made_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))

    def nothing(a: pa.Table) -> pa.Table:
        return pa.table({})

    fm.BatchTransform(nothing, inputs=["a"], outputs=["out"], name="step", version="1").run(world.lake)
    assert world.lake["out"].last_offset is None

    assert _said(_replayed(world)) == [("differs", {1, 2})]


def test_a_new_version_that_has_changed_nothing_though_it_should_differs(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    _spoiling(world, "2").run(world.lake)  # the rows of version 1 once more

    assert _said(_replayed(world, "1", "2")) == [("differs", {1, 2})]


def test_rows_that_were_lost_before_a_reset_are_missing_until_the_next_run(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    _spoiling(world, lost=[2]).run(world.lake)
    world.step().reset(world.lake)
    assert _said(_replayed(world)) == [("differs", {2})]

    world.run()
    assert _said(_replayed(world)) == []


def test_a_position_beyond_what_was_processed_differs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step says that it has read what it has not: its later runs would never come to these keys."""
    world.write("a", (1, 1), (2, 2), (3, 3))
    with monkeypatch.context() as patched:
        patched.setattr(waves, "advance_positions", lambda since, heads, pending: dict(heads))
        world.run(run={"max_records": 1})

    assert _said(_replayed(world)) == [("differs", {2, 3})]


@pytest.mark.parametrize("step", [-1, 1])
def test_a_position_on_the_chain_that_is_not_the_step_s_differs(
    world: World, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 4):
        world.write("a", (n, n))
    chain_moves = publish.find_chain_moves

    def forged(before: Any, positions: dict[str, int], inputs: Any) -> Any:
        return chain_moves(before, {dataset: at + step for dataset, at in positions.items()}, inputs)

    with monkeypatch.context() as patched:
        patched.setattr(commit, "find_chain_moves", forged)
        world.run(run={"max_records": 2})

    [wrong] = _wrong(_replayed(world))
    assert (wrong.outcome, f"'a' was read up to record {1 + step}" in (wrong.why or "")) == ("differs", True)


def _cut_short(world: World, commits: int, **options: Any) -> None:
    """A run that is killed when the first output, which comes last, was to be committed once more."""
    derive, left = commit_module.commit_results, [commits]

    def until(name: str, *given: Any, **more: Any) -> Any:
        if name == "out":
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return derive(name, *given, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit, "commit_results", until)
        with pytest.raises(KeyboardInterrupt):
            world.run(**options)


@pytest.mark.slow
def test_outputs_that_a_run_of_another_version_was_cut_short_between_are_never_passed(tmp_path: Path) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    _cut_short(world, 0, version="2")

    [wrong] = _wrong(_replayed(world, "1", "2"))
    assert (wrong.dataset, wrong.outcome, "was interrupted" in (wrong.why or "")) == ("many", "not replayable", True)
    world.run("2")
    assert _wrong(_replayed(world, "1", "2")) == []


@pytest.mark.slow
@pytest.mark.parametrize(("commits", "said"), [(0, []), (1, []), (3, [("many", "not replayable")])])
def test_what_a_run_has_written_before_it_was_cut_short_is_not_called_different(
    commits: int, said: list[tuple[str, str]], tmp_path: Path
) -> None:
    world = make_world(TWO_OUTPUTS, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.write("a", (1, 2), (2, 3))
    _cut_short(world, commits, run={"commit_every": 1} if commits else None)
    assert world.rows("many") != [{"id": 1, "n": 0, "w": 10}, {"id": 2, "n": 0, "w": 20}, {"id": 2, "n": 1, "w": 21}]

    assert [(one.dataset, one.outcome) for one in _wrong(_replayed(world))] == said
    world.run()
    assert _wrong(_replayed(world)) == []


def test_rows_that_a_transform_of_whole_datasets_has_lost_are_missing(world: World) -> None:
    def same(a: pa.Table) -> pa.Table:
        return a

    def without_two(a: pa.Table) -> pa.Table:
        return a.filter(pc.not_equal(a["id"], 2))

    step, liar = (
        fm.DatatableTransform(function, ["a"], [fm.OutputSpec("copy", key=["id"])], version="1", name="copy")
        for function in (same, without_two)
    )
    world.write("a", (1, 1))
    step.run(world.lake)
    world.write("a", (2, 2))
    liar.run(world.lake)  # writes nothing, and has read all

    assert _said(list(replay(world.lake, ["copy"], [step]))) == [("differs", {2})]


def test_keys_that_are_null_are_computed_again_alike(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path)
    lake.create("a", schema={"g": "int64", "v": "int64"})
    lake["a"].write(pa.table({"g": pa.array([1, None, None]), "v": pa.array([1, 2, 3])}))

    def totals(a: pa.Table) -> pa.Table:
        found = a.group_by("g").aggregate([("v", "sum")])
        return pa.table({"g": found["g"], "v": found["v_sum"]})

    step = fm.BatchTransform(totals, inputs=["a"], outputs=["out"], transform_keys=["g"])
    step.run(lake)
    assert lake["out"].count() == 2
    assert {one.outcome for one in replay(lake, ["out"], [step])} == {"same"}


@pytest.mark.slow
def test_a_function_without_rows_for_most_keys_lacks_none(world: World) -> None:
    def large(a: pa.Table) -> pa.Table:
        return a.filter(pc.greater(a["v"], 2))

    step = fm.BatchTransform(large, inputs=["a"], outputs=["large"], version="1")
    for n in range(4):
        world.write("a", (n, n), (n + 1, n))
        step.run(world.lake, **({} if n % 2 else {"max_records": 1}))

    assert {one.outcome for one in replay(world.lake, ["large"], [step])} == {"same"}
    world.lake["a"].purge(4)
    assert {one.outcome for one in replay(world.lake, ["large"], [step])} >= {"not replayable"}


def test_rows_that_purged_records_should_have_made_are_never_passed(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    _spoiling(world, lost=[1, 2]).run(world.lake)
    world.delete("a", 1)
    world.lake["a"].purge(2)
    world.write("a", (3, 3))
    world.run()

    wrong = _wrong(_replayed(world))
    assert len(wrong) == 2
    assert {(one.outcome, "cannot be searched for" in (one.why or "")) for one in wrong} == {("not replayable", True)}


def test_a_row_that_is_there_twice_differs() -> None:
    once = pa.table({"id": [1, 2], "w": [10, 20]})
    twice = pa.concat_tables([once, once.slice(0, 1)])

    found, other = compare(twice, once, ["id"]), compare(once, twice, ["id"])

    assert (found.differing, found.differences[0].stored, found.differences[0].replayed) == (
        1,
        {"id": 1, "w": 10},
        None,
    )
    assert other.differing == 1
    assert compare(twice, twice.take([2, 1, 0]), ["id"]).differing == 0
