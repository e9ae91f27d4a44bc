"""Pieces over several spans are decoded once while there is room for them, by however many threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from floodmark.timeline.interleave import OrderedRows, OverlapCache, spill
from floodmark.timeline.pieces import Piece, PieceOrigin, TimePoint
from floodmark.timeline.sections import Span
from limits import set_limit
from waiting import PATIENCE

SIZE = 24 * 10  # a column of the table, times and offsets of ten rows


def piece(name: str, last: int) -> Piece:
    return Piece(name, 0, 0, 10, 10, TimePoint(0, 0), TimePoint(last, 9), 0, 9, 80, PieceOrigin.SLICE, 1)


def span(lo: int, hi: int, *over: Piece) -> Span:
    return Span(TimePoint(lo, -1), TimePoint(hi, -1), None, over)


def nowhere() -> Path:
    raise AssertionError("there is room in memory")


class Loads:
    """Loads ten rows for each piece, and notes which."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, piece: Piece) -> OrderedRows:
        with self._lock:
            self.done.append(piece.file)
        numbers = np.arange(10)
        return OrderedRows(pa.table({"n": numbers}), numbers, numbers)


def test_a_piece_over_many_spans_is_loaded_once_whoever_asks():
    loads, long = Loads(), piece("a", 1000)
    kept = OverlapCache(loads, nowhere)
    together = threading.Barrier(4)

    def ask(number: int) -> OrderedRows:
        together.wait(PATIENCE)
        return kept.rows(long, span(number, number + 1, long))

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, range(40)))
    assert loads.done == ["a"]
    assert all(rows is found[0] for rows in found)


def test_what_does_not_fit_into_memory_lies_in_files_without_names(monkeypatch, tmp_path):
    set_limit(monkeypatch, "lying.kept_bytes", 2 * SIZE + 1)
    loads = Loads()
    kept = OverlapCache(loads, lambda: tmp_path)
    pieces = [piece(name, 1000) for name in "abcd"]
    before = pa.total_allocated_bytes()
    found = [[kept.rows(each, span(at, at + 1, *pieces)) for each in pieces] for at in range(5)]
    assert [loads.done.count(name) for name in "abcd"] == [1, 1, 1, 1]
    for rows in found[-1]:
        assert rows.table.to_pydict() == {"n": list(range(10))}
        assert rows.times.tolist() == rows.offsets.tolist() == list(range(10))
    assert list(tmp_path.iterdir()) == []
    assert pa.total_allocated_bytes() - before <= 2 * SIZE  # files are mapped, not read


def test_what_can_be_kept_nowhere_is_loaded_again_and_what_is_there_stays(monkeypatch, tmp_path):
    set_limit(monkeypatch, "lying.kept_bytes", 2 * SIZE + 1)
    loads = Loads()
    kept = OverlapCache(loads, lambda: tmp_path / "missing")
    pieces = [piece(name, 1000) for name in "abcd"]
    for at in range(5):
        for each in pieces:
            assert len(kept.rows(each, span(at, at + 1, *pieces))) == 10
    assert [loads.done.count(name) for name in "abcd"] == [1, 1, 5, 5]


def test_rows_of_every_type_come_back_from_a_file_as_they_were(tmp_path):
    table = pa.table(
        {
            "_times": pa.array(["a", None, "b"]),
            "l": pa.array([[1], [], None], pa.list_(pa.int32())),
        },
    )
    rows = OrderedRows(pa.concat_tables([table, table.slice(0, 3)]), np.arange(6), np.arange(6) + 10)
    found = spill(rows, tmp_path)
    assert found.table.to_pylist() == rows.table.to_pylist()
    assert found.table.schema == rows.table.schema
    assert (found.times.tolist(), found.offsets.tolist()) == (list(range(6)), list(range(10, 16)))


def test_pieces_that_were_passed_make_room(monkeypatch):
    set_limit(monkeypatch, "lying.kept_bytes", SIZE + 1)
    loads = Loads()
    kept = OverlapCache(loads, nowhere)
    early, late = piece("early", 3), piece("late", 1000)
    kept.rows(early, span(0, 2, early))
    for at in range(4, 9):
        kept.rows(late, span(at, at + 1, late))
    assert loads.done == ["early", "late"]


def test_a_piece_that_cannot_be_read_fails_for_everyone_and_is_tried_again():
    long = piece("a", 1000)
    broken = True

    def load(_: Piece) -> OrderedRows:
        if broken:
            raise OSError("gone")
        return Loads()(long)

    kept = OverlapCache(load, nowhere)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            kept.rows(long, span(0, 1, long))
    broken = False
    assert len(kept.rows(long, span(0, 1, long))) == 10


def test_dictionaries_that_differ_come_back_as_what_they_stand_for(tmp_path):
    chunks = [pa.array(texts).dictionary_encode() for texts in (["x", "y"], ["z", None])]
    rows = OrderedRows(pa.table({"d": pa.chunked_array(chunks)}), np.arange(4), np.arange(4))
    assert spill(rows, tmp_path).table.equals(pa.table({"d": pa.array(["x", "y", "z", None])}))
