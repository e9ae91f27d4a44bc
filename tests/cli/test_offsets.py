"""`floodmark offsets` is the seed's offset table: transform, input, offset, and its time."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa


def test_offsets_before_any_run_are_none(run, orders):
    assert run("offsets").lines == [
        "transform  input   offset  time",
        "prices     orders       -  -",
        "total      prices       -  -",
    ]


def test_offset_is_the_newest_record_done_with_the_time_of_its_commit(run, orders):
    run("run", "prices")
    assert run("offsets").lines[1].split()[:3] == ["prices", "orders", "2"]
    (found,) = run("offsets", "prices", "--json").json["offsets"]
    committed = orders.changes_arrow(since=1).to_pylist()[0]["system_time"]
    assert abs((datetime.fromisoformat(found["time"]) - committed).total_seconds()) < 0.01


def test_offset_stays_where_a_limited_run_has_left_off(run, orders):
    run("run", "prices", "--max-records", "1")
    (found,) = run("offsets", "prices", "--json").json["offsets"]
    assert found["offset"] == 0


def test_filtered_run_moves_no_offset(run, orders):
    run("run", "prices", "--filter", "id=3")
    (found,) = run("offsets", "prices", "--json").json["offsets"]
    assert (found["transform"], found["input"], found["offset"], found["time"]) == ("prices", "orders", None, None)


def test_failed_key_holds_no_offset_back(run, orders):
    run("run", "prices")
    orders.write(pa.table({"id": [4, 5], "text": ["x", "1"]}))
    run("run", "prices")
    (found,) = run("offsets", "prices", "--json").json["offsets"]
    assert found["offset"] == 4


def test_whole_dataset_steps_have_offsets_too(run, orders):
    run("run", "prices", "total")
    assert run("offsets", "total").lines[1].split()[:3] == ["total", "prices", "1"]


def test_sources_read_no_dataset(run, orders):
    answer = run("offsets", "goods")
    assert (answer.code, answer.out) == (0, "")
    assert "no step reads a dataset" in answer.err
