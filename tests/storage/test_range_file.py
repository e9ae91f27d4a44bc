"""A file read by ranges gives the bytes of the file, in few requests."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.storage.range_file import RangeFile
from limits import set_limit

DATA = bytes(range(256)) * 4
SHORT = DATA[:20]  # so short that reads often begin or end where a fetched range does
reads_of_short = st.lists(st.tuples(st.integers(0, 22), st.integers(-1, 8)), min_size=2)


def opened(data: bytes, tail: int) -> tuple[RangeFile, list[tuple[int, int]]]:
    """A file over these bytes, and the ranges that it fetches."""
    fetched: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        assert 0 <= start < end <= len(data)
        fetched.append((start, end))
        return data[start:end]

    return RangeFile(fetch, len(data), data[len(data) - min(tail, len(data)) :]), fetched


@given(reads_of_short, st.integers(0, 5), st.integers(1, 6))
def test_any_reads_give_the_same_as_a_file_in_memory(reads, tail, ahead):
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "range_file.first_ahead", ahead)
        file, _ = opened(SHORT, tail)
        expected = io.BytesIO(SHORT)
        for position, size in reads:
            assert file.seek(position) == expected.seek(position)
            assert file.read(size) == expected.read(size)


def test_reading_on_fetches_larger_and_larger_ranges(monkeypatch):
    set_limit(monkeypatch, "range_file.first_ahead", 10)
    set_limit(monkeypatch, "range_file.most_ahead", 40)
    file, fetched = opened(DATA, 0)
    while file.tell() < 200:
        file.read(5)
    assert fetched == [(0, 10), (10, 30), (30, 70), (70, 110), (110, 150), (150, 190), (190, 230)]


def test_tail_needs_no_request():
    file, fetched = opened(DATA, 100)
    file.seek(-100, io.SEEK_END)
    assert file.read() == DATA[-100:]
    assert fetched == []


def test_seek_before_the_start_is_refused():
    file, _ = opened(DATA, 0)
    with pytest.raises(ValueError, match="before the start"):
        file.seek(-1)
