"""Interleaving: several sorted tables come out in one order, and what lies far from late rows is not copied."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.timeline.interleave import LazyOffsets, OrderedRows, decode_dictionaries, interleave, positions_in
from floodmark.timeline.pieces import TimePoint
from limits import set_limit


def rows(places: list[tuple[int, int]]) -> OrderedRows:
    """Records at these places, with columns that say which they are."""
    times, offsets = ([p[i] for p in places] for i in (0, 1))
    table = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "text": pa.array([None if o % 3 == 0 else f"{t} {o}" for t, o in places], pa.string()),
            "list": pa.array([[t, o] for t, o in places], pa.list_(pa.int64())),
        }
    )
    return OrderedRows(table, np.array(times, np.int64), np.array(offsets, np.int64))


def naive(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return sorted(p for part in parts for p in part)


@st.composite
def dealt(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Records with different offsets and few different times, dealt to a few sorted parts."""
    times = draw(st.lists(st.integers(0, 6), max_size=60))
    parts: list[list[tuple[int, int]]] = [[] for _ in range(draw(st.integers(1, 5)))]
    for offset, time in enumerate(times):
        parts[draw(st.integers(0, len(parts) - 1))].append((time, offset))
    return [sorted(part) for part in parts]


@pytest.mark.parametrize("apart", [0, 1, 3, 10**6])
@given(parts=dealt())
def test_parts_come_out_in_one_order(apart, parts):
    with pytest.MonkeyPatch.context() as patch:
        set_limit(patch, "interleave.apart", apart)
        tables = interleave([rows(part) for part in parts])
    assert all(table.num_rows for table in tables)
    wanted = rows(naive(parts)).table
    found = pa.concat_tables(tables) if tables else wanted.schema.empty_table()
    assert found.to_pylist() == wanted.to_pylist()


@given(parts=dealt())
def test_positions_count_the_places_before(parts):
    base, late = [*parts[0], (7, 100)], parts[-1] if len(parts) > 1 else []
    late_rows = rows(late)
    found = positions_in(rows(base), late_rows.times, late_rows.offsets)
    assert found.tolist() == [sum(b < each for b in base) for each in late]


@given(
    parts=dealt(),
    lo=st.tuples(st.integers(0, 6), st.integers(-1, 60)),
    hi=st.tuples(st.integers(0, 6), st.integers(-1, 60)),
)
def test_rows_between_two_places_are_found(parts, lo, hi):
    found = rows(parts[0]).between(TimePoint(*lo), TimePoint(*hi))
    assert found.offsets.tolist() == [o for t, o in parts[0] if lo <= (t, o) < hi]
    assert found.table["offset"].to_pylist() == found.offsets.tolist()


def test_rows_far_from_late_ones_are_not_copied(monkeypatch):
    set_limit(monkeypatch, "interleave.apart", 10)
    base = rows([(t, t) for t in range(1000)])
    late = rows([(500, 2000), (503, 2001)])
    before, middle, after = interleave([base, late])
    assert (before.num_rows, after.num_rows) == (501, 496)
    address = base.table["offset"].chunk(0).buffers()[1].address
    assert before["offset"].chunk(0).buffers()[1].address == address
    assert after["offset"].chunk(0).buffers()[1].address == address
    assert middle["offset"].to_pylist() == [2000, 501, 502, 503, 2001]


def unread(base: OrderedRows, last: int, asked: list[int]) -> OrderedRows:
    """The same rows, which note when their offsets are read."""
    return OrderedRows(base.table, base.times, LazyOffsets(last, lambda: asked.append(1) or base.offsets))


@given(parts=dealt())
def test_offsets_that_are_read_late_change_nothing(parts):
    base = [*parts[0], (7, 100)]
    some = [unread(rows(base), 100, []), *(rows(part) for part in parts[1:])]
    found = pa.concat_tables(interleave(some))
    assert found.to_pylist() == rows(naive([base, *parts[1:]])).table.to_pylist()


def test_offsets_are_read_only_where_a_tie_cannot_be_told_otherwise():
    base = rows([(t, t) for t in range(100)])
    for late, times in (([(5, 1000), (50, 1001)], 0), ([(-1, 3)], 0), ([(50, 49)], 1)):
        asked: list[int] = []
        found = pa.concat_tables(interleave([unread(base, 99, asked), rows(late)]))
        assert found["offset"].to_pylist() == [o for _, o in sorted([*((t, t) for t in range(100)), *late])]
        assert len(asked) == times


def encoded(part: OrderedRows) -> OrderedRows:
    """The same rows, whose texts are a dictionary of their own."""
    table = part.table
    return part.with_table(table.set_column(1, "text", table["text"].combine_chunks().dictionary_encode()))


@given(parts=dealt(), which=st.lists(st.booleans(), min_size=5, max_size=5))
def test_texts_may_be_dictionaries_in_all_parts_or_in_some(parts, which):
    some = [encoded(rows(p)) if is_encoded else rows(p) for p, is_encoded in zip(parts, which, strict=False)]
    tables = [decode_dictionaries(table) for table in interleave(some)]
    wanted = rows(naive(parts)).table
    found = pa.concat_tables(tables) if tables else wanted.schema.empty_table()
    assert found.schema.types == wanted.schema.types
    assert found.to_pylist() == wanted.to_pylist()
