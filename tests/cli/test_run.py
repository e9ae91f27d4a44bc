"""`floodmark run` brings the outputs of steps up to date, and says what it did."""

from __future__ import annotations

import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from cli.user import PATIENCE, wait_for
from floodmark import Lake


def rows(name, key="id"):
    return Lake("lake")[name].to_arrow().sort_by(key).to_pylist()


def cents():
    return {row["id"]: row["cents"] for row in rows("prices")}


def untimed(text):
    """A line without how long it took."""
    return text.rpartition(" (")[0]


@pytest.mark.process
def test_run_processes_what_changed_and_counts_what_failed(run, orders):
    answer = run("run", "prices")
    assert answer.code == 0
    assert untimed(answer.out) == "prices: 2 of 3 keys succeeded, 1 failed; rows: 2 new"
    assert "1 key failed and has no rows in the output: `floodmark errors prices` shows why" in answer.err
    assert cents() == {1: 150, 3: 250}


def test_next_run_processes_only_changes_and_failures(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [3, 4], "text": ["3.5", "4.5"]}))
    orders.delete([1])
    assert (
        untimed(run("run", "prices").out)
        == "prices: 3 of 4 keys succeeded, 1 failed; rows: 1 new, 1 changed, 1 retracted"
    )
    assert cents() == {3: 350, 4: 450}


def test_typo_in_a_function_fails_the_run_and_readers_keep_the_rows(run, orders, folder):
    run("run")
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("round(100 *", "rund(100 *"))
    answer = run("run", "prices", "total", "--strict")
    assert answer.code == 1
    assert "error: prices: all 3 newly tried keys failed; first error: NameError: name 'rund'" in answer.err
    assert cents() == {1: 150, 3: 250}
    (state,) = run("status", "prices", "--json").json["steps"]
    assert state["state"] == (
        "last run failed, must process everything: its function changed, "
        "0 of 3 succeeded, 3 failed, 2 show older results"
    )
    assert (state["failed"], state["showing_older"]) == (3, 2)
    assert run("run", "prices").code == 0, "it only retries known failures"
    assert cents() == {1: 150, 3: 250}


def test_removed_step_is_mentioned_by_run_and_status(run, orders, folder):
    run("run")
    pipeline = folder / "pipeline.py"
    lines = pipeline.read_text().splitlines()
    pipeline.write_text("\n".join(line for line in lines if "DatatableTransform(total" not in line))
    mentioned = "total (DatatableTransform) is not in the pipeline any more: dataset 'total' stays and is not updated"
    assert mentioned in run("run").err
    assert mentioned in run("status").err
    assert mentioned not in run("run", "prices").err
    for verb in ("run", "status"):
        [found] = run(verb, "--json").json["removed"]
        assert (found["name"], found["dataset"], found["column"]) == ("total", "total", None)
    assert run("drop", "total", "--yes").code == 0
    assert "not in the pipeline" not in run("run").err + run("status").err


def test_failed_key_that_had_succeeded_shows_older_results(run, orders, folder):
    (folder / "mended").touch()
    run("run", "prices")
    (folder / "mended").unlink()
    orders.write(pa.table({"id": [2, 3], "text": ["gratis", "3.5"]}))
    answer = run("run", "prices")
    assert untimed(answer.out) == "prices: 1 of 2 keys succeeded, 1 failed; rows: 1 changed"
    assert "1 key failed and shows older results: `floodmark errors prices` shows why" in answer.err
    assert run("status", "prices").lines[1].endswith("2 of 3 succeeded, 1 failed, showing older results")
    assert run("errors", "prices").lines[1].endswith("retry  older")


def test_second_run_has_nothing_to_do(run, orders, folder):
    (folder / "mended").touch()
    run("run", "prices")
    answer = run("run", "prices")
    assert (answer.code, answer.out, answer.err) == (0, "prices: nothing to do\n", "")


def test_strict_run_in_which_keys_failed_exits_1_with_the_others_committed(run, orders, folder):
    assert run("run", "prices", "--strict").code == 1
    assert cents() == {1: 150, 3: 250}
    (folder / "mended").touch()
    assert run("run", "prices", "--strict").code == 0


def test_strict_with_json_still_prints_the_report(run, orders):
    answer = run("run", "prices", "--strict", "--json")
    assert (answer.code, answer.err) == (1, "")
    assert answer.json["runs"][0]["failed"] == 1


