"""A step's run: what it calls, what it commits, and when it commits nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.chain.events import ExecuteTransform
from floodmark.errors import RecordsPurged
from rows.harm import HARM, derived, replace
from transforms.oracle import assert_right, expected, input_rows, shown
from transforms.worlds import JOIN, LOOKUP, MAP, Case, World, in_this_process, make_world, open_lake


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with in_this_process():
        yield


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(MAP, tmp_path)


def _newest(world: World, name: str = "out") -> ExecuteTransform:
    event = world.lake[name].snapshot().head_block.event
    assert isinstance(event, ExecuteTransform)
    return event


def test_every_key_is_processed_once_and_the_output_is_made(world: World) -> None:
    world.write("a", (1, 1), (2, 2), (3, 3), (4, 4))

    report = world.run()

    assert sorted(world.calls.keys()) == [(1,), (2,), (3,), (4,)]
    assert (report.keys, report.called, report.commits, report.new) == (4, 4, 1, 4)
    assert report.positions == {"a": 3}
    assert_right(world)


def test_only_keys_that_changed_are_processed_again(world: World) -> None:
    world.write("a", (1, 1), (2, 2), (3, 3))
    world.run()
    world.write("a", (2, 20), (4, 4))

    report = world.run()

    assert sorted(world.calls.keys()) == [(2,), (4,)]
    assert (report.keys, report.new, report.changed) == (2, 1, 1)
    assert_right(world)


def test_deleted_key_loses_its_rows_without_a_call(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    world.delete("a", 1)

    report = world.run()

    assert world.calls.keys() == []
    assert (report.keys, report.retracted) == (1, 1)
    assert_right(world)


@pytest.mark.parametrize("offsets", [True, False])
def test_nothing_new_commits_nothing(world: World, offsets: bool) -> None:
    world.write("a", (1, 1))
    world.run()
    head = world.lake["out"].head

    report = world.run(use_offset_optimization=offsets)

    assert report.nothing
    assert world.calls.all() == []
    assert world.lake["out"].head == head


def test_step_whose_inputs_are_empty_makes_no_output(world: World) -> None:
    assert world.run().nothing
    assert "out" not in world.lake


def test_inputs_moved_and_nothing_changed_is_one_event_that_carries_the_last_offset(world: World) -> None:
    world.write("a", (1, 1), (2, 2))
    world.run()
    before = _newest(world)
    assert before.new_data is not None
    blocks = world.lake["out"].snapshot().head_block.sequence_number
    world.write("a", (3, 3))
    world.delete("a", 3)

    report = world.run()

    event = _newest(world)
    assert report.commits == 1
    assert world.lake["out"].snapshot().head_block.sequence_number == blocks + 1
    assert event.new_data is None
    assert event.prev_offset == before.new_data.offset_interval.end
    [moved] = event.query_inputs
    assert (moved.prev_offset, moved.new_offset) == (1, 3)
    assert world.positions() == world.heads()


def test_watermark_is_the_least_of_the_inputs_once_a_run_is_complete(tmp_path: Path) -> None:
    world = make_world(JOIN, tmp_path)
    world.write("a", (1, 1), (2, 2))
    early, late = datetime(2126, 1, 1, tzinfo=UTC), datetime(2126, 2, 1, tzinfo=UTC)
    world.lake["a"].advance_watermark(late)
    world.run()
    assert world.lake["out"].watermark is None  # nothing is known of the other input

    world.lake["b"].advance_watermark(early)
    assert world.run().commits == 1
    assert world.lake["out"].watermark == early
    assert world.run().nothing


def test_records_written_while_a_run_is_under_way_are_left_to_the_next(world: World) -> None:
    """The function writes to its own input: all inputs are snapshots taken before anything is read."""
    world.write("a", (1, 1))
    lake = world.lake
    written = []

    def intrude(rows: pa.Table) -> pa.Table:
        if not written:
            written.append(True)
            lake["a"].write(pa.table({"id": [1, 2], "v": [100, 2]}))
        return pa.table({"id": rows["id"], "w": rows["v"]})

    step = fm.BatchTransform(intrude, ["a"], ["out"], version="1")
    assert step.run(lake).positions == {"a": 0}
    assert lake["out"].to_arrow().to_pylist() == [{"id": 1, "w": 1}]

    step.run(lake)
    assert sorted(lake["out"].to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "w": 100},
        {"id": 2, "w": 2},
    ]


_NO_OP = """
import sys
import floodmark as fm

def double(rows):
    return rows

step = fm.BatchTransform(double, ["a"], ["out"], version="1", name="step")
assert step.run(fm.Lake(sys.argv[1])).nothing
heavy = {name.partition(".")[0] for name in sys.modules} & {"pyspark", "pandas", "polars", "duckdb"}
assert not heavy, heavy
"""


@pytest.mark.process
def test_run_with_nothing_to_do_imports_neither_spark_nor_pandas(world: World, tmp_path: Path) -> None:
    world.write("a", (1, 1))
    world.run()

    done = subprocess.run(
        [sys.executable, "-c", _NO_OP, str(tmp_path / "lake")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_records_that_were_purged_before_they_were_read_are_an_error_until_a_reset(world: World) -> None:
    world.write("a", (1, 1))
    world.run()
    world.write("a", (2, 2))
    world.write("a", (2, 3))
    world.write("a", (3, 3))
    world.lake["a"].purge(before=2)

    with pytest.raises(RecordsPurged, match="records 1 to 1 of input 'a'"):
        world.run()
    world.step().reset(world.lake)
    world.run()

    assert_right(world)
    assert world.shown("w") == {1: 10, 2: 30, 3: 30}


@pytest.mark.parametrize("case", [LOOKUP, JOIN], ids=str)
def test_damaged_key_index_of_an_input_is_made_again_and_the_run_completes(case: Case, tmp_path: Path) -> None:
    world = make_world(case, tmp_path)
    for source in case.sources:
        world.write(source.name, *(tuple(n for _ in source.columns) for n in range(50)))
    world.run()
    for source in case.sources:
        world.write(source.name, tuple(7 for _ in source.columns))
        dataset = world.lake[source.name]
        store = dataset.snapshot().objects.store
        for key in [key for key in derived(dataset) if "/info/keys/files/" in key]:
            replace(store, key, HARM["zeros"](store.get(key), 64))
    world.lake = open_lake(tmp_path)

    world.run()

    assert shown(world.lake, case) == expected(case, input_rows(world.lake, case), factor=10)
    assert world.run().keys == 0
