"""A step that writes to a dataset with a timeline: what it wrote is in there, as after any other write."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

import floodmark as fm
from floodmark.sources.generators import BatchGenerate
from floodmark.timeline import update
from floodmark.transforms.specs import OutputSpec

DAY = datetime(2026, 11, 1, tzinfo=UTC)


def frame(*ids):
    return pd.DataFrame({"id": ids, "at": [DAY + timedelta(minutes=100 - i) for i in ids]})


def made(tmp_path, mode):
    lake = fm.Lake(tmp_path / "lake")
    lake.create("files", key="id", merge="snapshot", event_time="at", partition_by="day", timeline=mode)
    return lake, BatchGenerate(lambda: frame(*wanted), [OutputSpec("files", key="id")], name="list")


wanted = [1, 2, 3]


@pytest.mark.parametrize(("mode", "behind"), [("eager", 0), ("lazy", 3)])
def test_the_timeline_follows_if_it_follows_writes(tmp_path, mode, behind):
    lake, step = made(tmp_path, mode)
    step.run(lake)
    assert lake["files"].timeline_stats().behind == behind
    assert lake["files"].timeline_batches(columns=["id"]).read_all()["id"].to_pylist() == [3, 2, 1]


def test_a_timeline_that_cannot_follow_fails_no_step(tmp_path, monkeypatch, caplog):
    lake, step = made(tmp_path, "eager")

    def refuse(*_):
        raise OSError("no room")

    monkeypatch.setattr(update, "advance", refuse)
    with caplog.at_level(logging.WARNING):
        assert step.run(lake).new == 3
    assert "no room" in caplog.text
    monkeypatch.undo()
    assert lake["files"].timeline_stats().behind == 3
