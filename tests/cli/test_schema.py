"""`floodmark schema` shows columns, types and the event time."""

from __future__ import annotations


def test_schema_marks_the_event_time(run, trips):
    lines = run("schema", trips).lines
    assert lines[0].split() == ["column", "type", "nulls", "role"]
    assert [line.split()[0] for line in lines[1:]] == ["id", "pickup_at", "fare", "pay"]
    assert [line for line in lines if line.endswith("event time")] == [lines[2]]


def test_schema_as_json(run, trips):
    found = run("schema", trips, "--json").json
    assert (found["dataset"], found["event_time"]) == ("trips", "pickup_at")
    assert found["columns"][1] == {"name": "pickup_at", "type": "timestamp[us, tz=UTC]", "nullable": False}


def test_dataset_without_columns_says_so(run, folder):
    from floodmark import Lake

    Lake(folder / "lake").create("empty", event_time="at")
    assert "no columns yet" in run("schema", "empty").err
    assert run("schema", "empty", "--json").json == {
        "dataset": "empty",
        "event_time": "at",
        "merge": "append",
        "key": [],
        "compare": None,
        "lookup": [],
        "system_columns": ["offset", "op", "system_time"],
        "columns": [],
        "computed": [],
    }


def test_dataset_without_event_time_says_what_counts_instead(run, folder):
    run("init")
    (folder / "a.csv").write_text("x\n1\n")
    run("ingest", "numbers", "a.csv")
    assert "time of writing" in run("schema", "numbers").err


def test_system_columns_with_other_names_are_shown(run, folder):
    run("init")
    (folder / "clicks.csv").write_text("offset,value\n100,a\n")
    assert run("ingest", "clicks", "clicks.csv", "--vocab", "offset=_offset,op=_op").code == 0
    assert "The system columns are _offset, _op, system_time." in run("schema", "clicks").err
    assert run("schema", "clicks", "--json").json["system_columns"] == ["_offset", "_op", "system_time"]
