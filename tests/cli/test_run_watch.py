"""`floodmark run --watch` ends like a single run, and holds on to nothing that it does not need."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from floodmark.cli.run import _FailedSteps
from floodmark.pipeline import run as watching
from floodmark.pipeline.graph import PipelineNode
from floodmark.pipeline.nodes import NodeResult
from floodmark.pipeline.run import NodeOutcome, PipelineReport

ONCE = ["run", "--watch", "--watch-seconds", "0"]
A, B = PipelineNode("a", "step", (), ("x",)), PipelineNode("b", "step", ("x",), ("y",))
WELL, FAILED_KEYS = NodeResult(False, rows=1), NodeResult(False, rows=1, failed=2)


@pytest.fixture
def asked(monkeypatch) -> dict[str, Any]:
    """What the watch was asked for, which is not begun."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(watching, "watch", lambda *args, **options: found.update(options, show=args[3]))
    return found


def test_watch_at_whose_end_a_step_fails_exits_1(run, orders, folder):
    text = (folder / "pipeline.py").read_text()
    (folder / "pipeline.py").write_text(
        text.replace("def goods", "def goods(*_):\n    raise ValueError\n\n\ndef other")
    )
    answer = run(*ONCE, "goods")
    assert (answer.code, answer.out) == (1, "")
    assert "error: goods: " in answer.err
    assert run(*ONCE, "goods", "--json").code == 1


def test_watch_in_which_keys_failed_exits_1_if_it_is_strict(run, orders, folder):
    assert run(*ONCE, "prices").code == 0
    assert run(*ONCE, "prices", "--strict").code == 1
    (folder / "mended").touch()
    assert run(*ONCE, "prices", "--strict").code == 0


def test_last_time_that_a_step_did_something_decides():
    bad = _FailedSteps()
    for outcomes, failed, with_failures in [
        ([NodeOutcome(A, "failed", "no"), NodeOutcome(B, "skipped", "a failed")], {"a", "b"}, set()),
        ([NodeOutcome(A, "done", done=FAILED_KEYS)], {"b"}, {"a"}),
        ([NodeOutcome(A, "nothing"), NodeOutcome(B, "done", done=WELL)], set(), {"a"}),
        ([NodeOutcome(A, "done", done=WELL)], set(), set()),
    ]:
        bad.update(PipelineReport(tuple(outcomes), 0.0))
        assert (bad.failed, bad.with_failed_records) == (failed, with_failures)


def test_workers_of_the_project_are_those_of_a_watch(run, orders, folder, asked):
    toml = folder / "floodmark.toml"
    toml.write_text(f"{toml.read_text()}\n[defaults]\nworkers = 7\n")
    run(*ONCE)
    assert asked["workers"] == 7
    run(*ONCE, "--workers", "3")
    assert asked["workers"] == 3


class Weighty(ValueError):
    """An error that can be looked for, when nobody should have it any more."""


@pytest.mark.slow
def test_watch_forgets_what_went_wrong_when_it_has_said_it(run, orders, asked):
    run(*ONCE)
    error = Weighty("no good")
    outcome = NodeOutcome(A, "failed", "no good", error=error)
    asked["watcher"].ended(outcome)
    asked["show"](PipelineReport((outcome,), 0.0))
    there = weakref.ref(error)
    del error, outcome
    gc.collect()
    assert there() is None


def test_step_of_a_watch_that_takes_long_says_how_far_it_is(run, orders, asked):
    run(*ONCE)
    assert asked["watcher"].progress(A) is not None
    run(*ONCE, "--json")
    assert asked["watcher"].progress(A) is None


def test_watch_reports_files_that_are_gone_though_nothing_was_written(run, folder):
    run("init")
    (folder / "pipeline.py").write_text(
        "from floodmark import Pipeline, Source\n\npipeline = Pipeline([Source('n', files='data/*.csv')])\n"
    )
    (folder / "data").mkdir()
    for name in ("a", "b"):
        (folder / "data" / f"{name}.csv").write_text(f"n\n{ord(name)}\n")
    run(*ONCE)
    (folder / "data" / "a.csv").unlink()
    assert run(*ONCE).lines == ["ingest_n: nothing to do", "  1 file gone, its rows stay: data/a.csv"]
    assert run(*ONCE).lines == []
    (folder / "data" / "b.csv").unlink()
    [line, note] = run(*ONCE).lines
    assert line.startswith("ingest_n: waits: no file matches")
    assert note == "  1 file gone, its rows stay: data/b.csv"
