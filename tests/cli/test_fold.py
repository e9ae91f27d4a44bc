"""`floodmark fold` makes reading quick again, and changes no answer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark import Lake


@pytest.fixture
def people(run, folder):
    """Three slices; of six records four are dead."""
    run("init")
    people = Lake("lake").create("people", key="id")
    people.write(pa.table({"id": [1, 2, 3], "city": ["London", "Paris", "Rome"]}))
    people.write(pa.table({"id": [2], "city": ["Berlin"]}))
    people.delete([3])
    return people


def folded_files(folder):
    return [path for path in folder.glob("lake/datasets/*/info/fold/files/*") if path.is_file()]


def test_fold_says_what_it_did(run, people, folder):
    before = people.to_arrow()
    answer = run("fold", "people")
    assert answer.code == 0
    assert answer.out.startswith("people: folded 3 files into 1 file (2 rows, ")
    assert answer.out.endswith(", without 4 dead records\n")
    assert len(folded_files(folder)) == 1
    assert people.to_arrow().equals(before)


def test_json_has_all_numbers(run, people, folder):
    found = run("fold", "people", "--json").json
    (made,) = folded_files(folder)
    assert found == {"dataset": "people", "read": 3, "files": 1, "rows": 2, "dead": 4, "size": made.stat().st_size}


def test_second_fold_has_nothing_to_do(run, people):
    run("fold", "people")
    assert run("fold", "people").out.startswith("people: nothing to fold; ")
    assert run("fold", "people", "--json").json["files"] == 0


def test_small_slices_of_an_append_dataset_become_one_file(run, trips, trips_file):
    run("ingest", trips, str(trips_file))
    answer = run("fold", trips)
    assert answer.out.startswith("trips: folded 2 files into 1 file (6 rows, ")
    assert "dead" not in answer.out


def test_dataset_that_was_never_written_has_nothing_to_fold(run, folder):
    Lake("lake").create("empty", key="id")
    assert run("fold", "empty").out.startswith("empty: nothing to fold; ")
    assert run("fold", "empty", "--json").json["files"] == 0


def test_history_and_changes_are_the_same_after_a_fold(run, people):
    before = run("history", "people", "id=2").out, run("changes", "people").out, run("tail", "people").out
    run("fold", "people")
    assert (run("history", "people", "id=2").out, run("changes", "people").out, run("tail", "people").out) == before
    assert len(run("tail", "people").lines) == len(run("changes", "people").lines) == 1 + 6
