"""Texts of a lake that another person wrote: no command sends their control characters to the terminal."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cli.user import in_pipe
from floodmark import Lake

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


@pytest.fixture
def hostile(run, trips, folder):
    """A lake with control characters wherever a text can be."""
    dataset = Lake(folder / "lake").create("hostile", event_time=f"at{ESCAPE}", key=f"id{ESCAPE}")
    at = pa.array([1], pa.timestamp("us", "UTC"))
    dataset.write(pa.table({f"id{ESCAPE}": [ESCAPE], f"at{ESCAPE}": at}), source=ESCAPE, state=ESCAPE)
    (folder / "lake" / "names" / "damaged").write_text(f'{{"name": "{ESCAPE}", "id": "{ESCAPE}"}}')
    files = folder / "lake" / "datasets" / dataset.id.bytes.hex() / "columns"
    files.mkdir()
    (files / "catalog").write_text(ESCAPE)
    return folder


COMMANDS = (
    ("list",),
    ("log", "hostile"),
    ("schema", "hostile"),
    ("tail", "hostile"),
    ("history", "hostile", "x"),
    ("timeline", "hostile"),
    ("columns", "hostile"),
    ("view", "hostile"),
    ("sql", f"select '{ESCAPE}' as x from {ESCAPE}"),
    ("verify",),
    ("doctor", "--no-spark"),
    ("gc", "--dry-run"),
    ("fold", "hostile"),
    ("drop", "hostile", "--dry-run"),
    ("backup", "copy"),
    ("schema", ESCAPE),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_terminal_gets_no_control_characters(run, hostile, command):
    answer = run(*command)
    shown = answer.out + answer.err
    assert shown
    assert {character for character in shown if ord(character) < 32} <= {"\n"}


@pytest.mark.process
def test_process_prints_warnings_without_control_characters(hostile):
    said = in_pipe(hostile, "list")
    assert "names/damaged does not name a dataset" in said.err
    assert {character for character in said.err if ord(character) < 32} == {"\n"}


def test_dataset_that_cannot_be_checked_is_a_problem_and_the_others_are_checked(run, hostile):
    answer = run("verify")
    assert answer.code == 3
    assert "trips: ok" in answer.out
    assert "hostile: 1 problem" in answer.out
