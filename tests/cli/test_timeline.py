"""`floodmark timeline` shows rows in event-time order and draws the pieces that they lie in."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.cli.timeline import _first_rows

START = datetime(2026, 11, 1, tzinfo=UTC)
HOURS_OF_TWO_DAYS = range(48)


@pytest.fixture
def file(folder: Path):
    """`file("late", [3, 27])`: a file of readings at these hours after midnight of the first of November."""

    def make(name: str, hours) -> str:
        times = [START + timedelta(hours=hour) for hour in hours]
        ids = pa.array([int(60 * hour) for hour in hours], pa.int64())
        pq.write_table(
            pa.table({"id": ids, "at": pa.array(times, pa.timestamp("us", "UTC"))}), folder / f"{name}.parquet"
        )
        return f"{name}.parquet"

    return make


@pytest.fixture
def ticks(run, file) -> str:
    """Two days of hourly rows in row groups of eight, and two rows that came late."""
    run("init")
    made = ("--event-time", "at", "--partition-by", "day", "--row-group-size", "8")
    assert run("ingest", "ticks", file("first", HOURS_OF_TWO_DAYS), *made).code == 0
    assert run("ingest", "ticks", file("late", [2.5, 30.5])).code == 0
    return "ticks"


def ids(answer) -> list[int]:
    return [row["id"] for row in answer.json["rows"]]


def test_rows_come_in_event_time_order(run, ticks):
    found = run("timeline", ticks, "--json")
    assert ids(found) == sorted([60 * hour for hour in HOURS_OF_TWO_DAYS] + [150, 1830])
    assert found.json["dataset"] == "ticks"


def test_range_holds_its_start_and_not_its_end(run, ticks):
    assert ids(run("timeline", ticks, "2026-11-01T02:00Z", "2026-11-01T04:00Z", "--json")) == [120, 150, 180]
    assert ids(run("timeline", ticks, "2026-11-02T22:00Z", "--json")) == [46 * 60, 47 * 60]


def test_text_has_a_line_per_row(run, ticks):
    lines = run("timeline", ticks, "2026-11-01", "2026-11-01T03:00Z").lines
    assert lines[0].split() == ["id", "at"]
    assert len(lines) == 1 + 4
    assert "2026-11-01 02:30:00+00:00" in lines[-1]


def test_columns_are_those_that_are_named(run, ticks):
    found = run("timeline", ticks, "--columns", "offset,id", "--limit", "1", "--json").json
    assert found["rows"] == [{"offset": 0, "id": 0}]


def test_limit_takes_the_earliest_and_says_that_there_are_more(run, ticks):
    answer = run("timeline", ticks, "--limit", "4")
    assert len(answer.lines) == 1 + 4
    assert answer.err == "… more\n"
    found = run("timeline", ticks, "--limit", "4", "--json")
    assert (ids(found), found.json["more"]) == ([0, 60, 120, 150], True)
    assert run("timeline", ticks, "--limit", "50", "--json").json["more"] is False
    assert run("timeline", ticks, "--limit", "50").err == ""


@pytest.mark.parametrize("limit", [1, 3, 4, 6])
def test_limit_reads_no_further_than_it_must(limit):
    read = []

    def batches():
        for start in (0, 3, 6):
            read.append(start)
            yield pa.record_batch({"n": list(range(start, start + 3))})

    reader = pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches())
    table, more = _first_rows(reader, limit)
    assert (table["n"].to_pylist(), more) == (list(range(limit)), True)
    assert read == [0, 3, 6][: limit // 3 + 1]


def test_nothing_in_the_range_is_said(run, ticks):
    answer = run("timeline", ticks, "2027-01-01", "2027-01-02")
    assert (answer.code, answer.out, answer.err) == (0, "", "ticks: no rows in this range\n")
    assert run("timeline", ticks, "2027-01-01", "2027-01-02", "--json").json["rows"] == []
    drawn = run("timeline", ticks, "2027-01-01", "2027-01-02", "--pieces")
    assert (drawn.code, drawn.err) == (0, "ticks: no pieces in this range\n")


def test_pieces_are_drawn_by_partition(run, ticks):
    answer = run("timeline", ticks, "--pieces")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.lines if line.startswith("2026-")] == ["2026-11-01", "2026-11-02"]
    assert sum(line.startswith("settled") for line in answer.lines) == 2
    assert all(len(line) < 80 for line in answer.lines)
    assert answer.err == ""


def test_pieces_of_a_range_are_drawn_alone(run, ticks):
    lines = run("timeline", ticks, "2026-11-02", "2026-11-03", "--pieces").lines
    assert [line.split()[0] for line in lines if line.startswith("2026-")] == ["2026-11-02"]


def test_pieces_outside_of_the_range_are_not_drawn(run, ticks):
    all_day = run("timeline", ticks, "2026-11-01", "2026-11-02", "--output", "day.svg", "--json").json["pieces"]
    found = run("timeline", ticks, "2026-11-01T00:00Z", "2026-11-01T02:00Z", "--output", "hours.svg", "--json").json
    assert 1 <= found["pieces"] < all_day


def test_json_of_pieces_has_the_figures(run, ticks):
    found = run("timeline", ticks, "--pieces", "--json").json
    assert (found["dataset"], found["applied"], found["behind"]) == ("ticks", 50, 0)
    assert found["last"]["late_rows"] == 2
    first, second = found["partitions"]
    assert (first["label"], first["start"], first["rows"]) == ("2026-11-01", "2026-11-01T00:00:00+00:00", 25)
    assert first["pieces"] >= 3
    assert {"row_groups", "waiting_rows", "waiting_pieces", "dead_rows", "dead_bytes", "amplification"} <= set(second)
    alone = run("timeline", ticks, "2026-11-02", "2026-11-03", "--pieces", "--json").json
    assert alone["partitions"] == [second]


def test_picture_goes_to_a_file(run, ticks, folder):
    answer = run("timeline", ticks, "--output", "ticks.svg")
    assert answer.code == 0
    assert answer.out.startswith("ticks: drew ")
    assert answer.out.endswith(" pieces to ticks.svg\n")
    root = ElementTree.fromstring((folder / "ticks.svg").read_text())
    assert "ticks by day" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    found = run("timeline", ticks, "--output", "ticks.SVG", "--json").json
    data = (folder / "ticks.SVG").read_bytes()
    assert data == (folder / "ticks.svg").read_bytes()
    assert (found["output"], found["size"]) == ("ticks.SVG", len(data))


def test_output_of_another_kind_is_refused(run, ticks, folder):
    answer = run("timeline", ticks, "--output", "ticks.png")
    assert answer.code == 2
    assert "must end in .svg" in answer.err
    assert not (folder / "ticks.png").exists()


def test_folder_that_is_not_there_is_named(run, ticks):
    answer = run("timeline", ticks, "--output", "no/such/ticks.svg")
    assert answer.code == 1
    assert answer.err.startswith("error: no/such/ticks.svg: No such file")


def test_options_that_do_not_go_together_are_refused(run, ticks):
    for options in (("--pieces", "--limit", "3"), ("--output", "a.svg", "--columns", "id")):
        answer = run("timeline", ticks, *options)
        assert (answer.code, "are for rows" in answer.err) == (2, True)


def test_range_that_cannot_be_is_refused_kindly(run, ticks):
    answer = run("timeline", ticks, "2026-11-03", "2026-11-01")
    assert answer.code == 1
    assert "ends before it starts" in answer.err
    assert "'yesterday' is not a time" in run("timeline", ticks, "yesterday").err


def test_dataset_without_a_timeline_is_told_how_to_have_one(run, trips):
    for options in ((), ("--pieces",), ("--pieces", "--json"), ("--output", "a.svg")):
        answer = run("timeline", trips, *options)
        assert answer.code == 1
        said = json.loads(answer.out)["error"]["hint"] if "--json" in options else answer.err
        assert "--partition-by" in said


def test_column_that_is_not_there_is_named(run, ticks):
    answer = run("timeline", ticks, "--columns", "prize")
    assert answer.code == 1
    assert "prize" in answer.err


def test_ingest_says_what_its_timeline_did(run, ticks, file):
    answer = run("ingest", ticks, file("later", [48, 49]))
    assert answer.lines[1].startswith("  timeline: no late rows, ")
    answer = run("ingest", ticks, file("late", [5.5]))
    assert answer.lines[1].startswith("  timeline: 1 late row, ")
    assert answer.lines[1].endswith(" × the new rows)")
    found = run("ingest", ticks, file("late", [6.5, 7.5]), "--json").json["timeline"]
    assert (found["rows"], found["late_rows"], found["behind"]) == (2, 2, 0)
    assert found["amplification"] == found["bytes_written"] / found["bytes_in"]
    last = run("timeline", ticks, "--pieces", "--json").json["last"]
    assert (found["bytes_written"], found["bytes_in"]) == (last["bytes_written"], last["bytes_in"])


def test_ingest_without_a_timeline_says_nothing_of_it(run, trips, trips_file):
    assert len(run("ingest", trips, str(trips_file)).lines) == 1
    assert run("ingest", trips, str(trips_file), "--json").json["timeline"] is None


def test_lazy_timeline_is_behind_and_read_all_the_same(run, file):
    run("init")
    options = ("--event-time", "at", "--partition-by", "hour", "--timeline", "lazy")
    answer = run("ingest", "slow", file("first", [3, 4]), *options)
    assert answer.lines[1] == "  timeline: 2 records behind"
    run("ingest", "slow", file("late", [1]))
    assert ids(run("timeline", "slow", "--json")) == [60, 180, 240]
    assert "slow: 3 newer records not in the timeline files yet" in run("timeline", "slow", "--pieces").err
    assert run("timeline", "slow", "--pieces", "--json").json["behind"] == 3


def test_settings_that_differ_are_refused(run, ticks, file):
    late = file("late", [1])
    for option, wanted in (
        ("--partition-by", "hour"),
        ("--row-group-size", "9"),
        ("--late-merge", "always"),
        ("--timeline", "lazy"),
    ):
        answer = run("ingest", ticks, late, option, wanted)
        assert answer.code == 1
        assert f"not {option} {wanted}" in answer.err
        assert f"leave out {option}" in answer.err
    assert run("ingest", ticks, late, "--partition-by", "day", "--row-group-size", "8").code == 0


def test_timeline_for_a_dataset_that_has_none_is_refused(run, trips, trips_file):
    answer = run("ingest", trips, str(trips_file), "--partition-by", "day")
    assert answer.code == 1
    assert "has no timeline, not --partition-by day" in answer.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--partition-by", "day"), "--partition-by needs --event-time"),
        (("--event-time", "at", "--row-group-size", "8"), "add --partition-by"),
        (("--event-time", "at", "--late-merge", "always"), "add --partition-by"),
        (("--event-time", "at", "--timeline", "lazy"), "add --partition-by"),
        (("--event-time", "at", "--partition-by", "fortnight"), "fortnight"),
        (("--event-time", "at", "--partition-by", "day", "--row-group-size", "0"), "--row-group-size"),
    ],
)
def test_settings_that_make_no_timeline_are_refused(run, file, options, said):
    run("init")
    answer = run("ingest", "ticks", file("first", [1]), *options)
    assert answer.code == 2
    assert said in answer.err
    assert run("list", "--json").json["datasets"] == []


def test_choices_are_those_of_the_library():
    from typing import get_args

    from floodmark.cli import ingest as ingest_module
    from floodmark.timeline import settings as settings_module

    assert ingest_module.UNITS == settings_module.UNITS
    assert get_args(settings_module.LateMerge) == ingest_module.LATE_MERGES
    assert get_args(settings_module.Mode) == ingest_module.MODES
    assert ingest_module.LARGEST_ROW_GROUP_SIZE == settings_module.LARGEST_ROW_GROUP_SIZE


def test_fold_merges_what_waits(run, ticks):
    before = ids(run("timeline", ticks, "--json"))
    answer = run("fold", ticks, "--partition", "2026-11-01")
    assert answer.code == 0
    first, second = run("timeline", ticks, "--pieces", "--json").json["partitions"]
    assert first["waiting_rows"] == 0
    assert run("fold", ticks).code == 0
    first, second = run("timeline", ticks, "--pieces", "--json").json["partitions"]
    assert first["waiting_rows"] == second["waiting_rows"] == 0
    assert ids(run("timeline", ticks, "--json")) == before
    assert run("fold", ticks, "--partition", "2026-11-01").out.startswith("ticks: nothing to fold in 2026-11-01; ")


def test_fold_of_what_is_no_partition_is_refused(run, ticks, trips_file):
    answer = run("fold", ticks, "--partition", "someday")
    assert answer.code == 1
    assert "someday" in answer.err
    run("ingest", "trips", str(trips_file))
    answer = run("fold", "trips", "--partition", "2026-11-01")
    assert answer.code == 1
    assert "timeline" in answer.err
