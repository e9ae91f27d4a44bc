"""A new project in a pipe: plain text for programs, notes beside it, and an exit code that can be relied on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.conftest import invoke, project
from cli.user import COMMAND, PATIENCE, environment, in_pipe
from transforms.worlds import in_this_process

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
    with project(folder), in_this_process():
        new = invoke("new", "shop")
    assert (new.code, new.out.split()[:2]) == (0, ["created", "shop"])
    assert new.err == "next: cd shop; floodmark run\n"
    with project(folder / "shop"), in_this_process():
        first = invoke("run")
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


@pytest.fixture
def shop(made: Path, run):
    """The current folder is the project."""
    with project(made):
        yield made


def check_plain(text: str) -> None:
    assert "\x1b" not in text
    assert "\r" not in text
    assert "━" not in text
    assert "Traceback" not in text


@pytest.mark.slow
@pytest.mark.parametrize("verb", LOOKING)
def test_answer_in_a_pipe_is_plain_text(shop, run, verb):
    said = run(*LOOKING[verb])
    assert said.code == 0, said
    check_plain(said.out + said.err)
    assert all(line == line.rstrip() for line in said.lines)
    assert bool(said.out) == (verb != "errors")  # nothing failed: that is a note


@pytest.mark.parametrize("verb", LOOKING)
def test_json_is_one_document_and_nothing_else(shop, run, verb):
    said = run(*LOOKING[verb], "--json")
    assert (said.code, said.err) == (0, "")
    assert isinstance(said.json, dict)


@pytest.mark.process
def test_installed_command_does_the_same(made):
    said = in_pipe(made, "run")
    assert said.code == 0, said
    assert said.out.count("nothing to do") == 4
    check_plain(said.out + said.err)
    said = in_pipe(made, "status", "--json")
    assert (said.code, said.err) == (0, "")
    assert isinstance(said.json, dict)


def test_what_the_commands_say_is_true(shop, run):
    assert run("sql", "select * from totals order by shop", "--json").json["rows"] == [
        {"shop": "Boston", "euros": 124.2, "sales": 2},
        {"shop": "Oslo", "euros": 28.73, "sales": 2},
        {"shop": "Rome", "euros": 61.5, "sales": 2},
    ]
    why = run("why", "in_euros", "id=2", "--json").json
    [sold] = [record for given in why["inputs"] for record in given["records"]]
    assert (sold["dataset"], sold["values"]["price"]) == ("sales", 19.5)


@pytest.mark.process
def test_reader_that_has_left_is_no_error(made):
    """`floodmark run | head -0`: nothing is said, and no success is claimed."""
    with subprocess.Popen(
        [COMMAND, "run"], cwd=made, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait(PATIENCE)
    assert code == 141, err
    assert "Traceback" not in err
    assert "error" not in err.lower()


@pytest.mark.process
def test_answer_that_does_not_fit_on_a_disk_is_an_error(made):
    command = [COMMAND, "status"]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            command, cwd=made, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
        )
    assert found.returncode == 1
    assert found.stderr == "error: No space left on device\n"


def test_new_file_is_taken_in_and_only_its_rows_are_processed(made, run, tmp_path):
    shop = shutil.copytree(made, tmp_path / "shop")
    (shop / "data" / "2026-03.csv").write_text("id,at,shop,currency,price\n7,2026-03-01T10:00:00Z,Rome,EUR,100.0\n")
    with project(shop):
        assert run("run", "--dry-run").lines[0] == "ingest_sales: 1 new file"
        runs = {one["step"]: one for one in run("run", "--json").json["runs"]}
    assert (runs["convert"]["keys"], runs["convert"]["new"]) == (1, 1)
    assert (runs["total"]["new"], runs["total"]["changed"]) == (0, 1)
    assert runs["sales.size"]["computed"] == 1