def test_json_has_every_count(run, orders):
    (found,) = run("run", "prices", "--json").json["runs"]
    assert len(found.pop("run")) == 32
    assert found.pop("seconds") > 0
    assert found.pop("called") >= 3  # the failing chunk is called again in parts
    assert found == {
        "step": "prices",
        "kind": "step",
        "state": "done",
        "keys": 3,
        "unchanged": 0,
        "duplicates": 0,
        "failed": 1,
        "reused": 0,
        "commits": 1,
        "new": 2,
        "changed": 0,
        "retracted": 0,
        "positions": {"orders": 2},
        "nothing": False,
        "skipped": 0,
        "problem": "",
        "column_changes": [],
        "restored": [],
    }


def test_named_steps_run_in_the_order_of_what_they_read_and_each_once(run, orders):
    answer = run("run", "total", "goods", "prices", "goods")
    assert [untimed(line) for line in answer.lines] == [
        "goods: 2 rows read; rows: 2 new",
        "prices: 2 of 3 keys succeeded, 1 failed; rows: 2 new",
        "total: computed from prices; rows: 1 new",
    ]
    assert rows("total", "what") == [{"what": "all", "cents": 400}]


def test_steps_without_changes_say_so(run, orders):
    run("run", "goods", "prices", "total")
    answer = run("run", "goods", "total")
    assert [line.partition(" (")[0] for line in answer.lines] == [
        "goods: 2 rows read; rows: nothing changed",
        "total: nothing to do",
    ]


def test_step_that_cannot_run_is_refused_before_others_do(run, orders):
    Lake("lake").drop("orders")
    answer = run("run", "goods", "prices")
    assert (answer.code, answer.out) == (1, "")
    assert "there is no dataset 'orders'" in answer.err
    assert "goods" not in Lake("lake")


# Some of the keys


def test_filter_keeps_some_keys_and_the_next_run_does_the_rest(run, orders):
    assert run("run", "prices", "--filter", "id=3", "--json").json["runs"][0]["keys"] == 1
    assert cents() == {3: 250}
    assert run("run", "prices", "--json").json["runs"][0]["keys"] == 2
    assert cents() == {1: 150, 3: 250}


def test_filter_of_one_key_twice_means_either(run, orders):
    run("run", "prices", "--filter", "id=3", "--filter", "id=1")
    assert cents() == {1: 150, 3: 250}


def test_filter_by_another_column_keeps_the_keys_that_have_such_a_row(run, orders):
    assert run("run", "prices", "--filter", "text=2.5", "--json").json["runs"][0]["keys"] == 1
    assert cents() == {3: 250}


def test_filter_by_what_is_no_column_names_the_transform_keys(run, orders):
    answer = run("run", "prices", "--filter", "colour=red")
    assert (answer.code, answer.out) == (1, "")
    assert "'colour', which is neither a transform key nor a column of an input" in answer.err
    assert "use a transform key (id) or another column" in answer.err


def test_filter_value_of_another_type_is_refused_with_an_example(run, orders):
    answer = run("run", "prices", "--filter", "id=one")
    assert answer.code == 1
    assert "write it like id=7" in answer.err


@pytest.mark.parametrize("text", ["id", "=3"])
def test_filter_without_a_key_or_value_is_not_understood(run, orders, text):
    answer = run("run", "prices", "--filter", text)
    assert answer.code == 2
    assert "COLUMN=VALUE" in answer.err


def test_max_records_leaves_the_rest_to_the_next_run(run, orders):
    (found,) = run("run", "prices", "--max-records", "1", "--json").json["runs"]
    assert (found["keys"], cents()) == (1, {1: 150})
    run("run", "prices")
    assert cents() == {1: 150, 3: 250}


def test_commit_every_makes_several_commits(run, orders, folder):
    (folder / "mended").touch()
    answer = run("run", "prices", "--commit-every", "1")
    assert "(3 commits, " in answer.out
    assert cents() == {1: 150, 2: 0, 3: 250}


@pytest.mark.parametrize("option", [["--max-records", "1"], ["--filter", "item=nut"], ["--commit-every", "5"]])
@pytest.mark.parametrize("step", ["goods", "total"])
def test_option_that_means_nothing_to_a_step_is_refused_before_anything_runs(run, orders, step, option):
    answer = run("run", "prices", step, *option)
    assert (answer.code, answer.out) == (1, "")
    assert f"{option[0]} does not apply to step {step!r}" in answer.err
    assert "prices" not in Lake("lake")


