"""`floodmark list` shows what there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def test_list_in_a_pipe_is_aligned_and_plain(run, trips, trips_file):
    run("ingest", "a-much-longer-name", str(trips_file))
    answer = run("list")
    head, first, second = answer.lines
    assert head.split() == ["name", "merge", "records", "size", "last", "write", "watermark"]
    assert first.startswith("a-much-longer-name  append")
    assert second.startswith("trips               append")
    assert second.endswith("2026-01-03 00:00:00+00:00")
    assert head.index("records") + len("records") == second.index(" 3 ") + 2
    assert "\x1b" not in answer.out
    assert "─" not in answer.out


def test_last_write_is_relative(run, trips):
    assert "just now" in run("list").out or "seconds ago" in run("list").out


def test_list_as_json_has_stable_keys(run, trips):
    (found,) = run("list", "--json").json["datasets"]
    assert list(found) == [
        "name",
        "id",
        "kind",
        "view",
        "merge",
        "key",
        "records",
        "size",
        "last_offset",
        "last_write",
        "last_change",
        "watermark",
        "head",
    ]
    assert (found["name"], found["kind"], found["records"], found["last_offset"]) == ("trips", "root", 3, 2)
    assert datetime.now(UTC) - datetime.fromisoformat(found["last_write"]) < timedelta(hours=1)


def test_dataset_without_records_was_never_written(run, folder):
    from floodmark import Lake

    Lake(folder / "lake").create("empty")
    assert "never" in run("list").out
    assert run("list", "--json").json["datasets"][0]["last_write"] is None


def test_damaged_dataset_does_not_hide_the_others(run, trips, trips_file, folder):
    run("ingest", "rides", str(trips_file))
    broken = run("list", "--json").json["datasets"][0]
    assert broken["name"] == "rides"
    for head in (folder / "lake" / "datasets").glob("*/refs/head"):
        if head.read_text().strip() == broken["head"]:
            head.write_text("nonsense")
    answer = run("list")
    assert answer.code == 1
    assert "trips" in answer.out
    assert "rides cannot be read" in answer.err
    found = run("list", "--json")
    assert found.code == 1
    assert [("error" in d) for d in found.json["datasets"]] == [False, True]
