"""What every verb has, and what happens to commands that make no sense."""

from __future__ import annotations

import os
import re

import click
import pytest

from floodmark.cli.app import floodmark

VERBS = list(floodmark.commands)
COMMANDS = [
    [name, *within]
    for name, command in floodmark.commands.items()
    for within in ([[inner] for inner in command.commands] if isinstance(command, click.Group) else [[]])
]


def test_all_verbs_are_there_in_the_order_of_use(run):
    help_text = run("--help").out
    listed = re.findall(r"^  (\w+) ", help_text.split("Commands:")[1], re.MULTILINE)
    assert listed == VERBS
    assert sorted(listed) == sorted(
        [
            *("new", "init", "list", "ingest", "log", "tail", "changes", "history", "timeline", "sql", "schema"),
            *("columns", "backfill"),
            *("view", "refresh", "run", "plan", "status", "graph", "errors", "retry", "offsets", "reset", "why"),
            *(
                "checkpoints",
                "delete",
                "fold",
                "gc",
                "verify",
                "doctor",
                "backup",
                "restore",
                "purge",
                "erase",
                "drop",
                "rename",
            ),
        ]
    )


def test_help_documents_the_exit_codes(run):
    help_text = run("--help").out
    for code in ("0", "1", "2", "3", "130", "141"):
        assert re.search(rf"^    {code} ", help_text, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_verb_has_lake_json_and_an_example(run, command):
    answer = run(*command, "--help")
    verb = " ".join(command)
    assert answer.code == 0
    assert "--lake PATH" in answer.out
    assert "--json" in answer.out
    assert f"\n  floodmark {verb} " in answer.out or f"\n  floodmark {verb}\n" in answer.out


def test_mistyped_verb_is_a_did_you_mean(run):
    answer = run("lsit")
    assert answer.code == 2
    assert "Did you mean 'list'?" in answer.err


@pytest.mark.parametrize("verb", ["log", "tail", "changes", "schema", "columns", "fold", "verify", "drop"])
def test_mistyped_dataset_is_a_did_you_mean(run, trips, verb):
    answer = run(verb, "tripz")
    assert answer.code == 1
    assert "did you mean 'trips'?" in answer.err
    assert answer.out == ""


def test_error_with_json_is_a_document_on_stdout(run, trips):
    answer = run("log", "tripz", "--json")
    assert answer.code == 1
    assert answer.err == ""
    assert set(answer.json["error"]) == {"type", "message", "hint"}
    assert answer.json["error"]["type"] == "UnknownDataset"
    assert answer.json["error"]["hint"] == "did you mean 'trips'?"


@pytest.mark.parametrize("command", [["list"], ["verify"], ["sql", "select 1 where false"]], ids=lambda c: c[0])
def test_with_json_nothing_is_said_beside_the_document(run, command):
    run("init")
    assert run(*command).err != ""
    answer = run(*command, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json


@pytest.mark.parametrize("command", [["list", "--nope"], ["log"], ["tail", "trips", "-n", "0"], ["nope"]])
def test_command_that_cannot_be_parsed_exits_2(run, command):
    assert run(*command).code == 2
    answer = run(*command, "--json")
    assert (answer.code, answer.json["error"]["type"]) == (2, "UsageError")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folder_that_may_not_be_read_is_said_without_a_traceback(run, trips, folder):
    (folder / "lake").chmod(0)
    try:
        assert run("list").code == 1
    finally:
        (folder / "lake").chmod(0o755)


def test_failure_of_the_operating_system_is_said_without_a_traceback(run, folder):
    (folder / "floodmark.toml").mkdir()  # cannot be written to
    answer = run("init", "--toml")
    assert answer.code == 1
    assert str(folder / "floodmark.toml") in answer.err
