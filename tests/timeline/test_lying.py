"""Pieces over several spans are decoded once while there is room for them, by however many threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from floodmark.timeline import lying
from floodmark.timeline.interleave import Rows
from floodmark.timeline.lying import LyingOver
from floodmark.timeline.pieces import How, Piece, Place
from floodmark.timeline.spans import Span

SIZE = 24 * 10  # a column of the table, times and offsets of ten rows


def piece(name: str, last: int) -> Piece:
    return Piece(name, 0, 0, 10, 10, Place(0, 0), Place(last, 9), 0, 9, 80, How.SLICE, 1)


def span(lo: int, hi: int, *over: Piece) -> Span:
    return Span(Place(lo, -1), Place(hi, -1), None, over)


class Loads:
    """Loads ten rows for each piece, and notes which."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, piece: Piece) -> Rows:
        time.sleep(0.01)
        with self._lock:
            self.done.append(piece.file)
        numbers = np.arange(10)
        return Rows(pa.table({"n": numbers}), numbers, numbers)


def test_a_piece_over_many_spans_is_loaded_once_whoever_asks():
    loads, long = Loads(), piece("a", 1000)
    kept = LyingOver(loads)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda i: kept.rows(long, span(i, i + 1, long)), range(40)))
    assert loads.done == ["a"]
    assert all(rows is found[0] for rows in found)


def test_what_does_not_fit_is_loaded_again_and_what_is_there_stays(monkeypatch):
    monkeypatch.setattr(lying, "KEPT_BYTES", 2 * SIZE + 1)
    loads = Loads()
    kept = LyingOver(loads)
    pieces = [piece(name, 1000) for name in "abcd"]
    for at in range(5):
        for each in pieces:
            assert len(kept.rows(each, span(at, at + 1, *pieces))) == 10
    assert [loads.done.count(name) for name in "abcd"] == [1, 1, 5, 5]


def test_pieces_that_were_passed_make_room(monkeypatch):
    monkeypatch.setattr(lying, "KEPT_BYTES", SIZE + 1)
    loads = Loads()
    kept = LyingOver(loads)
    early, late = piece("early", 3), piece("late", 1000)
    kept.rows(early, span(0, 2, early))
    for at in range(4, 9):
        kept.rows(late, span(at, at + 1, late))
    assert loads.done == ["early", "late"]


def test_a_piece_that_cannot_be_read_fails_for_everyone_and_is_tried_again():
    long = piece("a", 1000)
    broken = True

    def load(_: Piece) -> Rows:
        if broken:
            raise OSError("gone")
        return Loads()(long)

    kept = LyingOver(load)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            kept.rows(long, span(0, 1, long))
    broken = False
    assert len(kept.rows(long, span(0, 1, long))) == 10
