"""BatchGenerate: all rows come, and only what changed is written; what fails half way changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import floodmark as fm
from faults.recording import HastyFileSystem
from floodmark.errors import (
    BadColumnName,
    BadPrimaryKey,
    BadResult,
    BadStep,
    DuplicateKeys,
    NothingCame,
    OutputTaken,
    StepFailed,
)
from floodmark.sources.generators import BatchGenerate
from floodmark.storage.local import LocalStore
from floodmark.transforms.specs import OutputSpec
from transforms.crash_points import crashed_lakes

FILES = OutputSpec("files", key="id")


@pytest.fixture
def lake(tmp_path):
    return fm.Lake(tmp_path / "lake")


class Source:
    """What a generator finds at its source: a list of frames, and an error that may end it."""

    def __init__(self, *frames: Any, error: Exception | None = None) -> None:
        self.frames = list(frames)
        self.error = error

    def __call__(self) -> Iterator[Any]:
        yield from self.frames
        if self.error is not None:
            raise self.error


def frame(ids: list[int], size: int = 0) -> pd.DataFrame:
    return pd.DataFrame({"id": ids, "size": [size + i for i in ids]})


def rows(lake: fm.Lake, name: str = "files") -> dict[int, int]:
    table = lake[name].to_arrow()
    return dict(zip(table["id"].to_pylist(), table["size"].to_pylist(), strict=True))


def test_the_first_run_makes_the_output_in_one_commit(lake):
    report = BatchGenerate(Source(frame([1, 2]), frame([3])), [FILES], name="list").run(lake)
    assert rows(lake) == {1: 1, 2: 2, 3: 3}
    assert (report.commits, report.new, report.keys, report.called) == (1, 3, 3, 2)
    assert lake["files"].strategy.key == ("id",)


def test_only_what_changed_is_written_and_what_is_gone_is_retracted(lake):
    source = Source(frame([1, 2, 3]))
    step = BatchGenerate(source, [FILES], name="list")
    step.run(lake)
    source.frames = [frame([1]), frame([2], size=10), frame([4])]
    report = step.run(lake)
    assert rows(lake) == {1: 1, 2: 12, 4: 4}
    assert (report.commits, report.new, report.changed, report.retracted) == (1, 1, 1, 1)


def test_nothing_changed_commits_nothing(lake):
    step = BatchGenerate(Source(frame([1, 2])), [FILES], name="list")
    step.run(lake)
    head = lake["files"].head
    assert step.run(lake).nothing
    assert lake["files"].head == head


def test_without_delete_stale_rows_that_do_not_come_stay(lake):
    source = Source(frame([1, 2]))
    step = BatchGenerate(source, [FILES], delete_stale=False, name="list")
    step.run(lake)
    source.frames = [frame([2], size=5)]
    assert step.run(lake).changed == 1
    assert rows(lake) == {1: 1, 2: 7}
    source.frames = []
    assert step.run(lake).nothing  # there is nothing to say, and nothing to be afraid of


@pytest.mark.parametrize("frames", [[], [pd.DataFrame()], [frame([])], [pd.DataFrame({"id": []})]])
def test_a_run_without_rows_deletes_nothing_unless_it_may(lake, frames):
    source = Source(frame([1, 2]))
    step = BatchGenerate(source, [FILES], name="list")
    step.run(lake)
    source.frames = frames
    with pytest.raises(NothingCame, match=r"would delete all rows of 'files'.*\n.*allow_empty=True"):
        step.run(lake)
    assert rows(lake) == {1: 1, 2: 2}
    allowed = BatchGenerate(source, [FILES], name="list", allow_empty=True)
    assert allowed.run(lake).retracted == 2
    assert rows(lake) == {}
    assert step.run(lake).nothing  # nothing is left to be lost


def test_a_first_run_without_rows_makes_nothing(lake):
    assert BatchGenerate(Source(), [FILES], name="list").run(lake).nothing
    assert "files" not in lake


def test_a_generator_that_fails_half_way_changes_nothing(lake):
    source = Source(frame([1, 2]))
    step = BatchGenerate(source, [FILES], name="list")
    step.run(lake)
    head = lake["files"].head
    source.frames, source.error = [frame([3])], KeyError("listing broke")
    with pytest.raises(StepFailed, match=r"step 'list' failed after 1 frame: KeyError.*test_generate\.py") as caught:
        step.run(lake)
    assert isinstance(caught.value.__cause__, KeyError)
    assert lake["files"].head == head
    assert not any((lake.store.staging()).iterdir())


def test_a_generator_that_fails_on_its_first_run_makes_no_output(lake):
    with pytest.raises(StepFailed):
        BatchGenerate(Source(frame([1]), error=ValueError("no")), [FILES], name="list").run(lake)
    assert "files" not in lake


def test_an_interrupt_is_no_failure_of_the_function(lake):
    def interrupted():
        yield frame([1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BatchGenerate(interrupted, [FILES]).run(lake)


def test_several_outputs_come_as_tuples(lake):
    source = Source((frame([1]), None), (frame([2]), frame([7])), (None, frame([8])))
    step = BatchGenerate(source, [FILES, OutputSpec("errors", key="id")], name="list")
    assert step.run(lake).commits == 2
    assert (rows(lake), rows(lake, "errors")) == ({1: 1, 2: 2}, {7: 7, 8: 8})
    source.frames = [(frame([1, 2]), None)]  # errors went away, which is no accident: rows came
    assert step.run(lake).commits == 1
    assert (rows(lake), rows(lake, "errors")) == ({1: 1, 2: 2}, {})


@pytest.mark.parametrize("given", [frame([1]), (frame([1]),), (frame([1]), frame([2]), frame([3]))])
def test_another_number_of_frames_than_outputs_is_refused(lake, given):
    step = BatchGenerate(Source(given), [FILES, OutputSpec("errors", key="id")], name="list")
    with pytest.raises(BadResult, match="yield a tuple of 2 frames"):
        step.run(lake)
    assert "files" not in lake


@pytest.mark.parametrize(
    "returned",
    [frame([1]), [frame([1])], iter([frame([1])]), pa.table({"id": [1], "size": [1]}), pl.DataFrame(frame([1]))],
)
def test_a_function_may_return_frames_instead_of_yielding_them(lake, returned):
    BatchGenerate(lambda: returned, [FILES], name="list").run(lake)
    assert rows(lake) == {1: 1}


@pytest.mark.parametrize("returned", [None, 7, "files.csv"])
def test_a_function_that_returns_no_frames_is_refused(lake, returned):
    with pytest.raises(BadResult, match="not frames"):
        BatchGenerate(lambda: returned, [FILES], name="list").run(lake)


def test_kwargs_reach_the_function(lake):
    def listing(start, end):
        yield frame(list(range(start, end)))

    BatchGenerate(listing, [FILES], kwargs={"start": 2, "end": 4}).run(lake)
    assert rows(lake) == {2: 2, 3: 3}


def test_an_output_that_is_to_be_made_needs_a_key(lake):
    called = []
    with pytest.raises(BadStep, match=r"OutputSpec\('files', key="):
        BatchGenerate(lambda: called.append(1), ["files"], name="list").run(lake)
    assert called == []  # before the function is called, which may take hours


def test_an_output_that_is_there_has_its_own_key(lake):
    lake.create("files", key="id", merge="snapshot")
    BatchGenerate(Source(frame([1, 2])), ["files"], name="list").run(lake)
    assert rows(lake) == {1: 1, 2: 2}
    with pytest.raises(OutputTaken, match=r"its key is \['id'\]"):
        BatchGenerate(Source(frame([1])), [OutputSpec("files", key="size")], name="list").run(lake)


@pytest.mark.parametrize("made", [{}, {"key": "id", "merge": "ledger"}, {"key": "id", "merge": "changelog"}])
def test_an_output_whose_rows_cannot_change_is_refused(lake, made):
    lake.create("files", **made)
    with pytest.raises(OutputTaken, match="cannot write to 'files'"):
        BatchGenerate(Source(frame([1])), ["files"], name="list").run(lake)


def test_an_output_of_another_step_is_refused(lake):
    lake.create_derived("files", key="id")
    with pytest.raises(OutputTaken, match="results of another step"):
        BatchGenerate(Source(frame([1])), ["files"], name="list").run(lake)


def test_two_rows_with_one_key_are_refused(lake):
    with pytest.raises(DuplicateKeys):
        BatchGenerate(Source(frame([1]), frame([1], size=3)), [FILES], name="list").run(lake)


def test_a_row_without_its_key_is_refused(lake):
    with pytest.raises(BadPrimaryKey):
        BatchGenerate(Source(pa.table({"id": [1, None], "size": [1, 2]})), [FILES], name="list").run(lake)


@pytest.mark.parametrize("delete_stale", [True, False])
def test_a_column_of_operations_is_not_taken_for_one(lake, delete_stale):
    with pytest.raises(BadColumnName):
        BatchGenerate(Source(pa.table({"id": [1], "op": [1]})), [FILES], delete_stale, name="list").run(lake)


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_that_dies_at_any_change_of_a_file_is_made_good_by_the_next(tmp_path):
    source = Source((frame([1, 2]), frame([5])))
    step = BatchGenerate(source, [FILES, OutputSpec("errors", key="id")], name="list")
    step.run(fm.Lake(LocalStore(tmp_path / "lake", HastyFileSystem())))
    source.frames = [(frame([2], size=1), frame([5, 6]))]
    for lake in crashed_lakes(tmp_path / "lake", step.run, 8):
        assert rows(lake) in ({1: 1, 2: 2}, {2: 3})
        step.run(lake)
        assert (rows(lake), rows(lake, "errors")) == ({2: 3}, {5: 5, 6: 6})
        assert step.run(lake).nothing
        assert lake["files"].verify().problems == ()
