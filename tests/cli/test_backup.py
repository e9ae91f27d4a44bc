"""`floodmark backup` and `restore`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import BatchTransform, Lake


def count(people):
    return people


@pytest.fixture
def lake(run, folder):
    """People, a step that copies them, and a backup of both in the folder `copy`."""
    run("init")
    lake = Lake("lake")
    lake.create("people", key="id").write(pa.table({"id": [1, 2, 3], "city": ["Oslo", "Rome", "Oslo"]}))
    BatchTransform(count, inputs=["people"], outputs=["counted"], version="1", name="count").run(lake)
    assert run("backup", "copy").code == 0
    return lake


def test_backup_says_what_it_has_and_what_it_copied(run, lake):
    lake["people"].write(pa.table({"id": [4], "city": ["Bern"]}))
    answer = run("backup", "copy")
    assert answer.code == 0
    assert answer.out.startswith("backed up 2 datasets, ")
    assert "copied 2 objects (" in answer.out
    assert run("verify", "--lake", "copy").code == 0
    facts = run("backup", "copy", "--json").json
    assert (facts["datasets"], facts["copied_objects"]) == (["counted", "people"], 0)


def test_restore_creates_the_lake(run, lake):
    answer = run("restore", "copy", "--lake", "other")
    assert answer.code == 0
    assert answer.lines[0] == "counted: is not in the lake"
    assert answer.lines[-1].startswith("restored 2 datasets (")
    assert Lake("other")["people"].count() == 3


def test_restore_into_a_folder_of_something_else_is_refused(run, lake, folder):
    (folder / "other").mkdir()
    (folder / "other" / "letter").write_text("dear")
    assert "is not a lake" in run("restore", "copy", "--lake", "other").err


def test_restore_over_newer_records_needs_yes(run, lake):
    lake["people"].write(pa.table({"id": [4], "city": ["Bern"]}))
    answer = run("restore", "copy")
    assert answer.code == 2
    assert "which replaces 1 newer record of people" in answer.err
    assert "--yes" in answer.err
    assert Lake("lake")["people"].count() == 4
    assert run("restore", "copy", "--yes").code == 0
    assert Lake("lake")["people"].count() == 3
    assert run("verify").code == 0


def test_dry_run_lists_what_would_go_and_what_has_to_catch_up(run, lake):
    lake["people"].write(pa.table({"id": [4], "city": ["Bern"]}))
    answer = run("restore", "copy", "people", "--dry-run")
    assert answer.code == 0
    assert answer.lines[0].startswith("would restore 1 dataset of ")
    assert answer.lines[1:] == [
        "  people: 1 newer record in the lake",
        "  counted: is computed from it, and has to catch up: run its pipeline, or refresh it",
        "  counted: not restored",
    ]
    facts = run("restore", "copy", "people", "--dry-run", "--json").json
    assert facts["dry_run"] is True
    assert (facts["datasets"][0]["lost_records"], facts["to_catch_up"]) == (1, ["counted"])
    assert Lake("lake")["people"].count() == 4


def test_unfinished_backup_is_a_problem_of_verify(run, lake, folder):
    lake["people"].write(pa.table({"id": [4], "city": ["Bern"]}))
    old = Lake("copy")["people"].snapshot()
    run("backup", "copy")
    head = folder / "copy" / old.objects.head_key
    head.write_text(old.head.text)
    answer = run("verify", "--lake", "copy")
    assert answer.code == 3
    assert "the last backup was stopped" in answer.out
    assert run("verify", "--lake", "copy", "--json").json["problems"][0]["kind"] == "backup"
    run("backup", "copy")
    assert run("verify", "--lake", "copy").code == 0
