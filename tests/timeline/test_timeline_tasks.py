"""Tasks that read a timeline: each is sent its own spans, and what all need only once. Without a JVM."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from floodmark.timeline import read, sections
from limits import set_limit
from timeline.layouts import assert_sound
from timeline.oracle import expected
from timeline.timeline_worlds import BEGIN, DAY, HOUR, moment, template_folder, world


class Driven:
    """Stands in for a frame and for the session that makes it: tasks run here, one after the other."""

    def createDataFrame(self, table, _=None):  # noqa: N802  as Spark calls it
        self.table = table
        return self

    def repartitionById(self, count, column):  # noqa: N802
        assert self.table.column(column).to_pylist() == list(range(count))
        return self

    def mapInArrow(self, function, _):  # noqa: N802
        self.function = pickle.dumps(function)
        return self

    @property
    def tasks(self) -> int:
        return self.table.num_rows

    def rows(self) -> pa.Table:
        """What the tasks give, in order. Each has a copy of the function, and one row of the table."""
        found = []
        for i in range(self.tasks):
            function = pickle.loads(self.function)
            found += function(iter(self.table.slice(i, 1).to_batches()))
        return pa.Table.from_batches(found)


@pytest.fixture
def ticks(corrected, tmp_path):
    return corrected.copied(tmp_path)


@pytest.fixture(scope="module")
def corrected():
    """Three days of ticks of which many were corrected: the timeline's files hold offsets from everywhere."""
    made = world(template_folder(), kind="upsert")
    for number in range(8):
        ids = [(number * 40 + i) % 200 for i in range(120)]
        times = [BEGIN + i * 3 * DAY // 200 for i in ids]
        made.write(made.table(times, ids))
    made.dataset.fold()
    assert_sound(made.dataset)
    return made


def driven(dataset, monkeypatch, least=500, start=None, end=None, **changed) -> Driven:
    set_limit(monkeypatch, "spark_frame.least_bytes", least)
    set_limit(monkeypatch, "spark_frame.tasks", 10**9)
    reading = replace(dataset.parts.timeline.reading(start, end, ["offset", "v"]), **changed)
    return read.spark_frame(reading, Driven())


@pytest.mark.slow
def test_tasks_one_after_the_other_give_all_rows_in_order(ticks, monkeypatch):
    frame = driven(ticks.dataset, monkeypatch)
    assert frame.tasks > 3
    assert frame.rows()["offset"].to_pylist() == expected(ticks.dataset)["offset"].to_pylist()


def test_the_dead_are_sent_once_however_many_tasks_there_are(ticks, monkeypatch):
    dead = np.sort(np.random.default_rng(0).choice(3_000_000, 250_000, replace=False))
    few, many = (driven(ticks.dataset, monkeypatch, least, dead=dead) for least in (10**9, 1))
    assert few.tasks == 1
    assert many.tasks > 5
    assert len(many.function) == len(few.function) < 2 * len(dead)
    assert max(len(spans) for spans in many.table["spans"].to_pylist()) < 1000
    assert pickle.loads(many.function).args[0].spans == ()  # each task has its own in its row


def test_a_reading_that_travelled_is_the_same(ticks):
    reading = ticks.dataset.parts.timeline.reading(None, None, ["offset", "v"])
    for dead in (reading.dead, reading.dead[:1], reading.dead[:0], np.array([0, 2**40, 2**41])):
        there = pickle.loads(pickle.dumps(replace(reading, dead=dead)))
        assert (there.spans, there.columns, there.purged_before) == (reading.spans, reading.columns, 0)
        assert there.fallback.head == reading.fallback.head
        assert there.dead.tolist() == dead.tolist()


@pytest.mark.parametrize("ends", [(None, None), (BEGIN + 5 * HOUR, BEGIN + 2 * DAY + HOUR)])
def test_tasks_make_up_for_damaged_files_by_the_ledger(ends, ticks, monkeypatch, caplog):
    start, end = (None if each is None else moment(each) for each in ends)
    frame = driven(ticks.dataset, monkeypatch, start=start, end=end)
    right = frame.rows()
    paths = sorted((ticks.folder / ticks.dataset.snapshot().objects.folder / "info/timeline/files").iterdir())
    assert frame.tasks > 3
    for path in paths:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        assert frame.rows().equals(right)
    assert "read from the ledger" in caplog.text


def test_rows_that_spark_sorts_need_no_file_of_the_timeline(ticks, monkeypatch):
    set_limit(monkeypatch, "spark_frame.least_bytes", 500)
    reading = ticks.dataset.parts.timeline.reading(None, None, ["offset", "v"])
    source = reading.alone(reading.fallback, sections.Range(reading.spans[0].lo, reading.spans[-1].hi))
    assert all(piece.file.startswith("data/") for span in source.spans for piece in span.pieces)
    assert source.to_reader().read_all().equals(reading.to_reader().read_all())
