"""A timeline as a Spark frame: the same rows in the same order as without Spark, whatever lies over what."""

from __future__ import annotations

import pytest

import floodmark as fm
from floodmark.engine.session import Runtime
from limits import set_limit
from timeline.oracle import expected
from timeline.timeline_worlds import BEGIN, DAY, HOUR, moment, world

pytestmark = pytest.mark.spark


def rows(frame) -> list[tuple]:
    return [tuple(row) for row in frame.collect()]


def wanted(dataset, *columns, start=None, end=None) -> list[tuple]:
    return [tuple(row[c] for c in columns) for row in expected(dataset, start, end).to_pylist()]


@pytest.fixture(params=["append", "upsert"])
def ticks(request, tmp_path, session):
    """Three days of ticks in any order, some of them late, and some that the timeline has not taken in."""
    made = world(tmp_path / "lake", kind=request.param, mode="lazy")
    lake = fm.Lake(tmp_path / "lake", runtime=Runtime(session=session))
    dataset = lake["ticks"]
    for number in range(8):
        low = BEGIN + number % 3 * DAY
        ids = None if request.param == "append" else [(number * 40 + i) % 200 for i in range(120)]
        dataset.write(made.table(made.times(low, low + DAY, 120), ids))
        if number == 4:
            dataset.update_timeline()
    return dataset


def test_frame_is_in_event_time_order(ticks):
    assert rows(ticks.timeline(columns=["offset", "id"])) == wanted(ticks, "offset", "id")
    assert ticks.timeline().columns == ticks.schema.names


def test_many_tasks_read_the_spans_in_order(ticks, monkeypatch):
    set_limit(monkeypatch, "spark_frame.least_bytes", 2000)
    set_limit(monkeypatch, "spark_frame.again", 1000)
    frame = ticks.timeline(columns=["offset", "v"])
    assert frame.rdd.getNumPartitions() > 2
    assert rows(frame) == wanted(ticks, "offset", "v")


def test_rows_in_no_order_are_sorted_by_spark(ticks, monkeypatch):
    set_limit(monkeypatch, "spark_frame.least_bytes", 2000)
    set_limit(monkeypatch, "spark_frame.again", 0)
    start, end = moment(BEGIN + 5 * HOUR), moment(BEGIN + 2 * DAY)
    frame = ticks.timeline(start, end, columns=["id"])
    assert frame.columns == ["id"]
    assert rows(frame) == wanted(ticks, "id", start=start, end=end)


def test_an_empty_range_is_an_empty_frame(ticks):
    frame = ticks.timeline("2020-01-01", "2020-01-02", columns=["id", "at"])
    assert frame.columns == ["id", "at"]
    assert rows(frame) == []


@pytest.mark.parametrize("again", [0, 1000])
def test_a_file_of_the_timeline_that_is_gone_is_made_up_for_by_the_ledger(again, ticks, monkeypatch, tmp_path):
    set_limit(monkeypatch, "spark_frame.least_bytes", 2000)
    set_limit(monkeypatch, "spark_frame.again", again)
    frame = ticks.timeline(columns=["offset", "v"])
    files = tmp_path / "lake" / ticks.parts.ledger.objects.folder / "info/timeline/files"
    if files.exists():
        for path in files.iterdir():
            path.unlink()
    assert rows(frame) == wanted(ticks, "offset", "v")
