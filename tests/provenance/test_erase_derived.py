"""Erasing a key erases what was computed from it, where columns tell which rows these are; else nothing is erased."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import DatasetInUse
from floodmark.storage.memory import MemoryStore
from histories.calls import in_this_process
from profiles import sample
from provenance.naive import OFFSET
from rows.mortal_store import Dies, copied
from transforms.oracle import assert_right
from transforms.worlds import (
    AGGREGATION,
    JOIN,
    LOOKUP,
    MAP,
    MOVING_GROUPS,
    ONE_TO_MANY,
    TWO_OUTPUTS,
    Case,
    World,
    make_world,
)
from views.refresh_worlds import Answers, lake_without_spark, orders, shown, view_of, write


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


VALUE = 987_650_001
"""A value that no other row has, and that bytes of files show."""


def lived_in(case: Case, folder: Path) -> World:
    """A world in which row 1 of the first input had several values, one of them VALUE."""
    world = make_world(case, folder)
    for number, v in enumerate((VALUE, 5, VALUE + 1)):
        for source in case.sources:
            rows = []
            for i in range(4):
                own = {"id": i, "i": i, "j": i, "n": i, "g": (i + number) % 2, "cat": i % 2, "ref": i}
                value = v if i == 1 and source is case.sources[0] else 10 * number + i
                rows.append(tuple(own.get(name, value) for name in source.columns))
            world.write(source.name, *rows)
        world.run()
    return world


def key_of(world: World) -> list[dict[str, int]]:
    key = world.case.sources[0].key
    assert key is not None
    rows = world.lake["a"].to_arrow().to_pylist()
    return [{name: row[name] for name in key} for row in rows if 1 in [row[name] for name in key if name != "g"]]


def erase(world: World) -> fm.EraseReport:
    keys = key_of(world)
    assert keys
    with pytest.raises(DatasetInUse, match="has not processed that") as refused:
        world.lake.erase("a", keys)
    assert "run the pipeline" in refused.value.hint
    world.run()
    return world.lake.erase("a", keys)


def records(lake: fm.Lake, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = lake[name].changes_arrow().to_pylist()
    return found


@pytest.mark.parametrize("case", [MAP, ONE_TO_MANY, TWO_OUTPUTS, JOIN, LOOKUP], ids=str)
def test_rows_of_the_key_leave_all_files_of_steps(case: Case, tmp_path: Path) -> None:
    world = lived_in(case, tmp_path)
    outputs = [output.name for output in case.outputs]
    others = {name: [r for r in records(world.lake, name) if r["id"] != 1] for name in outputs}
    done = erase(world)
    assert done.records >= 5
    assert set(done.derived) == set(outputs)
    for name in outputs:
        left = records(world.lake, name)
        current = 1 if case is JOIN else 0  # the other input still has a row of the key
        assert len([r for r in left if r["id"] == 1]) == current
        assert [r for r in left if r[OFFSET] in {o[OFFSET] for o in others[name]}] == others[name]
        [event] = [e for e in world.lake[name].log() if e.kind == "SetDataSchema"][:1]
        assert "erased" in event.summary
    assert_right(world)
    world.write("a", *[(7, *[0] * (len(case.sources[0].columns) - 1))])
    world.run()
    assert_right(world)


@pytest.mark.parametrize("case", [AGGREGATION, MOVING_GROUPS], ids=str)
def test_old_versions_of_groups_that_had_the_row_go_and_current_ones_stay(case: Case, tmp_path: Path) -> None:
    world = lived_in(case, tmp_path)
    before = world.rows()
    assert any(r["total"] >= VALUE for r in records(world.lake, "out"))
    done = erase(world)
    assert done.derived["out"] > 0
    left = records(world.lake, "out")
    assert [r for r in left if r["total"] >= VALUE] == []
    assert len(left) == len(world.rows()) != len(before) + 1
    assert_right(world)


def test_erasure_goes_through_several_steps_and_columns(tmp_path: Path) -> None:
    world = lived_in(MAP, tmp_path)
    lake = world.lake
    second = fm.BatchTransform(lambda out: out, inputs=["out"], outputs=["copy"], version="1", name="copy")
    second.run(lake)
    lake["copy"].add_column("text", fm.udf(returns="string")(lambda w: f"<{w}>"))
    lake["copy"].backfill("text", udf=fm.udf(returns="string")(lambda w: f"<{w}>"))
    keys = key_of(world)
    with pytest.raises(DatasetInUse):
        lake.erase("a", keys)
    world.run()
    with pytest.raises(DatasetInUse, match="'copy' has not processed"):
        lake.erase("a", keys)
    second.run(lake)
    assert set(lake.erase("a", keys).derived) == {"out", "copy"}
    text = f"<{(VALUE + 1) * 10}>".encode()
    found = [info.key for info in list(lake.store.list("")) if text in lake.store.get(info.key)]
    assert found == []
    assert all(dataset.verify().problems == () for dataset in lake)


def test_step_over_whole_inputs_is_named_with_the_command_that_helps(tmp_path: Path) -> None:
    world = lived_in(MAP, tmp_path)
    fm.DatatableTransform(lambda a: a, inputs=["a"], outputs=["all"], name="all").run(world.lake)
    head = world.lake["a"].head
    with pytest.raises(DatasetInUse, match="all is computed from it, and its columns do not tell") as refused:
        world.lake.erase("a", [1])
    assert "`floodmark drop all --cascade --yes`" in refused.value.hint
    assert world.lake["a"].head == head


def test_purged_history_that_leads_to_groups_is_a_reason_to_refuse(tmp_path: Path) -> None:
    world = lived_in(MOVING_GROUPS, tmp_path)
    world.lake["a"].purge(before=5)
    with pytest.raises(DatasetInUse, match="history of 'a' that leads to its rows was purged"):
        world.lake.erase("a", [1])


def test_failed_key_keeps_older_rows_so_the_erasure_waits(tmp_path: Path) -> None:
    world = lived_in(AGGREGATION, tmp_path)
    keys = key_of(world)
    with pytest.raises(DatasetInUse):
        world.lake.erase("a", keys)
    world.calls.fail((0,), (1,))
    world.write("a", (5, 5, 5))
    world.run()
    with pytest.raises(DatasetInUse, match="failed keys of 'out'"):
        world.lake.erase("a", keys)
    world.calls.behave()
    world.step().retry(world.lake)
    assert world.lake.erase("a", keys).derived["out"] > 0


def test_failed_key_without_older_rows_does_not_stop_an_erasure(tmp_path: Path) -> None:
    world = lived_in(MAP, tmp_path)
    world.write("a", (7, 7), (8, 8))
    world.calls.fail((7,))
    world.run(on_error="skip")
    world.write("a", (9, 9), (10, 10))
    world.calls.fail((7,), (9,))
    world.run(on_error="skip")
    assert world.step().status(world.lake).skipped == 2
    assert erase(world).derived["out"] > 0


def test_records_of_an_earlier_declaration_go_if_the_step_reads_another_dataset_now() -> None:
    store = MemoryStore()
    lake = fm.Lake(store)
    old, new = (lake.create(name, key="id") for name in ("old", "new"))
    old.write(pa.table({"id": [1, 2], "v": ["secret", "other"]}))
    new.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    fm.BatchTransform(lambda old: old, inputs=["old"], outputs=["out"], version="1", name="step").run(lake)
    step = fm.BatchTransform(lambda new: new, inputs=["new"], outputs=["out"], version="1", name="step")
    step.run(lake)
    assert lake.readers("old") == ()
    with pytest.raises(DatasetInUse, match="out is computed from it"):
        old.erase([1])
    assert lake.erase("old", [1]).derived == {"out": 2}
    assert [info.key for info in list(store.list("")) if b"secret" in store.get(info.key)] == []
    assert lake["out"].to_arrow().sort_by("id")["v"].to_pylist() == ["a", "b"]
    assert step.run(lake).nothing
    assert all(dataset.verify().problems == () for dataset in lake)


def test_keys_and_messages_of_failures_leave_the_files_of_the_meta() -> None:
    def strict(people: pa.Table) -> pa.Table:
        if "bad" in people["v"].to_pylist():
            raise ValueError(f"cannot use {people['name'].to_pylist()}")
        return people

    store = MemoryStore()
    lake = fm.Lake(store)
    people = lake.create("people", key="name")
    step = fm.BatchTransform(strict, inputs=["people"], outputs=["out"], version="1", name="step")
    people.write(pa.table({"name": ["Secret", "Other"], "v": ["bad", "good"]}))
    step.run(lake)
    people.write(pa.table({"name": ["Secret", "Third"], "v": ["good", "good"]}))
    step.run(lake)
    assert failures_with(store, "Secret")
    with pytest.raises(DatasetInUse):
        lake.erase("people", ["Secret"])
    step.run(lake)
    lake.erase("people", ["Secret"])
    assert failures_with(store, "Secret") == []
    people.write(pa.table({"name": ["Fourth"], "v": ["good"]}))
    assert step.run(lake).new == 1
    assert all(dataset.verify().problems == () for dataset in lake)


def failures_with(store: MemoryStore, text: str) -> list[str]:
    """The objects that have a text in a table of failed keys."""
    found = []
    for info in list(store.list("datasets")):
        with suppress(pa.ArrowInvalid):
            table = pa.ipc.open_file(pa.BufferReader(store.get(info.key))).read_all()
            found += [info.key] if text in str(table.to_pylist()) else []
    return found


def test_replay_says_that_records_were_erased(tmp_path: Path) -> None:
    from floodmark.provenance.replay import replay

    world = lived_in(MAP, tmp_path)
    erase(world)
    world.write("a", (8, 8))
    world.run()
    found = list(replay(world.lake, ["out"], [world.step()]))
    assert {one.outcome for one in found} == {"same", "not replayable"}
    assert all("erased" in (one.why or "") for one in found if one.outcome == "not replayable")


def test_rows_of_a_view_are_erased_once_it_is_refreshed(tmp_path: Path) -> None:
    lake, answers = lake_without_spark(tmp_path), Answers()
    source = orders(lake)
    write(source, {11: 11, 12: VALUE})
    view = view_of(lake, source)
    with answers.instead_of_spark():
        view.refresh()
        write(source, {12: VALUE + 1})
        view.refresh()
        with pytest.raises(DatasetInUse, match="'doubled' has not processed"):
            lake.erase("orders", [12])
        view.refresh()
        assert lake.erase("orders", [12]).derived == {"doubled": 4}
        assert view.changes_arrow()["id"].to_pylist() == [11]
        assert view.refresh().nothing
        write(source, {12: 20, 13: 30})
        view.refresh()
    assert shown(view) == {11: 22, 12: 40, 13: 60}
    assert all(dataset.verify().problems == () for dataset in lake)


@pytest.mark.slow
def test_crash_at_any_change_can_be_repeated_until_nothing_is_left() -> None:
    template = MemoryStore()
    lake = fm.Lake(template)
    step = fm.BatchTransform(lambda a: a, inputs=["a"], outputs=["out"], version="1", name="step")
    source = lake.create("a", key="id")
    for value in ("secret1", "secret2"):
        source.write(pa.table({"id": [1, 2], "v": [value, "other"]}))
        step.run(lake)
    source.delete([1])
    step.run(lake)
    whole = copied(template)
    enough = whole.left
    fm.Lake(whole).erase("a", [1])
    changes = enough - whole.left
    assert changes > 15
    for number in sample(range(changes), 12):
        store = copied(template)
        store.left = number
        with suppress(Dies):
            fm.Lake(store).erase("a", [1])
        store.left = enough
        lake = fm.Lake(store)
        assert lake["out"].to_arrow().to_pylist() == [{"id": 2, "v": "other"}], number
        lake.erase("a", [1])
        assert [i.key for i in list(store.list("")) if b"secret" in store.get(i.key)] == [], number
        assert all(dataset.verify().problems == () for dataset in lake), number
