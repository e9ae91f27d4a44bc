"""A function as a source: what it gave before is not taken in again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadStep, StepFailed


@pytest.fixture
def lake(tmp_path: Path) -> fm.Lake:
    return fm.Lake(tmp_path / "lake")


def frame(*ids: int, price: int = 1) -> pa.Table:
    return pa.table({"id": list(ids), "price": [price] * len(ids)})


def source(function, **dataset):
    return fm.Source(fm.DatasetSpec("orders", **dataset), frame=function).step()


def ids(lake: fm.Lake) -> list[int]:
    return sorted(lake["orders"].to_arrow()["id"].to_pylist())


def test_a_frame_of_the_same_content_is_taken_in_once(lake):
    given = [frame(1, 2)]
    step = source(lambda: given[0])
    assert [step.run(lake).new, step.run(lake).new] == [2, 0]
    given[0] = pd.DataFrame({"id": [1, 2], "price": [1, 1]})  # another library, the same rows
    assert step.run(lake).nothing
    given[0] = frame(3)
    assert step.run(lake).new == 1
    assert ids(lake) == [1, 2, 3]


def test_rows_of_a_frame_that_is_not_written_are_counted_and_an_old_frame_is_reported(lake):
    given = [frame(1, 2)]
    step = source(lambda: given[0])
    step.run(lake)
    report = step.run(lake)
    assert (report.keys, report.unchanged, report.notes) == (2, 2, ())
    given[0] = frame(3)
    step.run(lake)
    given[0] = frame(1, 2)
    report = step.run(lake)
    assert (report.keys, report.unchanged, report.nothing) == (2, 2, True)
    assert report.notes == ("not written: an earlier run wrote the frame with this content",)


def test_frame_of_a_state_that_an_earlier_run_wrote_is_reported(lake):
    given = ["monday"]
    step = source(lambda: (frame(1), given[0]))
    step.run(lake)
    given[0] = "tuesday"
    step.run(lake)
    given[0] = "monday"
    assert step.run(lake).notes == ("not written: an earlier run wrote the frame of state 'monday'",)


def test_a_frame_of_a_keyed_dataset_may_become_again_what_it_was(lake):
    given = [frame(1)]
    step = source(lambda: given[0], key="id")
    for price in (1, 2, 1, 2, 2, 3, 2, 1, 1, 3):
        given[0] = frame(1, price=price)
        step.run(lake)
        assert lake["orders"].to_arrow()["price"].to_pylist() == [price]
        assert step.run(lake).nothing


def test_a_frame_comes_again_behind_what_others_wrote(lake):
    given = [frame(1)]
    step, other = source(lambda: given[0], key="id"), frame(9)
    for price in (1, 2, 1, 2):
        given[0] = frame(1, price=price)
        step.run(lake)
        lake["orders"].write(other, source="other", state=f"{lake['orders'].head.text}")
        assert step.run(lake).nothing
        assert lake["orders"].to_arrow().sort_by("id")["price"].to_pylist() == [price, 1]


def test_a_state_says_how_far_a_source_was_read(lake):
    asked = []

    def pages(since):
        asked.append(since)
        number = 0 if since is None else int(since)
        return None if number == 2 else (frame(number), str(number + 1))

    step = source(pages)
    assert [step.run(lake).new for _ in range(4)] == [1, 1, 0, 0]
    assert asked == [None, "1", "2", "2"]
    assert ids(lake) == [0, 1]


def test_a_state_that_was_reached_is_not_taken_in_again_whatever_the_frame(lake):
    given = [frame(1)]
    step = source(lambda: (given[0], "monday"))
    step.run(lake)
    given[0] = frame(1, 2)
    assert step.run(lake).nothing
    assert ids(lake) == [1]


def test_the_state_is_found_behind_what_others_wrote(lake):
    asked = []
    step = source(lambda since: asked.append(since) or (frame(1), "one"))
    step.run(lake)
    lake["orders"].write(frame(9), source="other", state="x")
    step.run(lake)
    assert asked == [None, "one"]


@pytest.mark.parametrize("given", [None, frame()])
def test_a_function_that_gives_nothing_has_nothing_to_do(lake, given):
    assert source(lambda: given, schema={"id": "int64", "price": "int64"}).run(lake).nothing


def test_a_failing_function_is_said_with_its_line(lake):
    def bad():
        raise ValueError("closed")

    with pytest.raises(StepFailed, match=r"ValueError: closed .*test_ingest_frame\.py, line"):
        source(bad).run(lake)


@pytest.mark.parametrize("given", [(frame(1), 7), (frame(1), "a", "b")])
def test_a_tuple_that_is_no_frame_and_state_is_refused(lake, given):
    with pytest.raises(BadStep, match="not a pair"):
        source(lambda: given).run(lake)


@pytest.mark.parametrize("function", [7, lambda a, b: None])
def test_what_cannot_be_called_is_refused_when_declared(function):
    with pytest.raises(BadStep):
        source(function)


@pytest.mark.spark
def test_a_spark_frame_needs_a_state_or_a_key(lake, spark):
    rows = spark.createDataFrame([(1, 2)], "id long, price long")
    with pytest.raises(BadStep, match="without a state"):
        source(lambda: rows).run(lake)
    named = fm.Source(fm.DatasetSpec("stated"), frame=lambda: (rows, "monday")).step()
    assert [named.run(lake).new, named.run(lake).new] == [1, 0]
    keyed = fm.Source(fm.DatasetSpec("keyed", key="id"), frame=lambda: rows).step()
    assert [keyed.run(lake).new, keyed.run(lake).nothing] == [1, True]
