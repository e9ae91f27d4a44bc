"""DatatableTransform: whole datasets in, whole results out, and a call only when something moved."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.chain.events import ExecuteTransform
from floodmark.errors import (
    BadMeta,
    BadResult,
    BadStep,
    DuplicateKeys,
    MissingColumns,
    OutputTaken,
    ReadOnlyDataset,
    StepFailed,
    UnknownDataset,
)
from floodmark.storage.local import LocalStore
from floodmark.transforms.datatable_transform import DatatableTransform
from floodmark.transforms.specs import InputSpec, OutputSpec, Required
from transforms.crash_points import crashed_lakes

TOTALS = OutputSpec("totals", key="g")


@pytest.fixture
def lake(tmp_path):
    lake = fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem()))
    lake.create("sales", key="id", schema={"id": "int64", "g": "string", "n": "int64"})
    return lake


def sales(*rows: tuple[int, str, int]) -> pa.Table:
    ids, groups, numbers = zip(*rows, strict=True)
    return pa.table({"id": ids, "g": groups, "n": numbers})


class Totals:
    """Sums per group, and how often it was asked for them."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.calls = 0

    def __call__(self, table: pd.DataFrame) -> pd.DataFrame:
        self.calls += 1
        summed = table.groupby("g", as_index=False).agg(total=("n", "sum"))
        return summed.assign(total=summed["total"] * self.factor)


def step(function: Callable[..., Any], **options: Any) -> DatatableTransform:
    return DatatableTransform(function, ["sales"], [TOTALS], **{"name": "totals", "version": "1", **options})


def totals(lake: fm.Lake, name: str = "totals") -> dict[str, int]:
    table = lake[name].to_arrow()
    return dict(zip(table["g"].to_pylist(), table["total"].to_pylist(), strict=True))


def expected(lake: fm.Lake) -> dict[str, int]:
    """The same by hand."""
    sums: dict[str, int] = {}
    for row in lake["sales"].to_arrow().to_pylist():
        sums[row["g"]] = sums.get(row["g"], 0) + row["n"]
    return sums


def test_the_function_is_called_when_an_input_moved_and_only_then(lake):
    function = Totals()
    totalled = step(function)
    lake["sales"].write(sales((1, "a", 1), (2, "a", 2), (3, "b", 3)))
    report = totalled.run(lake)
    assert (report.commits, report.new, report.called) == (1, 2, 1)
    assert report.positions == {"sales": 2}
    assert totalled.run(lake).nothing
    assert function.calls == 1
    lake["sales"].write(sales((2, "b", 5), (4, "c", 1)))
    report = totalled.run(lake)
    assert (report.new, report.changed, report.retracted) == (1, 2, 0)
    assert totals(lake) == expected(lake)
    assert function.calls == 2


def test_only_what_changed_is_written_and_what_is_gone_is_retracted(lake):
    totalled = step(Totals())
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    totalled.run(lake)
    lake["sales"].delete([2])
    report = totalled.run(lake)
    assert (report.new, report.changed, report.retracted) == (0, 0, 1)
    assert totals(lake) == {"a": 1}


def test_an_input_that_moved_without_changing_the_result_still_advances(lake):
    function = Totals()
    totalled = step(function)
    lake["sales"].write(sales((1, "a", 1), (2, "a", 2)))
    totalled.run(lake)
    lake["sales"].write(sales((1, "a", 2), (2, "a", 1)))
    report = totalled.run(lake)
    assert (report.commits, report.new, report.changed) == (1, 0, 0)
    event = next(entry.event for entry in lake["totals"].log() if isinstance(entry.event, ExecuteTransform))
    assert [read.new_offset for read in event.query_inputs] == [lake["sales"].last_offset]
    assert totalled.run(lake).nothing
    assert function.calls == 2
    assert lake["totals"].last_offset == 0
    assert lake["totals"].verify().problems == ()


def test_blocks_without_records_are_no_reason_to_call(lake):
    function = Totals()
    totalled = step(function)
    lake["sales"].write(sales((1, "a", 1)))
    totalled.run(lake)
    lake["sales"].evolve({"note": "string"})
    lake["sales"].advance_watermark("2090-01-01")
    assert totalled.run(lake).nothing
    assert function.calls == 1


