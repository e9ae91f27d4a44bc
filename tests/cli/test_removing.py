"""`floodmark purge`, `drop` and `rename`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import BatchTransform, Lake


def names(run):
    return [d["name"] for d in run("list", "--json").json["datasets"]]


@pytest.mark.parametrize("before", ["3", "2026-01-04", "2026-01-03T00:00:01Z"])
def test_purge_takes_an_offset_or_a_time(run, trips, before):
    answer = run("purge", trips, "--before", before, "--yes", "--json")
    assert answer.code == 0
    assert (answer.json["purged_before"], answer.json["records"], answer.json["slices"]) == (3, 3, 1)


@pytest.mark.parametrize("before", ["2", "2026-01-03"])
def test_purge_of_nothing_says_so(run, trips, before):
    assert "nothing to purge" in run("purge", trips, "--before", before, "--yes").out
    assert len(run("tail", trips, "--json").json["records"]) == 3


def test_purge_without_yes_says_what_would_go_and_does_nothing(run, trips):
    answer = run("purge", trips, "--before", "3")
    assert answer.code == 2
    assert "permanently purge trips: 3 records in 1 slice (" in answer.err
    assert "--yes" in answer.err
    assert len(run("tail", trips, "--json").json["records"]) == 3


def copy_people():
    return BatchTransform(lambda people: people, inputs=["people"], outputs=["copy"], version="1", name="copy")


def people(run):
    lake = Lake("lake")
    people = lake.create("people", key="id")
    people.write(pa.table({"id": [1, 2, 3], "city": ["Oslo", "Rome", "Oslo"]}))
    copy_people().run(lake)
    people.write(pa.table({"id": [2], "city": ["Bern"]}))
    return people


def test_dry_run_of_a_purge_lists_what_would_go_and_who_has_not_read_it(run, folder):
    dataset = people(run)
    answer = run("purge", "people", "--before", "5", "--dry-run")
    size = dataset.plan_purge(5).bytes
    assert answer.out == (
        f"would permanently purge people: 5 records in 2 slices ({size / 1000:.1f} KB), of which 3 current rows stay\n"
        "  copy has read it up to offset 2: bring it up to date first, or reset it afterwards\n"
    )
    facts = run("purge", "people", "--before", "3", "--dry-run", "--json").json
    assert (facts["dry_run"], facts["records"], facts["carried"]) == (True, 3, 2)
    assert facts["readers"] == [{"dataset": "copy", "position": 2}]
    assert dataset.snapshot().purged_before == 0


def test_purge_keeps_current_rows_and_says_so(run, folder):
    dataset = people(run)
    answer = run("purge", "people", "--before", "3", "--yes")
    assert "people: purged 3 records in 1 slice (" in answer.out
    assert "of which 2 current rows stay; offsets below 3 are gone" in answer.out
    assert sorted(dataset.to_arrow()["city"].to_pylist()) == ["Bern", "Oslo", "Oslo"]
    assert "no slice with history" in run("purge", "people", "--before", "3", "--yes").out


def test_erase_asks_first_and_removes_every_version_of_a_key(run, folder):
    dataset = people(run)
    Lake("lake").drop("copy")
    asked = run("erase", "people", "id=2")
    assert asked.code == 2
    assert "permanently erase 3 records of 1 key in 2 slices from people: add --yes" in asked.err
    assert run("erase", "people", "id=2", "--dry-run").out == (
        "would permanently erase 3 records of 1 key in 2 slices from people\n"
    )
    assert run("erase", "people", "id=2", "--yes").out == "people: erased 3 records of 1 key in 2 slices\n"
    assert dataset.history(2).num_rows == 0
    assert dataset.to_arrow()["id"].to_pylist() == [1, 3]
    assert run("verify", "people").code == 0
    assert "nothing to erase; no record has id=2" in run("erase", "people", "id=2").out
    facts = run("erase", "people", "id=1", "--yes", "--json").json
    assert (facts["erased_keys"], facts["records"], facts["current"], facts["slices"]) == (1, 1, 1, 1)


def test_erase_names_what_is_computed_from_the_dataset(run, folder):
    people(run)
    shown = run("erase", "people", "id=2", "--dry-run")
    assert "  copy has read it up to offset 2\n" in shown.out
    refused = run("erase", "people", "id=2", "--yes")
    assert refused.code == 1
    assert "are retracted, but not erased yet: 'copy' has not processed that" in refused.err
    assert "run the pipeline (`floodmark run`)" in refused.err
    copy_people().run(Lake("lake"))
    answer = run("erase", "people", "id=2", "--yes")
    assert answer.out == ("people: erased 4 records of 1 key in 3 slices\ncopy: erased 2 records computed from it\n")
    assert Lake("lake")["copy"].changes_arrow()["id"].to_pylist() == [1, 3]
    assert run("verify").code == 0


def test_dry_run_of_a_drop_lists_what_is_computed_from_it(run, folder):
    people(run)
    answer = run("drop", "people", "--dry-run")
    assert answer.code == 0
    assert "would permanently drop people (5 records, " in answer.out
    assert "  copy has read it up to offset 2\n" in answer.out
    assert names(run) == ["copy", "people"]


def test_purge_before_no_point_is_refused(run, trips):
    answer = run("purge", trips, "--before", "yesterday")
    assert answer.code == 1
    assert "2026-11-15" in answer.err


def test_drop_without_yes_says_what_would_go_and_does_nothing(run, trips):
    answer = run("drop", trips)
    assert answer.code == 2
    assert "trips (3 records, " in answer.err
    assert "--yes" in answer.err
    assert names(run) == ["trips"]
    assert run("drop", trips, "--json").json["error"]["type"] == "NotConfirmed"


def test_drop_with_yes_removes_the_dataset(run, trips):
    answer = run("drop", trips, "--yes", "--json")
    assert answer.code == 0
    assert (answer.json["dropped"], answer.json["records"]) == ("trips", 3)
    assert names(run) == []
    assert run("list").code == 0


def test_dataset_that_others_are_computed_from_is_dropped_only_with_cascade(run, orders):
    assert run("run", "prices", "total").code == 0
    for refused in (run("drop", "orders"), run("drop", "orders", "--yes")):
        assert refused.code == 1
        assert "'orders' was not dropped: prices is computed from it" in refused.err
        assert "`floodmark drop orders --cascade`" in refused.err
    asked = run("drop", "orders", "--cascade")
    assert asked.code == 2
    assert " and total, prices, computed from it, from " in asked.err
    answer = run("drop", "orders", "--cascade", "--yes", "--json")
    assert (answer.json["dropped"], answer.json["also"]) == ("orders", ["total", "prices"])
    assert names(run) == []


def test_damaged_dataset_can_be_dropped(run, trips, folder):
    (head,) = (folder / "lake" / "datasets").glob("*/refs/head")
    head.write_text("nonsense")
    assert "size unknown" in run("drop", trips).err
    assert run("drop", trips, "--yes").code == 0
    assert names(run) == []


def test_rename_keeps_the_records(run, trips):
    assert run("rename", "trips", "rides").code == 0
    assert names(run) == ["rides"]
    assert len(run("tail", "rides", "--json").json["records"]) == 3


def test_rename_to_a_name_that_is_taken_is_refused(run, trips, trips_file):
    run("ingest", "rides", str(trips_file))
    answer = run("rename", "trips", "rides")
    assert answer.code == 1
    assert names(run) == ["rides", "trips"]


def test_rename_to_a_path_is_refused(run, trips):
    assert run("rename", "trips", "../x", "--json").json["error"]["type"] == "BadName"
