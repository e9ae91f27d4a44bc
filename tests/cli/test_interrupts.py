"""Ctrl-C counts even when a library swallows it or makes an error of its own of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from floodmark.cli import command
from floodmark.dataset import Dataset
from waiting import PATIENCE


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Iterator[None]:
    """A shell that starts pytest in the background has it ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_error_that_a_library_made_of_it_is_an_interrupt(run, trips, monkeypatch):
    def verify(self, expect):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Query interrupted") from error

    monkeypatch.setattr(Dataset, "verify", verify)
    answer = run("verify")
    assert (answer.code, answer.err) == (130, "error: interrupted\n")


def test_same_error_without_ctrl_c_is_a_defect(run, trips, monkeypatch):
    def verify(self, expect):
        raise RuntimeError("no reason")

    monkeypatch.setattr(Dataset, "verify", verify)
    with pytest.raises(RuntimeError, match="no reason"):
        run("verify")


def test_swallowed_interrupt_stops_the_command_before_it_does_anything(run, trips, monkeypatch):
    open_lake = command.open_lake

    def swallowing(place, runtime):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return open_lake(place, runtime)

    with monkeypatch.context() as patched:
        patched.setattr(command, "open_lake", swallowing)
        assert run("drop", trips, "--yes").code == 130
    assert [d["name"] for d in run("list", "--json").json["datasets"]] == [trips]


@pytest.mark.process
def test_interrupted_command_does_not_wait_for_threads(folder):
    program = (
        "import threading, time\n"
        "from floodmark.cli import command, main\n"
        "def stuck(place, runtime):\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    raise KeyboardInterrupt\n"
        "command.open_lake = stuck\n"
        "main()"
    )
    found = subprocess.run([sys.executable, "-c", program, "list"], capture_output=True, text=True, timeout=PATIENCE)
    assert (found.returncode, found.stderr.strip()) == (130, "error: interrupted")


IMPORTING = """
import os, signal, sys
import floodmark.cli

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "floodmark.cli.columns":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
floodmark.cli.main()
"""


@pytest.mark.process
def test_ctrl_c_while_all_is_being_imported_ends_like_any_other():
    found = subprocess.run([sys.executable, "-c", IMPORTING, "list"], capture_output=True, text=True, timeout=PATIENCE)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "error: interrupted\n")
