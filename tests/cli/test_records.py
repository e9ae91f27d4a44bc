"""`floodmark tail` and `floodmark changes` show records by offset."""

from __future__ import annotations

import pytest


@pytest.fixture
def nine(run, trips, trips_file):
    """Nine records in three slices."""
    for _ in range(2):
        run("ingest", trips, str(trips_file))
    return trips


def offsets(answer):
    return [record["offset"] for record in answer.json["records"]]


def test_tail_shows_the_newest_records_in_order(run, nine):
    assert offsets(run("tail", nine, "-n", "2", "--json")) == [7, 8]


def test_pages_after_a_position_leave_out_rows_that_a_purge_carried(run, folder):
    run("init")
    file = folder / "people.csv"
    file.write_text("id,city\n1,Oslo\n2,Rome\n3,Bari\n")
    run("ingest", "people", str(file), "--key", "id")
    run("delete", "people", "id=2")
    at = run("changes", "people", "--json").json["position"]
    run("purge", "people", "--before", "4", "--yes")
    for city in ("Bergen", "Turin"):
        file.write_text(f"id,city\n9,{city}\n")
        run("ingest", "people", str(file))
    found = []
    for _ in range(3):
        answer = run("changes", "people", "--since", at, "--limit", "2", "--json")
        found += [record["city"] for record in answer.json["records"]]
        at = answer.json["position"]
    assert found == ["Bergen", "Bergen", "Turin"]


def test_tail_of_fewer_records_shows_all(run, trips):
    assert offsets(run("tail", trips, "--json")) == [0, 1, 2]


def test_tail_has_system_columns_and_data(run, trips):
    head, row = run("tail", trips, "-n", "1").lines
    assert head.split() == ["offset", "op", "system_time", "id", "pickup_at", "fare", "pay"]
    assert row.split()[:2] == ["2", "0"]
    assert row.endswith("3.0  cash")


def test_null_is_shown_as_null(run, trips):
    assert run("changes", trips, "--since", "0", "--until", "1").lines[1].endswith("null  null")


def test_tail_after_a_purge_shows_what_is_left(run, nine):
    run("purge", nine, "--before", "6", "--yes")
    assert offsets(run("tail", nine, "--json")) == [6, 7, 8]


@pytest.mark.parametrize("verb", ["tail", "changes"])
def test_dataset_without_records_says_so(run, folder, verb):
    from floodmark import Lake

    Lake(folder / "lake").create("empty")
    answer = run(verb, "empty")
    assert (answer.code, answer.out) == (0, "")
    assert "no records" in answer.err
    assert offsets(run(verb, "empty", "--json")) == []


def test_changes_are_after_since_and_up_to_until(run, nine):
    answer = run("changes", nine, "--since", "3", "--until", "5", "--json")
    assert offsets(answer) == [4, 5]
    assert (answer.json["since"], answer.json["until"], answer.json["more"]) == (3, 5, True)


def test_changes_without_since_begin_with_the_oldest_that_is_left(run, nine):
    run("purge", nine, "--before", "3", "--yes")
    assert offsets(run("changes", nine, "--json")) == [3, 4, 5, 6, 7, 8]


def test_changes_that_are_purged_are_refused(run, nine):
    run("purge", nine, "--before", "3", "--yes")
    answer = run("changes", nine, "--since", "0", "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "RecordsPurged"


def test_until_of_one_answer_is_the_since_of_the_next(run, nine):
    seen: list[int] = []
    since, more = "-1", True
    while more:
        answer = run("changes", nine, "--since", since, "--limit", "4", "--json")
        seen += offsets(answer)
        since, more = str(answer.json["until"]), answer.json["more"]
    assert seen == list(range(9))


def test_limit_says_how_to_go_on(run, nine):
    answer = run("changes", nine, "--limit", "4")
    assert len(answer.lines) == 1 + 4
    assert "--since 3" in answer.err


def test_no_changes_says_so(run, nine):
    answer = run("changes", nine, "--since", "8")
    assert (answer.code, answer.out) == (0, "")
    assert "no records after offset 8" in answer.err
    assert run("changes", nine, "--since", "8", "--until", "20", "--json").json["records"] == []


def test_changes_beyond_the_end_are_refused_with_the_id_of_the_dataset(run, nine):
    dataset_id = run("changes", nine, "--json").json["position"].partition("/")[0]
    beyond = run("changes", nine, "--since", "100", "--json")
    assert (beyond.code, beyond.json["error"]["type"]) == (1, "BadPosition")
    assert dataset_id in beyond.json["error"]["message"]


def test_position_of_one_answer_is_the_since_of_the_next(run, nine):
    first = run("changes", nine, "--limit", "4", "--json").json
    assert offsets(run("changes", nine, "--since", first["position"], "--json")) == [4, 5, 6, 7, 8]
    last = run("changes", nine, "--since", first["position"], "--json").json["position"]
    assert run("changes", nine, "--since", last, "--json").json["position"] == last
    assert run("changes", nine, "--since", "-2").code == 2
    assert "not a position" in run("changes", nine, "--since", "yesterday").err