def test_a_result_without_rows_empties_the_output(lake):
    totalled = step(Totals())
    lake["sales"].write(sales((1, "a", 1)))
    totalled.run(lake)
    lake["sales"].delete([1])
    assert totalled.run(lake).retracted == 1
    assert totals(lake) == {}
    lake["sales"].write(sales((1, "a", 1)))
    assert totalled.run(lake).new == 1


def test_a_first_result_without_rows_is_a_result(lake):
    calls = []
    totalled = step(lambda table: (calls.append(1), pd.DataFrame())[1])
    lake["sales"].write(sales((1, "a", 1)))
    assert totalled.run(lake).commits == 1
    assert totalled.run(lake).nothing
    assert len(calls) == 1


def test_inputs_without_columns_are_nothing_to_do(lake):
    lake.create("labels", key="id")
    calls = []
    both = DatatableTransform(lambda a, b: calls.append(1), ["sales", "labels"], [TOTALS], name="both")
    lake["sales"].write(sales((1, "a", 1)))
    assert both.run(lake).nothing
    assert calls == []
    assert "totals" not in lake


def test_an_input_that_is_not_there_is_refused(lake):
    with pytest.raises(UnknownDataset):
        DatatableTransform(Totals(), ["sale"], [TOTALS], name="totals", version="1").run(lake)


def by_arrow(table: pa.Table) -> pa.Table:
    return table.group_by("g").aggregate([("n", "sum")]).rename_columns(["g", "total"])


def by_polars(table: pl.DataFrame) -> pl.DataFrame:
    return table.group_by("g").agg(pl.col("n").sum().alias("total"))


def by_pandas(table):
    return table.groupby("g", as_index=False).agg(total=("n", "sum"))


@pytest.mark.parametrize("function", [by_arrow, by_polars, by_pandas])
def test_annotations_say_which_frame_it_gets(lake, function):
    lake["sales"].write(sales((1, "a", 1), (2, "a", 2), (3, "b", 3)))
    DatatableTransform(function, ["sales"], [TOTALS]).run(lake)
    assert totals(lake) == expected(lake)


def test_chosen_columns_are_all_that_it_gets(lake):
    seen = []

    def ids(table: pa.Table) -> pa.Table:
        seen.append(table.column_names)
        return table

    lake["sales"].write(sales((1, "a", 1)))
    DatatableTransform(ids, [InputSpec("sales", columns=["id"])], ["ids"]).run(lake)
    assert seen == [["id"]]
    assert lake["ids"].strategy.key == ("id",)  # what the keys of the inputs share


def test_several_outputs_are_committed_and_each_is_whole(lake):
    def split(table: pa.Table) -> tuple[pa.Table, pd.DataFrame]:
        return by_arrow(table), table.to_pandas()[["id", "n"]]

    both = DatatableTransform(split, ["sales"], [TOTALS, "numbers"])
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    assert both.run(lake).commits == 2
    assert totals(lake) == {"a": 1, "b": 2}
    assert lake["numbers"].count() == 2
    assert both.run(lake).nothing
    lake.drop("numbers")
    assert both.run(lake).new == 2  # one that is missing is made again


def test_the_first_output_is_the_last_to_be_committed(lake):
    def split(table: pa.Table) -> tuple[pa.Table, pa.Table]:
        return by_arrow(table), pa.table({"id": [1, 1], "n": [1, 2]})

    lake["sales"].write(sales((1, "a", 1)))
    with pytest.raises(DuplicateKeys):
        DatatableTransform(split, ["sales"], [TOTALS, "numbers"]).run(lake)
    assert lake["totals"].schema is None  # it does not say that it is done while another output is not


# Versions


def test_a_changed_function_is_called_again_and_says_so_on_the_chain(lake):
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    step(Totals()).run(lake)
    doubled = step(Totals(2), version="2")
    assert doubled.plan(lake).why == "its function, its inputs or their columns changed"
    assert doubled.run(lake).changed == 2
    assert totals(lake) == {"a": 2, "b": 4}
    assert doubled.run(lake).nothing
    kinds = [entry.kind for entry in lake["totals"].log()]
    assert kinds.count("SetTransform") == 2
    assert lake["totals"].verify().problems == ()


