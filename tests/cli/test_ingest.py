"""`floodmark ingest` appends files, all or none."""

from __future__ import annotations

import pytest

from floodmark.engine.progress import LineProgress


def names(run):
    return [d["name"] for d in run("list", "--json").json["datasets"]]


def test_first_ingest_makes_the_dataset(run, trips_file):
    run("init")
    answer = run("ingest", "trips", str(trips_file), "--event-time", "pickup_at", "--json")
    assert answer.code == 0
    found = answer.json
    assert (found["created"], found["written"], found["start"], found["end"]) == (True, True, 0, 3)
    assert found["watermark"] == "2026-01-03T00:00:00+00:00"
    assert run("schema", "trips", "--json").json["event_time"] == "pickup_at"


def test_second_ingest_appends(run, trips, trips_file):
    answer = run("ingest", trips, str(trips_file))
    assert "+3 records, offsets 3–5" in answer.out
    assert "created" not in answer.out


def test_several_files_are_one_commit(run, folder):
    run("init")
    (folder / "a.csv").write_text("x\n1\n2\n")
    (folder / "b.csv").write_text("x\n3\n")
    answer = run("ingest", "numbers", "a.csv", "b.csv", "--json")
    assert (answer.json["start"], answer.json["end"]) == (0, 3)


def test_read_names_the_format_of_a_file_without_one(run, folder):
    run("init")
    (folder / "lines").write_text('{"x": 1}\n')
    assert run("ingest", "numbers", "lines").code == 1
    assert run("ingest", "numbers", "lines", "--read", "json").code == 0


def test_same_source_and_state_are_written_once(run, trips, trips_file):
    pair = ["--source", "files", "--state", "17"]
    first = run("ingest", trips, str(trips_file), *pair, "--json").json
    again = run("ingest", trips, str(trips_file), *pair, "--json").json
    assert (first["written"], again["written"]) == (True, False)
    assert again["block"] == first["block"]
    assert "nothing to do" in run("ingest", trips, str(trips_file), *pair).out
    assert run("sql", "select count(*) n from trips", "--json").json["rows"] == [{"n": 6}]


@pytest.mark.parametrize("half", [["--source", "files"], ["--state", "17"]])
def test_source_and_state_go_together(run, trips, trips_file, half):
    answer = run("ingest", trips, str(trips_file), *half)
    assert answer.code == 2
    assert "must be given together" in answer.err


def test_other_event_time_is_refused(run, trips, trips_file):
    answer = run("ingest", trips, str(trips_file), "--event-time", "fare")
    assert answer.code == 1
    assert "'pickup_at', not 'fare'" in answer.err
    assert run("ingest", trips, str(trips_file), "--event-time", "pickup_at").code == 0


def test_event_time_for_a_dataset_without_one_is_refused(run, folder):
    run("init")
    (folder / "a.csv").write_text("x\n1\n")
    run("ingest", "numbers", "a.csv")
    assert run("ingest", "numbers", "a.csv", "--event-time", "x").code == 1


@pytest.mark.parametrize(
    ("content", "event_time"),
    [("x\n1\n", "when"), ("x\n1\n", "x"), ("x\n", None), ("x,y\n1,2\n3\n", None), (None, None)],
    ids=["no such column", "not a time", "no rows", "broken row", "no file"],
)
def test_refused_first_ingest_leaves_no_dataset(run, folder, content, event_time):
    run("init")
    if content is not None:
        (folder / "a.csv").write_text(content)
    option = [] if event_time is None else ["--event-time", event_time]
    answer = run("ingest", "numbers", "a.csv", *option)
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert names(run) == []


def test_refused_ingest_leaves_an_older_dataset(run, trips, folder):
    (folder / "a.csv").write_text("x\n1\n")
    assert run("ingest", trips, "a.csv").code == 1
    assert names(run) == ["trips"]


def test_progress_is_shown_on_stderr_and_not_with_json(run, trips, trips_file, monkeypatch):
    monkeypatch.setitem(LineProgress.__init__.__kwdefaults__, "every", 0.0)
    shown = run("ingest", trips, str(trips_file))
    assert "writing trips: 3 of 3 rows" in shown.err
    assert "rows" not in shown.out
    assert run("ingest", trips, str(trips_file), "--json").err == ""


def test_address_is_refused_and_leaves_no_dataset(run):
    run("init")
    answer = run("ingest", "numbers", "s3://bucket/*.csv")
    assert (answer.code, names(run)) == (1, [])
    assert "'s3://bucket/*.csv' is an address, and files are read from folders of this machine only" in answer.err


def test_source_at_an_address_is_an_error_with_its_line(run, folder):
    run("init")
    (folder / "pipeline.py").write_text(
        "from floodmark import Pipeline, Source\n\npipeline = Pipeline([Source('n', files='s3://bucket/*.csv')])\n"
    )
    answer = run("run")
    assert answer.code != 0
    assert "files='s3://bucket/*.csv' of source 'ingest_n' is an address" in answer.err
    assert "pipeline.py" in answer.err


def test_values_in_folder_names_are_columns(run, folder):
    run("init")
    for day in (1, 2):
        (folder / "hive" / f"dt=2026-01-0{day}").mkdir(parents=True)
        (folder / "hive" / f"dt=2026-01-0{day}" / "a.csv").write_text(f"n\n{day}\n")
    assert run("ingest", "numbers", "hive/*/*.csv").code == 0
    rows = run("sql", "select n, cast(dt as text) dt from numbers order by n", "--json").json["rows"]
    assert rows == [{"n": 1, "dt": "2026-01-01"}, {"n": 2, "dt": "2026-01-02"}]


def test_value_that_does_not_fit_is_refused_with_its_line(run, folder):
    run("init")
    (folder / "a.csv").write_text("id,v\n12345678901234567890,1\n12345678901234567891,2\n")
    assert run("ingest", "numbers", "a.csv", "--key", "id").code == 0
    assert "12345678901234567891" in run("sql", "select id from numbers").out
    (folder / "b.csv").write_text("id,v\n1,1\n007,2\n")
    answer = run("ingest", "numbers", "b.csv")
    assert answer.code == 1
    assert "b.csv, line 3: the value '007' of column 'id' does not fit decimal128(38, 0)" in answer.err
