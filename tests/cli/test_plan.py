"""`floodmark plan` says what a run would do and why, and does nothing."""

from __future__ import annotations

import sqlite3

import pyarrow as pa

from floodmark import Lake


def test_plan_before_the_first_run_has_everything_and_makes_nothing(run, orders):
    answer = run("plan", "prices")
    assert answer.code == 0
    assert answer.lines[:4] == [
        "prices: 3 keys to process (3 new)",
        "input   done up to  head  new records  keys  to be read",
        "orders           -     2            3     3  3 records, 0 to 2",
        "map: the rows of the changed slices, in order",
    ]
    assert answer.lines[4] == "changelist v2: only records after the offsets"
    assert "prices" not in Lake("lake")


def test_plan_counts_new_changed_and_failed_keys(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [1, 3, 4, 5, 6], "text": ["2", "3", "4", "5", "6"]}))
    answer = run("plan", "prices")
    assert answer.lines[0] == "prices: 6 keys to process (3 new, 2 changed, 1 failed before)"
    assert answer.lines[2].split() == ["orders", "2", "9", "7", "5", "7", "records,", "3", "to", "9"]


def test_plan_is_what_the_run_then_does(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [3, 4], "text": ["3.5", "4.5"]}))
    planned = run("plan", "prices", "--json").json["plans"][0]["plan"]["keys"]
    assert run("run", "prices", "--json").json["runs"][0]["keys"] == planned


def test_plan_without_changes_has_nothing_to_do(run, orders, folder):
    (folder / "mended").touch()
    run("run", "prices")
    answer = run("plan", "prices")
    assert answer.lines[0] == "prices: nothing to do"
    assert answer.lines[2].split()[-1] == "nothing"


def test_plan_says_when_looking_beyond_offsets_does_not_pay(run, orders):
    assert run("plan", "prices").lines[-1].endswith("saves nothing")
    run("run", "prices")
    orders.write(pa.table({"id": [4], "text": ["4.5"]}))
    assert "only 3 keys were processed so far" in run("plan", "prices").lines[-1]


def test_plan_of_a_step_that_looks_at_all_keys_says_so(run, orders, folder):
    pipeline = folder / "pipeline.py"
    pipeline.write_text(
        pipeline.read_text().replace('["prices"], lab', '["prices"], use_offset_optimization=False, lab')
    )
    lines = run("plan", "prices").lines
    assert "changelist v1: all keys, independent of the offsets" in lines
    assert lines[2].endswith("all 3 records")


def test_plan_of_a_changed_function_says_why_everything_is_processed(run, orders, folder):
    run("run", "prices")
    pipeline = folder / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace("round(100 *", "round(1000 *"))
    answer = run("plan", "prices")
    assert answer.lines[0] == "prices: 3 keys to process: all keys, because its function changed"
    assert not any("changelist" in line for line in answer.lines)


def test_plan_of_other_kinds_of_steps(run, orders):
    run("run", "prices")
    assert run("plan", "goods", "total").lines == [
        "goods: calls its function, and writes changes to goods",
        "",
        "total: computes everything, because 'total' has no results yet",
        "input   done up to  head  new records",
        "prices           -     1            2",
    ]


def test_plan_of_an_external_table_counts_the_rows_to_read(run, orders, folder):
    text = 'import floodmark as fm\npipeline = fm.Pipeline([fm.UpdateExternalTable("goods", "sqlite:///g.db#goods")])\n'
    (folder / "pipeline.py").write_text(text)
    connection = sqlite3.connect("g.db")
    with connection:
        connection.execute("create table goods (item text primary key, updated_at integer)")
        connection.execute("insert into goods values ('nut', 1), ('bolt', 7)")
    connection.close()
    assert run("plan", "update_goods").out.startswith("update_goods: 2 rows to read from sqlite:")
    assert run("plan", "update_goods").out.endswith(": all of it\n")
    run("run", "update_goods")
    assert run("plan", "update_goods").out.endswith("where updated_at is 7 or later\n")


def test_json_has_the_plan_of_every_step(run, orders):
    answer = run("plan", "goods", "prices", "--json")
    goods, prices = answer.json["plans"]
    assert goods == {"step": "goods", "kind": "BatchGenerate", "plan": None}
    reads = "3 records, 0 to 2"
    assert prices["plan"]["inputs"] == [
        {"name": "orders", "previous": -1, "head": 2, "records": 3, "keys": 3, "reads": reads, "unchanged": 0}
    ]
    assert (prices["plan"]["kind"], prices["plan"]["changelist"], prices["plan"]["failed"]) == ("map", 2, 0)
