"""`floodmark doctor`: a line per check with what to do, and an exit code that says whether something is bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run
from floodmark.maintenance import checks


def test_a_line_per_check(run: Run, trips: str):
    answer = run("doctor", "--no-spark")
    assert answer.code == 0, answer.out
    said = [line for line in answer.lines if not line.startswith(" ")]
    assert {line.split()[0] for line in said} <= {"ok", "warn"}
    for what in ("python", "pyspark", "java", "clock", "locks", "object times", "dataset trips", "staging"):
        assert any(line.split(None, 1)[1].startswith(f"{what}: ") for line in said), what
    assert "spark session" not in answer.out


def test_what_is_bad_comes_with_what_to_do_and_exit_code_one(run: Run, trips: str, folder: Path):
    (head,) = folder.glob("lake/datasets/*/refs/head")
    head.write_bytes(b"no hash")
    answer = run("doctor", "--no-spark")
    assert answer.code == 1
    at = next(i for i, line in enumerate(answer.lines) if line.startswith("bad   dataset trips: "))
    assert answer.lines[at + 1].startswith("      Write the hash of the newest block to it")


def test_json_has_every_check(run: Run, trips: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "NEEDED", {"pandas": ("999", None)})
    answer = run("doctor", "--no-spark", "--json")
    assert answer.code == 1
    assert answer.json["ok"] is False
    (pandas,) = [check for check in answer.json["checks"] if check["what"] == "pandas"]
    assert set(pandas) == {"what", "state", "detail", "remedy"}
    assert (pandas["state"], pandas["remedy"]) == ("bad", "pip install 'pandas>=999'")
    assert answer.err == ""


def test_without_a_lake_the_machine_is_checked_all_the_same(run: Run):
    answer = run("doctor", "--no-spark")
    assert answer.code == 0
    assert "warn  lake: " in answer.out
    assert "floodmark init" in answer.out
    assert "ok    pyarrow: " in answer.out


def test_a_toml_that_cannot_be_read_is_bad(run: Run, folder: Path):
    (folder / "floodmark.toml").write_text("lake = ")
    answer = run("doctor", "--no-spark")
    assert answer.code == 1
    assert "bad   floodmark.toml: " in answer.out


@pytest.mark.spark
def test_spark_is_started_with_the_settings_of_the_project(run: Run, folder: Path):
    (folder / "floodmark.toml").write_text('[spark]\n"spark.master" = "nonsense"\n')
    answer = run("doctor")
    assert answer.code == 1
    assert "bad   spark session: does not start: " in answer.out
