"""`floodmark why` and `verify --replay`, as a user has them."""

from __future__ import annotations

from pathlib import Path

import pytest

PIPELINE = """\
from floodmark import BatchTransform, Pipeline

def totals(people):
    return people.groupby("g", as_index=False)["v"].sum()

pipeline = Pipeline([BatchTransform(totals, inputs=["people"], outputs=["totals"], transform_keys=["g"])])
"""


@pytest.fixture
def project(run, folder: Path) -> Path:
    (folder / "people.csv").write_text("id,g,v\n1,a,10\n2,b,20\n3,a,30\n")
    (folder / "pipeline.py").write_text(PIPELINE)
    run("init")
    run("ingest", "people", "people.csv", "--key", "id")
    assert run("run").code == 0
    return folder


def test_the_tree_goes_down_to_what_was_written(run, project):
    answer = run("why", "totals", "g=a")

    assert answer.code == 0
    assert answer.lines[0] == "totals 0 +A  g=a v=40"
    assert answer.lines[2:4] == [
        "└─ 2 rows of people with g=a, as of record 2",
        "   ├─ people 0 +A  id=1 g=a v=10",
    ]
    assert answer.lines[1].startswith("│ step totals (keyed) version ")


def test_an_offset_names_the_same_record_and_json_has_all_of_it(run, project):
    answer = run("why", "totals", "0", "--json").json

    assert (answer["dataset"], answer["offset"], answer["op"]) == ("totals", 0, "+A")
    assert (answer["made_by"]["kind"], answer["made_by"]["name"]) == ("step", "totals")
    [given] = answer["inputs"]
    assert (given["dataset"], given["position"], given["by"]) == ("people", 2, {"g": "a"})
    assert [one["offset"] for one in given["records"]] == [0, 2]
    assert answer == run("why", "totals", "g=a", "--json").json


def test_forward_shows_what_was_made_of_it(run, project):
    answer = run("why", "people", "id=3", "--forward")

    assert [line.strip("└─ ") for line in answer.lines[::2]][:2] == [
        "people 2 +A  id=3 g=a v=30",
        "totals 0 +A  g=a v=40",
    ]
    [derived] = run("why", "people", "2", "--forward", "--json").json["derived"]
    assert (derived["dataset"], derived["offset"], derived["is_current"]) == ("totals", 0, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("totals", "9"), "no record 9"),
        (("people", "id=99"), "no current row with id=99"),
        (("nothing", "0"), "nothing"),
        (("totals", "v=3"), "is not a key column of"),
    ],
)
def test_what_is_not_there_is_refused(run, project, asked, said):
    answer = run("why", *asked)
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err


def test_two_records_at_once_are_not_understood(run, project):
    assert run("why", "people", "id=1", "id=2").code == 2


def test_replay_computes_the_steps_of_the_pipeline_again(run, project):
    answer = run("verify", "--replay")

    assert answer.code == 0
    assert answer.lines[-1] == "totals block 4: same (2 keys computed again)"


def test_replay_reports_code_that_is_gone_and_runs_the_stored_text_if_allowed(run, project):
    (project / "pipeline.py").write_text(PIPELINE.replace(".sum()", ".max()"))

    answer = run("verify", "totals", "--replay")

    assert answer.code == 0
    assert "code not available, step" in answer.lines[-1]
    assert "not recomputed: 1 of 1" in answer.err
    assert run("verify", "totals", "--replay", "--strict").code == 3
    found = run("verify", "totals", "--replay", "--json").json
    assert (found["ok"], [one["outcome"] for one in found["replayed"]]) == (True, ["code not available"])
    stored = run("verify", "totals", "--replay", "--strict", "--run-stored-code")
    assert (stored.code, stored.lines[-1]) == (0, "totals block 4: same (2 keys computed again)")
    assert run("verify", "totals", "--strict").code == 2


def test_replay_shows_what_differs_by_key(run, project):
    fixed = PIPELINE.replace('transform_keys=["g"]', 'transform_keys=["g"], version="1"')
    (project / "pipeline.py").write_text(fixed)
    run("run")
    # The version says that nothing has changed, and it has.
    (project / "pipeline.py").write_text(fixed.replace(".sum()", ".max()"))
    (project / "people.csv").write_text("id,g,v\n4,a,5\n")
    run("ingest", "people", "people.csv")
    run("run")
    (project / "pipeline.py").write_text(fixed)

    answer = run("verify", "totals", "--replay")

    assert answer.code == 3
    assert answer.lines[-2].endswith("differs in 1 row")
    assert answer.lines[-1] == "  g=a: v is 30, should be 45"


def test_replay_without_a_pipeline_knows_no_steps(run, project):
    (project / "pipeline.py").unlink()

    answer = run("verify", "totals", "--replay")

    assert answer.code == 0
    assert "code not available, no step of the pipeline writes 'totals'" in answer.lines[-1]
    assert run("verify", "totals", "--replay", "--strict").code == 3


@pytest.mark.slow
def test_replay_names_rows_that_were_never_written_though_the_step_is_behind(run, project):
    fixed = PIPELINE.replace('transform_keys=["g"]', 'transform_keys=["g"], version="1"')
    (project / "pipeline.py").write_text(fixed)
    run("run")
    (project / "people.csv").write_text("id,g,v\n4,c,5\n5,d,6\n")
    run("ingest", "people", "people.csv")
    (project / "pipeline.py").write_text(fixed.replace(".sum()", ".sum().query(\"g != 'c'\")"))
    assert run("run", "--max-records", "1").code == 0  # c, and nothing comes of it; d waits
    (project / "pipeline.py").write_text(fixed)

    answer = run("verify", "totals", "--replay")

    assert answer.code == 3
    assert answer.lines[-2].endswith(": differs in 1 row")
    assert answer.lines[-1] == "  g=c: is missing, should be {'g': 'c', 'v': 5}"
    found = run("verify", "totals", "--replay", "--json").json
    assert (found["ok"], found["replayed"][-1]["outcome"]) == (False, "differs")
    assert found["replayed"][-1]["differences"][0]["key"] == {"g": "c"}
