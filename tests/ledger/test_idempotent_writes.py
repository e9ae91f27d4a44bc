"""The same source and state again is the same commit: no row twice, however often a job is repeated."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import floodmark as fm
from floodmark.errors import BadData
from ledger.worlds import START, numbers, untouched
from limits import set_limit


@pytest.fixture
def dataset(lake):
    return lake.create("d")


def test_pair_again_returns_the_first_commit(dataset):
    first = dataset.write(numbers(0, 3), source="kafka", state="17")
    assert (first.source, first.state) == ("kafka", "17")
    with untouched(dataset):
        assert dataset.write(numbers(0, 3), source="kafka", state="17") == first
    assert dataset.count() == 3


def test_what_is_brought_along_the_second_time_is_not_looked_at(dataset):
    first = dataset.write(numbers(0, 3), source="kafka", state="17")
    assert dataset.write(pa.table({"other": ["columns"]}), source="kafka", state="17") == first


def test_pair_is_found_behind_other_commits(dataset, clock):
    first = dataset.write(numbers(0, 3), source="kafka", state="1")
    dataset.write(numbers(3, 5), source="kafka", state="2")
    dataset.write(numbers(5, 6))
    dataset.write(numbers(6, 7), source="files", state="1")
    dataset.advance_watermark(START + timedelta(days=1))
    dataset.purge(before=3)
    clock.tick()
    with untouched(dataset):
        assert dataset.write(numbers(0, 3), source="kafka", state="1") == first
        assert dataset.write(numbers(6, 7), source="files", state="1").start == 6


def test_pair_is_found_by_another_process(dataset, lake):
    first = dataset.write(numbers(0, 3), source="kafka", state="1")
    reopened = fm.Lake(lake.store)["d"]
    assert reopened.write(numbers(0, 3), source="kafka", state="1") == first


def test_pair_of_many_slices_is_one_commit(dataset, monkeypatch):
    set_limit(monkeypatch, "parts.part_bytes", 80)
    first = dataset.write(numbers(0, 35), source="kafka", state="1")
    assert first.slices == 4
    dataset.write(numbers(0, 35), source="kafka", state="2")
    assert dataset.write(numbers(0, 35), source="kafka", state="1") == first
    assert dataset.write(numbers(0, 35), source="kafka", state="2").start == 35


@pytest.mark.parametrize(("source", "state"), [("kafka", "2"), ("files", "1"), ("kafka", ""), ("kafk", "a1")])
def test_other_pair_is_another_commit(dataset, source, state):
    dataset.write(numbers(0, 3), source="kafka", state="1")
    assert dataset.write(numbers(0, 3), source=source, state=state).start == 3


def test_write_without_a_pair_is_never_a_repetition(dataset):
    dataset.write(numbers(0, 3), source="kafka", state="1")
    assert dataset.write(numbers(0, 3)).start == 3
    assert dataset.write(numbers(0, 3)).start == 6


def test_state_after_an_ordinary_write_is_still_the_last_one(dataset):
    dataset.write(numbers(0, 1), source="kafka", state="1")
    dataset.write(numbers(1, 2))
    state = dataset.snapshot().state.source_state
    assert (state.source_name, state.value) == ("kafka", "1")
    assert dataset.verify().ok


def test_pair_whose_write_was_refused_can_be_written_later(dataset):
    dataset.write(numbers(0, 1))
    with pytest.raises(fm.FloodmarkError):
        dataset.write(pa.table({"n": ["x"]}), source="kafka", state="1")
    assert dataset.write(numbers(1, 2), source="kafka", state="1").rows == 1


@pytest.mark.parametrize("half", [{"source": "kafka"}, {"state": "1"}])
def test_half_a_pair_is_refused(dataset, half):
    with untouched(dataset), pytest.raises(TypeError, match="given together"):
        dataset.write(numbers(0, 1), **half)


def test_source_name_that_records_purges_is_refused(dataset):
    dataset.write(numbers(0, 5))
    with untouched(dataset), pytest.raises(BadData, match="purges"):
        dataset.write(numbers(0, 1), source="floodmark.dev/purge", state="3")