def test_full_run_computes_everything_and_writes_only_what_differs(run, orders, folder):
    (folder / "mended").touch()
    run("run", "prices", "total")
    found = run("run", "prices", "total", "--full", "--json").json["runs"]
    assert [(one["step"], one["keys"], one["called"]) for one in found] == [("prices", 3, 3), ("total", 1, 1)]
    assert not any(one[what] for one in found for what in ("new", "changed", "retracted"))


@pytest.mark.parametrize("option", [["--where", "true"], ["--watch"], ["--max-records", "1"], ["--filter", "id=1"]])
def test_full_run_of_a_part_is_not_understood(run, orders, option):
    answer = run("run", "prices", "--full", *option)
    assert (answer.code, "--full computes everything once" in answer.err) == (2, True)


def test_dry_run_of_everything_says_so(run, orders):
    assert run("run", "prices", "--full", "--dry-run").out == "prices: everything, because of --full\n"
    assert "prices" not in Lake("lake")


EXTERNAL = """\
import floodmark as fm

pipeline = fm.Pipeline([fm.UpdateExternalTable("goods", "sqlite:///goods.db#goods", key="item")])
"""


@pytest.mark.slow
def test_full_run_of_an_external_table_retracts_what_is_gone(run, orders, folder):
    import sqlite3

    (folder / "pipeline.py").write_text(EXTERNAL)
    with sqlite3.connect("goods.db") as connection:
        connection.execute("create table goods (item text primary key, updated_at integer)")
        connection.execute("insert into goods values ('nut', 1), ('bolt', 2)")
    assert untimed(run("run", "update_goods").out) == "update_goods: 2 rows read; rows: 2 new"
    with sqlite3.connect("goods.db") as connection:
        connection.execute("delete from goods where item = 'nut'")
    connection.close()
    assert untimed(run("run", "update_goods").out).endswith("rows: nothing changed")
    answer = run("run", "update_goods", "--full")
    assert untimed(answer.out) == "update_goods: 1 row read; rows: 1 retracted, 1 unchanged"


# Failures of functions


@pytest.mark.process
def test_function_that_may_not_fail_ends_the_run_with_its_traceback(run, orders, folder):
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('["prices"], labels', '["prices"], on_error="fail_fast", labels'))
    answer = run("run", "prices")
    assert (answer.code, answer.out) == (1, "")
    assert "could not convert string to float: 'free'" in answer.err
    assert f'File "{pipeline}", line ' in answer.err


@pytest.mark.process
def test_what_functions_print_is_not_in_the_answer(run, orders, folder):
    pipeline = folder / "pipeline.py"
    text = pipeline.read_text().replace("    yield pa.table", "    print('hello')\n    yield pa.table")
    pipeline.write_text(text.replace("    texts = orders", "    print('hello')\n    texts = orders"))
    answer = run("run", "goods", "prices", "--json")
    assert [one["step"] for one in answer.json["runs"]] == ["goods", "prices"]


def test_generator_that_fails_is_said_with_its_line(run, orders, folder):
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("    yield pa.table", "    1 / 0\n    yield pa.table"))
    answer = run("run", "goods")
    assert answer.code == 1
    assert "ZeroDivisionError" in answer.err
    assert f"{pipeline}, line 10" in answer.err


# Stopping


SLOW = """\
import time
from pathlib import Path

import pyarrow as pa

import floodmark as fm


def slow(orders: pa.Table) -> pa.Table:
    while 2 in orders["id"].to_pylist() and not Path("go").exists():
        Path("begun").touch()
        time.sleep(0.02)
    return pa.table({"id": orders["id"], "n": orders["id"]})


pipeline = fm.Pipeline([fm.BatchTransform(slow, ["orders"], ["slow"], chunk_size=1)])
"""
COMMAND = [
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from floodmark.cli import main; main()",
]


@pytest.mark.process
def test_ctrl_c_exits_130_and_the_same_command_goes_on(run, orders, folder):
    (folder / "pipeline.py").write_text(SLOW)
    command = [*COMMAND, "run", "slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(folder / "begun", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    assert out == ""
    assert "interrupted: results of step slow are stored about every ten seconds" in err
    assert "Traceback" not in err
    (folder / "go").touch()
    assert run("run", "slow", "--json").json["runs"][0]["keys"] == 3
    assert [row["n"] for row in rows("slow")] == [1, 2, 3]
