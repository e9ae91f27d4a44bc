"""`floodmark ingest` with a key writes only what changed, and says what that was."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from floodmark.dataset import Dataset
from floodmark.ledger.strategy import MERGE_KINDS

FIRST = "id,name,city\n1,Ada,London\n2,Bob,Paris\n3,Cyd,Rome\n"
SECOND = "id,name,city\n1,Ada,London\n2,Bob,Berlin\n4,Dee,Oslo\n"
COUNTS = ["new", "changed", "retracted", "unchanged", "duplicates", "unknown"]


@pytest.fixture
def ingest(run, folder):
    """`ingest(text, "--key", "id")` ingests a CSV file of this text as the dataset people."""
    run("init")

    def call(text, *options, name="people"):
        (folder / "people.csv").write_text(text)
        return run("ingest", name, "people.csv", *options)

    return call


def counts(answer):
    return {name: answer.json[name] for name in COUNTS if answer.json[name]}


def state(run):
    return run("sql", "select * from people order by id", "--json").json["rows"]


def test_first_ingest_with_a_key_makes_an_upsert_dataset(run, ingest):
    answer = ingest(FIRST, "--key", "id")
    assert answer.code == 0
    assert answer.out.startswith("people: created the dataset, +3 new (offsets 0–2, ")
    found = run("schema", "people", "--json").json
    assert (found["merge"], found["key"]) == ("upsert", ["id"])


def test_second_ingest_says_what_changed(run, ingest):
    ingest(FIRST, "--key", "id")
    answer = ingest(SECOND)
    assert answer.out.startswith("people: +1 new, 1 changed, 1 unchanged (offsets 3–5, ")
    assert [row["city"] for row in state(run)] == ["London", "Berlin", "Rome", "Oslo"]


def test_snapshot_retracts_what_the_file_lacks(run, ingest):
    ingest(FIRST, "--key", "id", "--merge", "snapshot")
    answer = ingest(SECOND)
    assert answer.out.startswith("people: +1 new, 1 changed, 1 retracted, 1 unchanged (offsets 3–6, ")
    assert [row["id"] for row in state(run)] == [1, 2, 4]


def test_json_has_every_count(ingest):
    ingest(FIRST, "--key", "id", "--merge", "snapshot")
    assert counts(ingest(SECOND, "--json")) == {"new": 1, "changed": 1, "retracted": 1, "unchanged": 1}


def test_records_of_an_append_dataset_all_count_as_new(ingest):
    assert counts(ingest(FIRST, "--json")) == {"new": 3}


def test_file_that_changes_nothing_says_so(run, ingest):
    ingest(FIRST, "--key", "id")
    head = run("list", "--json").json["datasets"][0]["head"]
    answer = ingest(FIRST)
    assert (answer.code, answer.out) == (0, "people: nothing changed (3 unchanged)\n")
    found = ingest(FIRST, "--json").json
    assert (found["written"], found["records"], found["unchanged"], found["block"]) == (False, 0, 3, head)


def test_what_another_writer_did_meanwhile_is_not_taken_for_ours(ingest, monkeypatch):
    ingest(FIRST, "--key", "id")
    write = Dataset.write

    def second(dataset, *arguments, **options):
        monkeypatch.setattr(Dataset, "write", write)
        dataset.write(pa.table({"id": [7], "name": ["Eve"], "city": ["Lima"]}))
        return dataset.write(*arguments, **options)

    monkeypatch.setattr(Dataset, "write", second)
    found = ingest(FIRST, "--json").json
    assert (found["written"], found["records"], found["unchanged"]) == (False, 0, 3)


def test_rows_that_a_later_row_replaced_are_said(run, ingest):
    ingest(FIRST, "--key", "id")
    twice = "id,name,city\n2,Bob,Bern\n2,Bob,Basel\n"
    assert "1 changed, 1 replaced within the batch (" in ingest(twice).out
    assert state(run)[1]["city"] == "Basel"
    assert counts(ingest(twice, "--json")) == {"unchanged": 1, "duplicates": 1}


def test_op_column_retracts_and_unknown_keys_are_counted(run, ingest):
    ingest("id,name,city,op\n1,a,b,0\n2,c,d,0\n3,e,f,0\n", "--key", "id", "--merge", "changelog")
    answer = ingest("id,name,city,op\n2,c,d,1\n", "--json")
    assert counts(answer) == {"retracted": 1}
    assert [row["id"] for row in state(run)] == [1, 3]


def test_delivery_that_changes_nothing_is_remembered_all_the_same(ingest):
    pair = ["--source", "files", "--state", "17"]
    ingest(FIRST, "--key", "id")
    assert ingest(FIRST, *pair).out == "people: nothing changed (3 unchanged)\n"
    assert ingest(SECOND, *pair).out == "people: files 17 was written before (no changes); nothing to do\n"


@pytest.mark.parametrize("options", [["--key", "id", "--key", "city"], ["--key", "id,city"]], ids=["again", "commas"])
def test_key_of_several_columns(run, ingest, options):
    ingest(FIRST, *options)
    assert run("schema", "people", "--json").json["key"] == ["id", "city"]
    assert counts(ingest(SECOND, "--json")) == {"new": 2, "unchanged": 1}


def test_compared_columns_decide_what_a_change_is(run, ingest):
    ingest(FIRST, "--key", "id", "--merge", "snapshot", "--compare", "name")
    assert counts(ingest(SECOND, "--json")) == {"new": 1, "retracted": 1, "unchanged": 2}
    assert run("schema", "people", "--json").json["compare"] == ["name"]


def test_lookup_is_a_prefix_of_the_key(run, ingest):
    ingest(FIRST, "--key", "city,id", "--lookup", "city")
    assert run("schema", "people", "--json").json["lookup"] == ["city"]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--key", "city,id"],
        ["--merge", "snapshot"],
        ["--compare", "name"],
        ["--lookup", "city"],
        ["--key", "city,id", "--merge", "snapshot", "--compare", "name", "--lookup", "city"],
    ],
    ids=" ".join,
)
def test_options_that_a_dataset_was_made_with_may_be_given_again(ingest, options):
    ingest(FIRST, "--key", "city,id", "--merge", "snapshot", "--compare", "name", "--lookup", "city")
    assert ingest(FIRST, *options).code == 0


@pytest.mark.parametrize(
    ("option", "value"), [("--key", "name"), ("--key", "id,name"), ("--merge", "ledger"), ("--lookup", "name")]
)
def test_other_options_than_a_dataset_was_made_with_are_refused(run, ingest, option, value):
    ingest(FIRST, "--key", "id")
    answer = ingest(SECOND, option, value)
    assert answer.code == 1
    assert f"'people' was created with --merge upsert --key id, not {option} {value}\n" in answer.err
    assert f"leave out {option}" in answer.err
    assert len(state(run)) == 3


@pytest.mark.parametrize("kind", MERGE_KINDS)
def test_every_merge_strategy_can_be_asked_for(run, ingest, kind):
    key = [] if kind == "append" else ["--key", "id"]
    text = "id,op\n1,0\n" if kind == "changelog" else "id\n1\n"
    assert ingest(text, "--merge", kind, *key).code == 0
    assert run("schema", "people", "--json").json["merge"] == kind


def test_key_for_a_dataset_without_one_is_refused(ingest):
    ingest(FIRST)
    answer = ingest(FIRST, "--key", "id")
    assert answer.code == 1
    assert "was created with --merge append, not --key id" in answer.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--merge", "upsert"], "needs a key"),
        (["--merge", "append", "--key", "id"], "has no key"),
        (["--key", "id", "--compare", "name"], "takes no compare"),
        (["--key", "id,name", "--lookup", "name"], "is not a prefix of the key"),
        (["--key", ""], "a column name is empty"),
        (["--key", "id,"], "a column name is empty"),
        (["--key", "id", "--merge", "replace"], "is not one of"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(run, ingest, options, why):
    answer = ingest(FIRST, *options)
    assert answer.code == 2
    assert why in answer.err
    assert run("list", "--json").json["datasets"] == []


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        (FIRST, ["--key", "number"], "'number'"),
        ("id,name\n1,a\n,b\n", ["--key", "id"], "no value in the key column 'id'"),
        ("id,name\n1,a\n1,b\n", ["--key", "id", "--merge", "ledger"], "id=1"),
        ("id,name\n1,a\n1,b\n", ["--key", "id", "--merge", "snapshot"], "id=1"),
        ("id,op\n1,7\n", ["--key", "id"], "'op' is reserved"),
        ("id,op\n1,7\n", ["--key", "id", "--merge", "changelog"], "operation 7"),
        ("id,op\n1,1\n", ["--key", "id", "--merge", "changelog"], "does not exist"),
    ],
    ids=[
        "no such column",
        "null key",
        "twice in a ledger",
        "twice in a snapshot",
        "op of an upsert",
        "no such op",
        "nothing to retract",
    ],
)
def test_refused_first_ingest_with_a_key_leaves_no_dataset(run, ingest, text, options, why):
    answer = ingest(text, *options)
    assert answer.code == 1
    assert why in answer.err
    assert run("list", "--json").json["datasets"] == []


def test_list_shows_how_a_dataset_is_merged(run, ingest):
    ingest(FIRST, "--key", "id,city")
    ingest(FIRST, name="plain")
    _, people, plain = run("list").lines
    assert people.startswith("people  upsert by id, city        3 ")
    assert plain.startswith("plain   append                    3 ")
    found = run("list", "--json").json["datasets"]
    assert [(d["merge"], d["key"]) for d in found] == [("upsert", ["id", "city"]), ("append", [])]


def test_schema_marks_the_key(run, ingest):
    ingest(FIRST, "--key", "id", "--merge", "snapshot", "--compare", "name,city")
    answer = run("schema", "people")
    assert [line.split() for line in answer.lines if line.endswith("key")] == [["id", "int64", "no", "key"]]
    assert "snapshot by id, comparing name, city" in answer.err


@pytest.mark.process
def test_warnings_of_the_library_do_not_disturb_json(ingest, folder):
    """In a process of its own: pytest handles warnings, too."""
    ingest("id\n1\n1\n", "--key", "id")
    command = [sys.executable, "-m", "floodmark.cli", "ingest", "people", "people.csv"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "a later row of the same key replaced" in shown.stderr
    assert subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stderr == ""


CLICKS = "offset,value\n100,a\n107,b\n"


def test_files_with_a_column_offset_come_in_with_another_name_for_the_system_column(run, ingest):
    refused = ingest(CLICKS, name="clicks")
    assert refused.code == 1
    assert "column name 'offset' is reserved" in refused.err
    assert ingest(CLICKS, "--vocab", "offset=_offset", "--key", "offset", name="clicks").code == 0
    ingest("offset,value\n107,c\n", "--vocab", "offset=_offset", name="clicks")
    assert [row["_offset"] for row in run("tail", "clicks", "--json").json["records"]] == [0, 1, 2, 3]
    lines = run("changes", "clicks", "--since", "1").lines
    assert lines[0].split() == ["_offset", "op", "system_time", "offset", "value"]
    assert [line.split()[1] for line in lines[1:]] == ["2", "3"]
    assert run("sql", 'select max("offset") as newest from clicks', "--json").json["rows"] == [{"newest": 107}]
    history = run("history", "clicks", "offset=107", "--json").json["records"]
    assert [(row["_offset"], row["op"]) for row in history] == [(1, "+A"), (2, "-C"), (3, "+C")]
    assert run("verify", "clicks").code == 0


@pytest.mark.parametrize(
    ("vocab", "said"),
    [
        ("offset", "--vocab offset is not COLUMN=NAME, such as offset=_offset."),
        ("offsets=_offset", "'offsets', which is not a system column"),
        ("offset=op", "gives the name 'op' to two columns"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_a_usage_error(ingest, vocab, said):
    answer = ingest(CLICKS, "--vocab", vocab)
    assert answer.code == 2
    assert said in answer.err


def test_another_vocabulary_for_an_existing_dataset_is_refused(ingest):
    ingest(CLICKS, "--vocab", "offset=_offset")
    answer = ingest(CLICKS, "--vocab", "offset=_o")
    assert answer.code == 1
    assert "has the system columns _offset,op,system_time, not _o,op,system_time" in answer.err