def test_a_step_under_another_name_is_the_same_as_long_as_its_function_is(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    assert step(Totals(), name="sums").run(lake).nothing
    with pytest.raises(OutputTaken, match="results of step 'totals'"):
        step(Totals(), name="sums", version="2").run(lake)


def test_new_column_of_the_result_is_added_and_missing_one_is_null(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    step(lambda table: Totals()(table).assign(half=0.5), version="2").run(lake)
    assert lake["totals"].to_arrow().to_pylist() == [{"g": "a", "total": 1, "half": 0.5}]
    report = step(Totals(), version="3").run(lake)
    assert report.notes == ("totals keeps the column 'half', null in new rows",)
    assert lake["totals"].to_arrow().to_pylist() == [{"g": "a", "total": 1, "half": None}]


def test_result_without_a_key_column_is_refused(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    with pytest.raises(MissingColumns, match="'g'"):
        step(lambda table: Totals()(table).drop(columns="g"), version="2").run(lake)


def test_a_reset_has_it_called_once_more(lake):
    function = Totals()
    totalled = step(function)
    lake["sales"].write(sales((1, "a", 1)))
    totalled.reset(lake)  # before the first run there is nothing to forget
    totalled.run(lake)
    totalled.reset(lake)
    assert totals(lake) == {"a": 1}
    assert totalled.plan(lake).why == "it was reset"
    assert totalled.run(lake).new == 0
    assert totalled.run(lake).nothing
    assert function.calls == 2


# Looking at it


def test_plan_and_status_say_how_far_it_is(lake):
    totalled = step(Totals())
    assert totalled.plan(lake).why == "'totals' has no results yet"
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    assert totalled.status(lake).behind == 2
    assert totalled.status(lake).last_run is None
    totalled.run(lake)
    status = totalled.status(lake)
    assert (status.behind, status.keys, status.stale) == (0, 2, None)
    assert status.last_run.keys == 2
    lake["sales"].write(sales((1, "a", 5)))
    plan = totalled.plan(lake)
    assert (plan.why, plan.nothing) == ("'sales' has new records", False)
    assert (plan.inputs[0].position, plan.inputs[0].head, plan.inputs[0].behind) == (1, 3, 2)


def test_offsets_say_how_far_each_input_was_read_and_when_that_was_written(lake):
    totalled = step(Totals())
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    assert totalled.offsets(lake).to_pylist() == [
        {"transform": "totals", "input": "sales", "offset": None, "time": None}
    ]
    totalled.run(lake)
    commit = lake["sales"].write(sales((3, "b", 2)))
    (row,) = totalled.offsets(lake).to_pylist()
    assert (row["offset"], row["time"] <= commit.system_time) == (1, True)
    totalled.run(lake)
    (row,) = totalled.offsets(lake).to_pylist()
    assert (row["offset"], row["time"]) == (2, commit.system_time)


# What goes wrong


def test_a_function_that_fails_changes_nothing_and_is_called_again(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    lake["sales"].write(sales((1, "a", 2)))
    head = lake["totals"].head

    def broken(table):
        raise ValueError("no sums today")

    with pytest.raises(StepFailed, match=r"no sums today \(.*test_datatable\.py, line \d+\)"):
        step(broken).run(lake)
    assert lake["totals"].head == head
    assert step(Totals()).run(lake).changed == 1


@pytest.mark.parametrize("returned", [None, 3, (pd.DataFrame(), pd.DataFrame()), "text"])
def test_what_is_no_frame_is_refused(lake, returned):
    lake["sales"].write(sales((1, "a", 1)))
    with pytest.raises(BadResult):
        step(lambda table: returned).run(lake)


def test_two_rows_with_one_key_are_refused(lake):
    lake["sales"].write(sales((1, "a", 1)))
    with pytest.raises(DuplicateKeys):
        step(lambda table: pd.DataFrame({"g": ["a", "a"], "total": [1, 2]})).run(lake)


def test_an_output_without_a_key_is_refused_before_the_call(lake):
    lake.create("events")
    lake["events"].write(pa.table({"x": [1]}))
    calls = []
    with pytest.raises(BadStep, match=r"OutputSpec\('out', key="):
        DatatableTransform(lambda table: calls.append(1), ["events"], ["out"], name="s").run(lake)
    assert calls == []


def test_another_key_than_the_output_was_made_with_is_refused(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    other = DatatableTransform(Totals(), ["sales"], [OutputSpec("totals", key="total")], name="totals", version="2")
    with pytest.raises(OutputTaken):
        other.run(lake)


def test_a_dataset_that_data_is_written_to_is_no_output(lake):
    lake.create("totals", key="g")
    with pytest.raises(OutputTaken):
        step(Totals()).run(lake)


def test_nobody_writes_to_the_output(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    with pytest.raises(ReadOnlyDataset):
        lake["totals"].write(pa.table({"g": ["z"], "total": [1]}))


@pytest.mark.parametrize("given", [Required("sales"), InputSpec("sales", keys={"a": "id"})])
def test_what_means_nothing_for_whole_datasets_is_refused(given):
    with pytest.raises(BadStep, match="whole datasets"):
        DatatableTransform(Totals(), [given], [TOTALS], name="s")


def test_a_checkpoint_that_is_gone_is_said_to_be(lake):
    lake["sales"].write(sales((1, "a", 1)))
    step(Totals()).run(lake)
    snapshot = lake["totals"].snapshot()
    lake.store.delete(snapshot.objects.checkpoint_key(snapshot.state.checkpoint))
    with pytest.raises(BadMeta, match="'totals'"):
        step(Totals()).run(lake)


# Others at the same time, and crashes


def test_two_runs_at_once_call_the_function_once(lake):
    function = Totals()
    totalled = step(function)
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    reports: list[Any] = []
    threads = [threading.Thread(target=lambda: reports.append(totalled.run(lake))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.commits for report in reports) == [0, 0, 1]
    assert totals(lake) == {"a": 1, "b": 2}
    assert function.calls == 1


def test_a_row_written_while_the_function_runs_is_in_the_next_run(lake):
    lake["sales"].write(sales((1, "a", 1)))
    once = iter([sales((1, "a", 10), (2, "b", 2))])

    def slow(table: pd.DataFrame) -> pd.DataFrame:
        for late in once:
            lake["sales"].write(late)
        return Totals()(table)

    totalled = step(slow)
    totalled.run(lake)
    assert totals(lake) == {"a": 1}
    totalled.run(lake)
    assert totals(lake) == {"a": 10, "b": 2}


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_that_dies_at_any_change_of_a_file_is_made_good_by_the_next(lake, tmp_path):
    totalled = step(Totals())
    lake["sales"].write(sales((1, "a", 1), (2, "b", 2)))
    totalled.run(lake)
    lake["sales"].write(sales((2, "c", 3)))
    for crashed in crashed_lakes(tmp_path / "lake", totalled.run, 8):
        assert totals(crashed) in ({"a": 1, "b": 2}, {"a": 1, "c": 3})
        totalled.run(crashed)
        assert totals(crashed) == {"a": 1, "c": 3}
        assert totalled.run(crashed).nothing
        assert crashed["totals"].verify().problems == ()


_NO_OP = """
import sys
import floodmark as fm
from floodmark.transforms.datatable_transform import DatatableTransform
from floodmark.transforms.specs import OutputSpec

def count(sales: "pa.Table") -> "pa.Table":
    raise AssertionError

step = DatatableTransform(count, ["sales"], [OutputSpec("totals", key="g")], name="totals", version="1")
assert step.run(fm.Lake(sys.argv[1])).nothing
heavy = {"pyspark", "pandas", "polars", "sqlalchemy"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.process
def test_a_run_with_nothing_to_do_imports_no_spark_and_no_frames(lake, tmp_path):
    def count(table: pa.Table) -> pa.Table:
        return pa.table({"g": ["all"], "total": [table.num_rows]})

    lake["sales"].write(sales((1, "a", 1)))
    step(count).run(lake)
    command = [sys.executable, "-c", _NO_OP, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Spark


@pytest.mark.spark
def test_spark_frames_go_in_and_come_out(tmp_path, session):
    import pyspark.sql
    from pyspark.sql import functions as f

    def by_spark(table: pyspark.sql.DataFrame) -> pyspark.sql.DataFrame:
        return table.groupBy("g").agg(f.sum("n").alias("total"))

    lake = fm.Lake(tmp_path / "lake", runtime=fm.Runtime(session=session))
    lake.create("sales", key="id")
    lake["sales"].write(sales((1, "a", 1), (2, "a", 2), (3, "b", 3)))
    totalled = DatatableTransform(by_spark, ["sales"], [TOTALS])
    assert totalled.run(lake).new == 2
    assert totals(lake) == expected(lake)
    lake["sales"].write(sales((3, "c", 4)))
    report = totalled.run(lake)
    assert (report.new, report.retracted) == (1, 1)
    assert totals(lake) == expected(lake)
    assert totalled.run(lake).nothing
