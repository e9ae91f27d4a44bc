"""A worker sees the folder, the environment and the import path of its driver."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.engine.worker_setup import WorkerEnvironment


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This process is as it was after the test."""
    monkeypatch.chdir(Path.cwd())
    for name in ("FM_KEPT", "FM_GONE", "FM_OWN"):
        monkeypatch.setenv(name, "before")
    return monkeypatch


def test_a_variable_that_the_driver_removed_is_removed(restored: pytest.MonkeyPatch):
    before = WorkerEnvironment.of_this_process()
    environ = {name: value for name, value in before.environ.items() if name != "FM_GONE"}
    replace(before, environ={**environ, "FM_KEPT": "after"}).apply(before)
    assert "FM_GONE" not in os.environ
    assert os.environ["FM_KEPT"] == "after"


def test_a_variable_that_a_function_changed_stays_when_the_driver_did_not_change_it(restored: pytest.MonkeyPatch):
    before = WorkerEnvironment.of_this_process()
    restored.setenv("FM_OWN", "by a function")
    before.apply(before)
    assert os.environ["FM_OWN"] == "by a function"


def test_a_new_worker_moves_into_the_folder_of_its_driver(restored: pytest.MonkeyPatch, tmp_path: Path):
    replace(WorkerEnvironment.of_this_process(), folder=str(tmp_path)).apply(None)
    assert Path.cwd() == tmp_path
