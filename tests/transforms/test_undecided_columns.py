"""A column without a value in the first rows gets its type from later ones; all rows end up with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import floodmark as fm
from floodmark.errors import BadResult, UndecidedColumn
from floodmark.storage.memory import MemoryStore
from floodmark.transforms.task import TransformTask, run_task
from limits import set_limit
from profiles import examples
from transforms.apply_world import Keys, World, processed_of, rows_of
from transforms.worlds import in_this_process

LATE = 25


def late_text(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    """A column of nulls, then texts from key 25 on."""
    values = [None if k < LATE else f"t{k}" for k in frame["k"].to_pylist()]
    return pa.table({"k": frame["k"], "c": values, "y": frame["x"]})


def never(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    return pa.table({"k": frame["k"], "c": pa.nulls(frame.num_rows), "y": frame["x"]})


def late_list(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    """Empty lists are values: they must not become nulls."""
    values: list[list[str]] = [[] if k < LATE else [f"t{k}"] for k in frame["k"].to_pylist()]
    return pa.table({"k": frame["k"], "c": values, "y": frame["x"]})


def wanted(keys: range) -> dict[int, str | None]:
    return {k: None if k < LATE else f"t{k}" for k in keys}


@pytest.mark.parametrize("target_seconds", [0.0, 10.0])  # a checkpoint for every call, or one
def test_type_comes_with_the_first_value(tmp_path: Path, target_seconds: float) -> None:
    done = World(tmp_path, function=late_text, target_seconds=target_seconds).compute(Keys(0, 40))
    assert done.outputs[0].layout is not None
    assert done.outputs[0].layout.data.names == ["k", "c", "y"]
    assert rows_of(done.stored, value="c") == wanted(range(40))
    assert all(s.layouts == (done.outputs[0].layout,) for s in done.stored)
    assert processed_of(done.stored, range(40)) == list(range(40))


def test_empty_lists_stay_empty_lists(tmp_path: Path) -> None:
    done = World(tmp_path, function=late_list, target_seconds=0.0).compute(Keys(0, 40))
    assert rows_of(done.stored, value="c") == {k: [] if k < LATE else [f"t{k}"] for k in range(40)}


def test_tasks_that_saw_no_value_get_the_type_of_those_that_did(tmp_path: Path, monkeypatch: Any) -> None:
    set_limit(monkeypatch, "rounds.least_rows", 10)
    world = World(tmp_path, function=late_text, target_seconds=0.0)  # nobody waits long for what one task learns
    done = world.compute(Keys(0, 10), Keys(10, 20), Keys(30, 40), Keys(20, 30))
    assert rows_of(done.stored, value="c") == wanted(range(40))


def test_columns_that_nobody_knows_end_the_run_and_keep_the_results(tmp_path: Path) -> None:
    world = World(tmp_path, function=never)
    with pytest.raises(UndecidedColumn, match="no value in the column 'c' of 'out'") as caught:
        world.compute(Keys(0, 40))
    assert "OutputSpec('out', schema=…)" in caught.value.hint
    done = replace(world, function=late_text).compute(Keys(0, 41))
    assert (done.reused, done.called) == (40, 1)
    assert rows_of(done.stored, value="c") == {**dict.fromkeys(range(40)), 40: "t40"}


def test_checkpoint_of_a_killed_run_decides_no_column_it_had_no_value_in(tmp_path: Path) -> None:
    world = World(tmp_path, function=late_text)
    run_task(world.work(), TransformTask("dead", (Keys(0, 10),), 10, float("inf")))
    done = world.compute(Keys(0, 40))
    assert (done.reused, rows_of(done.stored, value="c")) == (10, wanted(range(40)))


def one_column_more(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    table = never(frame, folder, seconds)
    return table if frame["k"][0].as_py() < 10 else table.append_column("z", frame["x"])


def int_or_text(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
    table = never(frame, folder, seconds)
    return table if frame["k"][0].as_py() < 10 else table.set_column(2, "y", frame["x"].cast(pa.string()))


@pytest.mark.parametrize(
    ("function", "says"), [(one_column_more, "'z' for 'out' in some calls"), (int_or_text, "of different types")]
)
def test_rows_that_do_not_go_together_are_refused(tmp_path: Path, function: Any, says: str) -> None:
    with pytest.raises(BadResult, match=says):
        World(tmp_path, function=function).compute(Keys(0, 40))


# As a step


@pytest.fixture
def lake() -> Iterator[fm.Lake]:
    lake = fm.Lake(MemoryStore())
    lake.create("a", key="id").write(pa.table({"id": [1, 2, 3, 4], "v": [3, 4, 5, 6]}))
    with in_this_process():
        yield lake


def _from_3_on(rows: pa.Table) -> pa.Table:
    return rows.append_column("c", pa.array([None if k < 3 else "x" for k in rows["id"].to_pylist()]))


def _never(rows: pa.Table) -> pa.Table:
    return rows.append_column("c", pa.nulls(rows.num_rows))


@pytest.mark.parametrize("commit_every", [None, 1])
def test_step_whose_first_rows_have_no_value_in_a_column(lake: fm.Lake, commit_every: int | None) -> None:
    step = fm.BatchTransform(_from_3_on, ["a"], ["o"], chunk_size=1, commit_every=commit_every)
    report = step.run(lake)
    assert (report.keys, report.failed) == (4, 0)
    assert lake["o"].to_arrow().sort_by("id")["c"].to_pylist() == [None, None, "x", "x"]
    assert step.run(lake).nothing


def test_step_without_a_value_asks_for_the_type_and_goes_on_with_it(lake: fm.Lake) -> None:
    with pytest.raises(UndecidedColumn, match="'c' of 'o'"):
        fm.BatchTransform(_never, ["a"], ["o"], name="s", commit_every=2).run(lake)
    typed = fm.OutputSpec("o", schema={"id": "int64", "v": "int64", "c": "string"})
    report = fm.BatchTransform(_never, ["a"], [typed], name="s").run(lake)
    assert report.keys == 4
    assert lake["o"].schema.field("c").type == pa.string()
    assert lake["o"].to_arrow()["c"].to_pylist() == [None] * 4


def test_new_version_may_add_a_column_whose_first_rows_have_no_value(lake: fm.Lake) -> None:
    fm.BatchTransform(lambda rows: rows, ["a"], ["o"], name="s").run(lake)
    fm.BatchTransform(_from_3_on, ["a"], ["o"], name="s", chunk_size=1).run(lake)
    assert lake["o"].to_arrow().sort_by("id")["c"].to_pylist() == [None, None, "x", "x"]


@settings(max_examples=examples(8))
@given(
    values=st.lists(st.sampled_from([None, 1, 2, 0.5]), min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 11), max_size=3),
    seconds=st.sampled_from([0.0, 10.0]),
)
def test_rows_are_what_they_would_be_had_they_been_seen_at_once(
    tmp_path_factory: Any, values: list[Any], cuts: set[int], seconds: float
) -> None:
    known = next((v for v in values if v is not None), None)
    values = [v if type(v) is type(known) else None for v in values]  # one type, many nulls
    ends = sorted({c for c in cuts if c < len(values)} | {0, len(values)})
    units = [Keys(low, high) for low, high in itertools.pairwise(ends)]

    def function(frame: pa.Table, folder: str, seconds: float) -> pa.Table:
        return pa.table({"k": frame["k"], "y": [values[k] for k in frame["k"].to_pylist()]})

    world = World(tmp_path_factory.mktemp("w"), function=function, target_seconds=seconds, chunk_size=2)
    with in_this_process(), pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "rounds.least_rows", 1)
        if known is None:
            with pytest.raises(UndecidedColumn):
                world.compute(*units)
        else:
            assert rows_of(world.compute(*units).stored) == dict(enumerate(values))
