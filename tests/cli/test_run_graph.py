"""`floodmark run` works the whole graph: what it says, what it skips, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.user import PATIENCE
from floodmark import Lake
from floodmark.pipeline.run_lock import hold_run_lock

FLOW = """\
from pathlib import Path

import pyarrow as pa

from floodmark import DatasetSpec, Pipeline, Source

orders = DatasetSpec("orders", key="id")
pipeline = Pipeline([orders, Source(orders, files="data/*.csv", labels={"stage": "in"})])


@pipeline.transform([orders], ["cents"], labels={"stage": "out"})
def to_cents(orders: pa.Table) -> pa.Table:
    return pa.table({"id": orders["id"], "cents": [round(100 * p) for p in orders["price"].to_pylist()]})


@pipeline.table(["orders"], [DatasetSpec("broken", key="id")])
def breaks(orders: pa.Table) -> pa.Table:
    if not Path("mended").exists():
        raise ValueError("no good")
    return orders


@pipeline.table(["broken"], [DatasetSpec("after", key="id")])
def follows(broken: pa.Table) -> pa.Table:
    return broken


@pipeline.column(orders, returns="float64")
def double(price: float) -> float:
    return 2 * price
"""
COMMAND = [
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from floodmark.cli import main; main()",
]


@pytest.fixture
def flow(run, folder: Path, steps) -> Path:
    """A project of five nodes, one of which fails until there is a file `mended`."""
    (folder / "floodmark.toml").write_text('lake = "lake"\npipeline = "pipeline.py"\n')
    (folder / "pipeline.py").write_text(FLOW)
    (folder / "data").mkdir()
    (folder / "data" / "a.csv").write_text("id,price\n1,1.5\n2,2.5\n")
    run("init")
    return folder


def untimed(text: str) -> str:
    return re.sub(r" \(\d+(\.\d+)? s\)", "", text)


def said(answer) -> list[str]:
    return [untimed(line) for line in answer.lines]


@pytest.mark.process
def test_everything_runs_in_its_order_and_a_failure_stops_only_what_needs_it(run, flow):
    answer = run("run")
    assert answer.code == 1
    assert said(answer) == [
        "ingest_orders: 2 rows read; rows: 2 new",
        "to_cents: 2 keys processed; rows: 2 new",
        "orders.double: 2 rows computed",
        "follows: skipped, because breaks failed",
    ]
    assert "error: breaks: the function of step 'breaks' failed: ValueError: no good" in answer.err
    assert "5 steps: 3 done, 1 failed, 1 skipped" in answer.err


def test_what_failed_and_what_was_skipped_is_done_by_the_next_run(run, flow):
    run("run")
    (flow / "mended").touch()
    answer = run("run")
    assert answer.code == 0
    assert said(answer) == [
        "ingest_orders: nothing to do",
        "to_cents: nothing to do",
        "breaks: computed from orders; rows: 2 new",
        "orders.double: nothing to do",
        "follows: computed from broken; rows: 2 new",
    ]


@pytest.mark.slow
def test_json_has_every_node_with_what_became_of_it(run, flow):
    answer = run("run", "--json")
    assert (answer.code, answer.err) == (1, "")
    found = {one["step"]: one for one in answer.json["runs"]}
    assert {name: one["state"] for name, one in found.items()} == {
        "ingest_orders": "done",
        "to_cents": "done",
        "breaks": "failed",
        "orders.double": "done",
        "follows": "skipped",
    }
    assert found["breaks"]["error"]["type"] == "StepFailed"
    assert found["follows"]["why"] == "breaks failed"
    assert (found["orders.double"]["kind"], found["orders.double"]["computed"]) == ("column", 2)
    assert all(one["seconds"] >= 0 for one in found.values())


def test_labels_choose_what_runs(run, flow):
    assert said(run("run", "--label", "stage=in")) == ["ingest_orders: 2 rows read; rows: 2 new"]
    answer = run("run", "--label", "stage=none")
    assert (answer.code, answer.out) == (0, "")
    assert "no such steps" in answer.err


def test_a_column_is_named_with_its_dataset(run, flow):
    run("run", "ingest_orders")
    assert said(run("run", "orders.double")) == ["orders.double: 2 rows computed"]


def test_where_keeps_some_keys_of_a_step_and_some_rows_of_a_column(run, flow):
    run("run", "ingest_orders")
    assert run("run", "to_cents", "orders.double", "--where", "id = 2").code == 0
    lake = Lake("lake")
    assert lake["cents"].to_arrow().to_pylist() == [{"id": 2, "cents": 250}]
    assert sorted(lake["orders"].to_arrow()["double"].to_pylist(), key=str) == [5.0, None]
    run("run", "to_cents")
    assert lake["cents"].count() == 2


def test_where_that_means_nothing_is_refused_before_anything_runs(run, flow):
    answer = run("run", "ingest_orders", "to_cents", "--where", "id = 2")
    assert (answer.code, answer.out) == (1, "")
    assert "--where does not apply to step 'ingest_orders'" in answer.err
    run("run", "ingest_orders")
    answer = run("run", "to_cents", "--where", "price > 1")
    assert answer.code == 1
    assert "a condition on the transform keys: id" in answer.err


def test_dry_run_says_what_would_be_done_and_does_nothing(run, flow):
    answer = run("run", "--dry-run")
    assert answer.code == 0
    assert answer.lines == [
        "ingest_orders: 1 new file",
        "to_cents: the changes of ingest_orders",
        "breaks: the changes of ingest_orders",
        "orders.double: the changes of ingest_orders",
        "follows: the changes of breaks",
    ]
    assert list(Lake("lake")) == []
    run("run", "ingest_orders")
    assert run("run", "--dry-run").lines == [
        "ingest_orders: nothing to do",
        "to_cents: 2 new records",
        "breaks: 2 new records",
        "orders.double: add the column, and compute 2 rows",
        "follows: the changes of breaks",
    ]
    assert run("run", "follows", "--dry-run").lines == ["follows: waits: there is no 'broken' yet"]
    (flow / "mended").touch()
    run("run")
    found = run("run", "--dry-run", "--json").json["plans"]
    assert [one["does"] for one in found] == [False] * 5


def test_second_run_at_once_says_who_is_running(run, flow):
    with hold_run_lock(Lake("lake").store, time.time_ns):
        answer = run("run")
        assert (answer.code, answer.out) == (1, "")
        assert f": process {os.getpid()} on " in answer.err
        assert run("run", "--json").json["error"]["type"] == "Busy"
        assert run("run", "--dry-run").code == 0
    assert list(Lake("lake")) == []


def test_wrong_pipeline_is_one_error_with_file_and_line_before_anything_runs(run, flow):
    pipeline = flow / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('["broken"], [D', '["brokn"], [D'))
    answer = run("run")
    assert (answer.code, answer.out) == (1, "")
    line = pipeline.read_text().splitlines().index('@pipeline.table(["brokn"], [DatasetSpec("after", key="id")])') + 1
    assert f"{pipeline}, line {line}: there is no dataset 'brokn', which step 'follows' reads" in answer.err
    assert "did you mean 'broken'?" in answer.err
    assert list(Lake("lake")) == []


def test_circle_is_one_error_that_names_it(run, flow):
    pipeline = flow / "pipeline.py"
    pipeline.write_text(
        pipeline.read_text().replace('(["orders"], [DatasetSpec("broken"', '(["after"], [DatasetSpec("broken"')
    )
    answer = run("run", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (1, "BadPipeline")
    assert "→ broken →" in answer.json["error"]["message"]


def test_settings_of_the_project_reach_the_run(run, flow):
    (flow / "floodmark.toml").write_text('lake = "lake"\n[defaults]\nworkers = 0\n')
    answer = run("run")
    assert answer.code == 1
    assert "workers = 0 in [defaults]" in answer.err


@pytest.mark.process
def test_watch_goes_on_as_files_come_and_says_only_what_was_done(run, flow):
    (flow / "mended").touch()
    command = [*COMMAND, "run", "--watch", "--every", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(5)]
        assert {one["step"] for one in first} == {"ingest_orders", "to_cents", "breaks", "orders.double", "follows"}
        (flow / "data" / "b.csv").write_text("id,price\n3,3.5\n")
        second = [json.loads(process.stdout.readline()) for _ in range(5)]
        assert [one["new"] for one in second if one["step"] == "to_cents"] == [1]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert Lake("lake")["after"].count() == 3


def test_watch_ends_after_the_seconds_given(run, flow):
    (flow / "mended").touch()
    answer = run("run", "--watch", "--watch-seconds", "0")
    assert answer.code == 0
    assert "to_cents: 2 keys processed; rows: 2 new" in said(answer)


@pytest.mark.process
def test_run_with_nothing_to_do_needs_neither_spark_nor_pandas(run, flow):
    (flow / "mended").touch()
    run("run")
    code = (
        "import sys; from floodmark.cli.app import floodmark\n"
        "try: floodmark(['run'])\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, sorted({'pyspark', 'pandas', 'polars', 'sqlalchemy', 'duckdb'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert found.stdout.splitlines()[-1] == "0 []"
    assert found.stdout.count("nothing to do") == 5


@pytest.mark.process
def test_what_functions_print_is_not_in_the_answer(run, flow):
    (flow / "mended").touch()
    text = (flow / "pipeline.py").read_text().replace("    return broken", "    print('hello')\n    return broken")
    (flow / "pipeline.py").write_text(text)
    assert "hello" not in run("run").out
