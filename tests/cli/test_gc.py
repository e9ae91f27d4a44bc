"""`floodmark gc`: what goes and how much it frees; a dry run removes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from cli.conftest import Run
from floodmark.lake import Lake


@pytest.fixture
def old(run: Run, folder: Path) -> Path:
    """A lake that was last touched a month ago: a dataset with replaced files of its index, and a part of a write."""
    run("init")
    people = Lake("lake").create("people", key="id")
    for n in range(3):
        people.write(pa.table({"id": list(range(100)), "n": [n] * 100}))
    (folder / "lake/.staging").mkdir(exist_ok=True)
    (folder / "lake/.staging/part").write_bytes(b"123")
    month = time.time() - 30 * 86_400
    for path in (folder / "lake").rglob("*"):
        if path.is_file():
            os.utime(path, (month, month))
    return folder / "lake"


def files(lake: Path) -> set[Path]:
    return {path for path in lake.rglob("*") if path.is_file() and not path.name.endswith((".lock", ".turn"))}


def test_a_dry_run_says_what_would_go_and_removes_nothing(run: Run, old: Path):
    before = files(old)
    answer = run("gc", "--dry-run")
    assert answer.code == 0
    assert any(line.startswith("people: would remove ") and "of key index" in line for line in answer.lines)
    assert "would remove 1 object of staging (3 B)" in answer.lines
    assert answer.err.startswith("would free ")
    assert files(old) == before


def test_what_went_is_said_and_gone(run: Run, old: Path):
    rows = run("sql", "select * from people order by id", "--json").out
    before = files(old)
    answer = run("gc", "--json")
    assert answer.code == 0
    went = {one["kind"]: one for one in answer.json["collected"]}
    assert {"key index", "staging"} <= set(went)
    assert answer.json["size"] == sum(one["size"] for one in went.values())
    gone = {str(path.relative_to(old)) for path in before - files(old)}
    assert gone == {key for one in went.values() for key in one["keys"]}
    assert run("sql", "select * from people order by id", "--json").out == rows
    assert run("verify").code == 0
    again = run("gc")
    assert (again.out, again.err) == ("", "nothing to remove\n")


def test_only_what_is_named_is_looked_through(run: Run, old: Path):
    answer = run("gc", "people")
    assert all(line.startswith("people: removed ") for line in answer.lines)
    assert (old / ".staging/part").exists()
    assert run("gc", "peopel").code == 1


def test_a_dataset_that_cannot_be_read_is_said_and_the_rest_is_collected(run: Run, old: Path):
    (head,) = old.glob("datasets/*/refs/head")
    head.write_bytes(b"no hash")
    answer = run("gc")
    assert answer.code == 1
    assert answer.err.count("error: people: refs/head does not contain a block hash") == 1
    assert not (old / ".staging/part").exists()
    assert run("gc", "--json").json["failed"][0]["dataset"] == "people"


def test_a_dataset_without_a_name_goes_by_its_id(run: Run, old: Path):
    people = Lake("lake")["people"].id
    assert "was not removed: it has a name" in run("gc", str(people)).err
    name = old / "names/people"
    content = name.read_bytes()
    Lake("lake").create("other")
    name.unlink()
    assert run("gc").code == 0
    name.write_bytes(content)
    assert run("verify", "people").code == 0
    name.unlink()
    for path in old.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 30 * 86_400,) * 2)
    answer = run("gc", str(people))
    assert answer.out.startswith(f"{people}: removed ")
    assert not [path for path in files(old) if people.bytes.hex() in str(path)]
