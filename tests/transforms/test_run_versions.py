"""A new function processes everything once, in one commit; another name changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.chain.events import SetTransform
from floodmark.engine.progress import SilentProgress
from floodmark.errors import BadMeta, BadStep, OutputTaken
from floodmark.provenance.replay import replay
from transforms.oracle import assert_right
from transforms.racing import crash_before, raced_world, store_of
from transforms.worlds import MAP, World, in_this_process, make_world


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))
    world.write("a", (3, 3))
    world.run()
    return world


def _blocks(world: World) -> list[Any]:
    return [entry.event for entry in world.lake["out"].log()]


def _transforms(world: World) -> int:
    return sum(isinstance(event, SetTransform) for event in _blocks(world))


def test_new_version_processes_everything_and_names_itself_in_the_same_head_move(tmp_path: Path) -> None:
    world = raced_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    before = world.lake["out"].snapshot().head_block.sequence_number
    moves: list[str] = []

    with store_of(world).before_moves_of(world.lake, "out", lambda: moves.append("out")):
        report = world.run("2")

    assert sorted(world.calls.keys()) == [(1,), (2,), (3,)]
    assert (report.commits, report.changed) == (1, 3)
    assert moves == ["out"]
    assert world.lake["out"].snapshot().head_block.sequence_number == before + 2
    assert _transforms(world) == 2
    assert_right(world, factor=100)
    assert world.run("2").nothing


def test_new_version_commits_once_whatever_commit_every_says(world: World) -> None:
    assert world.run("2", run={"commit_every": 1}).commits == 1


def test_readers_keep_the_old_output_until_a_new_version_is_committed(world: World) -> None:
    seen: list[list[int]] = []
    lake = world.lake

    def peek(rows: pa.Table) -> pa.Table:
        seen.append(sorted(lake["out"].to_arrow()["w"].to_pylist()))
        return pa.table({"id": rows["id"], "w": rows["v"]})

    fm.BatchTransform(peek, ["a"], ["out"], name="step", version="2", chunk_size=1).run(lake)

    assert seen == [[10, 20, 30]] * 3
    assert sorted(lake["out"].to_arrow()["w"].to_pylist()) == [1, 2, 3]


def test_new_version_whose_function_fails_leaves_the_output_as_it_is(world: World) -> None:
    head = world.lake["out"].head

    def broken(rows: pa.Table) -> pa.Table:
        raise RuntimeError("broken")

    step = fm.BatchTransform(broken, ["a"], ["out"], name="step", version="2", on_error="fail_fast")
    with pytest.raises(fm.FloodmarkError):
        step.run(world.lake)
    assert world.lake["out"].head == head


def test_given_version_pins_a_function_that_changed(world: World) -> None:
    def other(rows: pa.Table) -> pa.Table:
        return pa.table({"id": rows["id"], "w": pa.array([0] * rows.num_rows)})

    assert fm.BatchTransform(other, ["a"], ["out"], name="step", version="1").run(world.lake).nothing


def _first(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["v"]})


def _renamed(rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "w": rows["v"]})


def test_renaming_function_or_step_changes_nothing(world: World) -> None:
    fm.BatchTransform(_first, ["a"], ["other"]).run(world.lake)
    head = world.lake["other"].head

    assert fm.BatchTransform(_renamed, ["a"], ["other"]).run(world.lake).nothing
    assert fm.BatchTransform(_first, ["a"], ["other"], name="new_name").run(world.lake).nothing
    assert world.lake["other"].head == head


def test_renaming_an_input_changes_nothing(world: World) -> None:
    world.lake.rename("a", "renamed")

    def same(rows: pa.Table) -> pa.Table:
        raise AssertionError

    assert fm.BatchTransform(same, ["renamed"], ["out"], name="step", version="1").run(world.lake).nothing


def test_new_column_of_an_input_makes_nothing_stale(world: World) -> None:
    world.lake["a"].evolve({"more": "string"})

    assert world.run().nothing


def test_reset_processes_everything_again_and_keeps_the_output_until_then(world: World) -> None:
    rows, step = world.rows(), world.step()

    step.reset(world.lake)

    assert world.rows() == rows
    assert step.status(world.lake).stale == "it was reset"
    report = world.run()
    assert sorted(world.calls.keys()) == [(1,), (2,), (3,)]
    assert (report.commits, report.new, report.changed) == (1, 0, 0)
    assert world.run().nothing
    assert_right(world)


def _damage(world: World) -> None:
    files = [path for path in (world.calls.folder / "lake").rglob("*") if path.parent.name == "checkpoints"]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes() + b"?")


def test_reset_helps_when_what_was_noted_is_damaged(world: World) -> None:
    rows, step = world.rows(), world.step()
    _damage(world)
    with pytest.raises(BadMeta, match="reset"):
        step.run(world.lake)

    step.reset(world.lake)

    assert world.rows() == rows
    assert step.status(world.lake).stale == "it was reset"
    world.delete("a", 2)
    world.run()
    assert sorted(world.calls.keys()) == [(1,), (3,)]
    assert world.run().nothing
    assert_right(world)


def test_damaged_output_of_other_inputs_is_not_reset(world: World) -> None:
    _damage(world)
    world.lake.create("other", key="id")
    world.lake["other"].write(world.lake["a"].to_arrow().select(["id", "v"]))
    before = world.step()
    step = fm.BatchTransform(before.function.function, ["other"], ["out"], name=before.name, version="1")

    with pytest.raises(OutputTaken):
        step.reset(world.lake)


@pytest.mark.parametrize("what", ["run", "reset"])
def test_progress_has_an_end(what: str, tmp_path: Path) -> None:
    showing: list[str] = []

    class Shown(SilentProgress):
        def start(self, title: str, total: int | None) -> None:
            showing.append(title)

        def finish(self) -> None:
            showing.clear()

    world = make_world(MAP, tmp_path, fm.Runtime(progress=Shown))
    world.write("a", (1, 1))
    world.run()
    if what == "reset":
        world.step().reset(world.lake)

    assert showing == []


def test_reset_twice_is_reset_once(world: World) -> None:
    world.step().reset(world.lake)
    head = world.lake["out"].head

    world.step().reset(world.lake)

    assert world.lake["out"].head == head


def test_part_of_the_keys_is_refused_while_all_of_them_are_stale(world: World) -> None:
    step = world.step("2")
    for part in [
        lambda: step.run(world.lake, filters={"id": 1}),
        lambda: step.run(world.lake, max_records=1),
        lambda: step.run_changelist(world.lake, {"a": [1]}),
        lambda: step.retry(world.lake),
    ]:
        with pytest.raises(BadStep, match="its function changed"):
            part()


def test_keys_deleted_and_purged_before_a_new_version_lose_their_rows(world: World) -> None:
    world.delete("a", 1)
    world.write("a", (4, 4))
    world.lake["a"].purge(before=4)  # the deletion itself is gone

    world.run("2")

    assert world.shown("w") == {2: 200, 3: 300, 4: 400}


def test_new_version_of_a_step_without_a_single_key_is_committed_too(world: World) -> None:
    world.delete("a", 1, 2, 3)
    world.lake["a"].purge(before=6)

    assert world.run("2").retracted == 3
    assert world.rows() == []
    assert world.run("3").commits == 1
    assert world.run("3").nothing


def test_new_version_may_add_columns(world: World) -> None:
    def more(rows: pa.Table) -> pa.Table:
        return pa.table({"extra": rows["v"], "id": rows["id"], "w": rows["v"]})

    fm.BatchTransform(more, ["a"], ["out"], name="step", version="2").run(world.lake)

    assert world.lake["out"].schema.names == ["id", "w", "extra"]
    assert sorted(world.lake["out"].to_arrow()["extra"].to_pylist()) == [1, 2, 3]


def test_new_version_with_more_columns_that_was_killed_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    world = raced_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    calls: list[int] = []
    world.delete("a", 1)  # a key that is gone, and has no columns to learn from

    def more(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        return pa.table({"extra": rows["v"], "id": rows["id"], "w": rows["v"]})

    step = fm.BatchTransform(more, ["a"], ["out"], name="step", version="2")
    crash_before(world, "out", lambda: step.run(world.lake))
    calls.clear()

    step.run(world.lake)

    assert calls == []
    assert sorted(world.lake["out"].to_arrow()["extra"].to_pylist()) == [2, 3]


def test_new_version_that_drops_a_column_keeps_it_as_null_and_says_so(world: World) -> None:
    def renamed(rows: pa.Table) -> pa.Table:
        return pa.table({"id": rows["id"], "v": rows["v"]})

    step = fm.BatchTransform(renamed, ["a"], ["out"], name="step", version="2")
    report = step.run(world.lake)
    assert report.notes == (
        "out has the new column 'v', null in older rows",
        "out keeps the column 'w', null in new rows",
    )
    world.write("a", (4, 4))
    later = step.run(world.lake)

    assert later.notes == ()
    assert world.shown("w") == {1: None, 2: None, 3: None, 4: None}
    assert world.shown("v") == {1: 1, 2: 2, 3: 3, 4: 4}
    [*_, newest] = replay(world.lake, ["out"], [step])
    assert newest.outcome == "same"


@pytest.mark.parametrize("kind", [fm.BatchTransform, fm.DatatableTransform])
def test_version_that_comes_back_after_a_renamed_column_goes_on_and_can_be_replayed(kind: Any, tmp_path: Path) -> None:
    world = make_world(MAP, tmp_path)
    world.write("a", (1, 1), (2, 2))

    def of(column: str) -> Any:
        function = lambda a: pa.table({"id": a["id"], column: a["v"]})  # noqa: E731 -- closes over the column
        return kind(function, ["a"], [fm.OutputSpec("out", key=["id"])], name="step", version=column)

    for column in ("w", "x", "w", "y", "w"):
        of(column).run(world.lake)
    world.write("a", (3, 3))
    of("w").run(world.lake)

    assert world.shown("w") == {1: 1, 2: 2, 3: 3}
    assert world.shown("x") == world.shown("y") == {1: None, 2: None, 3: None}
    outcomes = [one.outcome for one in replay(world.lake, ["out"], [of("w")])]
    assert outcomes == ["same", "code not available", "same", "code not available", "same", "same"]


def test_same_version_that_drops_a_column_is_refused(world: World) -> None:
    def less(rows: pa.Table) -> pa.Table:
        return pa.table({"id": rows["id"]})

    world.write("a", (4, 4))
    with pytest.raises(fm.FloodmarkError, match="lacks columns of the dataset: 'w'"):
        fm.BatchTransform(less, ["a"], ["out"], name="step", version="1").run(world.lake)
    assert world.shown("w") == {1: 10, 2: 20, 3: 30}


def test_new_column_of_an_input_reaches_steps_that_pass_columns_on(tmp_path: Path) -> None:
    lake = fm.Lake(tmp_path)
    lake.create("a", key="id").write(pa.table({"id": [1, 2], "v": [1, 2]}))
    called: set[int] = set()

    def first(rows: pa.Table) -> pa.Table:
        called.update(rows["id"].to_pylist())
        return rows.append_column("w", rows["v"])

    def second(rows: pa.Table) -> pa.Table:
        return rows.append_column("x", rows["w"])

    options: dict[str, Any] = {"transform_keys": ["id"], "version": "1"}
    steps = [
        fm.BatchTransform(first, ["a"], ["b"], **options),
        fm.BatchTransform(second, ["b"], ["c"], **options),
        fm.DatatableTransform(second, ["b"], ["d"], version="1", name="whole"),
    ]
    for step in steps:
        step.run(lake)
    lake["a"].evolve({"new": "string"})
    lake["a"].write(pa.table({"id": [2, 3], "v": [5, 6], "new": ["x", "y"]}))
    called.clear()
    notes = [step.run(lake).notes for step in steps]

    assert called == {2, 3}  # the old key is not processed again
    for name, note in zip("bcd", notes, strict=True):
        assert note == (f"{name} has the new column 'new', null in older rows",)
        assert dict(zip(*(lake[name].to_arrow()[c].to_pylist() for c in ("id", "new")), strict=True)) == {
            1: None,
            2: "x",
            3: "y",
        }


def test_same_version_that_returns_another_column_is_refused(world: World) -> None:
    def more(rows: pa.Table) -> pa.Table:
        return pa.table({"extra": rows["v"], "id": rows["id"], "w": rows["v"]})

    world.write("a", (4, 4))
    with pytest.raises(fm.FloodmarkError, match="has columns the dataset lacks: 'extra'"):
        fm.BatchTransform(more, ["a"], ["out"], name="step", version="1").run(world.lake)
