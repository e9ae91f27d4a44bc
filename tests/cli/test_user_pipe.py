"""A new project in a pipe: plain text for programs, notes beside it, and an exit code that can be relied on."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.user import COMMAND, environment, in_pipe

pytestmark = pytest.mark.slow

LOOKING = {
    "status": ["status"],
    "graph": ["graph"],
    "why": ["why", "in_euros", "id=2"],
    "forward": ["why", "sales", "5", "--forward"],
    "replay": ["verify", "--replay"],
    "errors": ["errors"],
    "doctor": ["doctor", "--no-spark"],
    "plan": ["run", "--dry-run"],
    "run": ["run"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A new project that has run once, by nothing but commands."""
    folder = tmp_path_factory.mktemp("user")
    new = in_pipe(folder, "new", "shop")
    assert (new.code, new.out.split()[:2]) == (0, ["made", "shop"])
    assert new.err == "next: cd shop; floodmark run\n"
    first = in_pipe(folder / "shop", "run")
    assert first.code == 0, first.err
    assert [line.partition(":")[0] for line in first.out.splitlines()] == [
        "ingest_sales",
        "convert",
        "sales.size",
        "total",
    ]
    assert first.err.splitlines()[-1].startswith("4 steps: 4 done (")
    check_plain(first.out + first.err)
    return folder / "shop"


def check_plain(text: str) -> None:
    assert "\x1b" not in text
    assert "\r" not in text
    assert "━" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("verb", LOOKING)
def test_answer_in_a_pipe_is_plain_text(made, verb):
    said = in_pipe(made, *LOOKING[verb])
    assert said.code == 0, said
    check_plain(said.out + said.err)
    assert all(line == line.rstrip() for line in said.out.splitlines())
    assert bool(said.out) == (verb != "errors")  # nothing failed: that is a note


@pytest.mark.parametrize("verb", LOOKING)
def test_json_is_one_document_and_nothing_else(made, verb):
    said = in_pipe(made, *LOOKING[verb], "--json")
    assert (said.code, said.err) == (0, "")
    assert isinstance(json.loads(said.out), dict)


def test_what_the_commands_say_is_true(made):
    assert in_pipe(made, "sql", "select * from totals order by shop", "--json").json["rows"] == [
        {"shop": "Boston", "euros": 124.2, "sales": 2},
        {"shop": "Oslo", "euros": 28.73, "sales": 2},
        {"shop": "Rome", "euros": 61.5, "sales": 2},
    ]
    why = in_pipe(made, "why", "in_euros", "id=2", "--json").json
    [sold] = [record for given in why["inputs"] for record in given["records"]]
    assert (sold["dataset"], sold["values"]["price"]) == ("sales", 19.5)


@pytest.mark.parametrize("verb", ["status", "replay", "run"])
def test_reader_that_has_left_is_no_error(made, verb):
    """`floodmark … | head -0`: nothing is said, and no success is claimed."""
    with subprocess.Popen(
        [COMMAND, *LOOKING[verb]],
        cwd=made,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(60)
    assert code == 141, err
    assert "Traceback" not in err
    assert "error" not in err.lower()


def test_long_answer_can_be_cut_off_by_head(made):
    line = f"set -o pipefail; {COMMAND} sql 'select * from range(300000)' | head -1"
    found = subprocess.run(
        ["bash", "-c", line], cwd=made, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout.strip(), found.stderr) == (141, "range", "")


def test_answer_that_does_not_fit_on_a_disk_is_an_error(made):
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [COMMAND, "status"], cwd=made, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert found.returncode == 1
    assert found.stderr == "error: No space left on device\n"


def test_new_file_is_taken_in_and_only_its_rows_are_processed(made, tmp_path):
    shop = shutil.copytree(made, tmp_path / "shop")
    (shop / "data" / "2026-03.csv").write_text("id,at,shop,currency,price\n7,2026-03-01T10:00:00Z,Rome,EUR,100.0\n")
    planned = in_pipe(shop, "run", "--dry-run").out.splitlines()
    assert planned[0] == "ingest_sales: 1 new file"
    runs = {one["step"]: one for one in in_pipe(shop, "run", "--json").json["runs"]}
    assert (runs["convert"]["keys"], runs["convert"]["new"]) == (1, 1)
    assert (runs["total"]["new"], runs["total"]["changed"]) == (0, 1)
    assert runs["sales.size"]["computed"] == 1
