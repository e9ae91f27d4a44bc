"""Sets of row addresses become arrays, ranges and bytes, and damaged bytes are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from floodmark.storage import row_sets

members = st.sets(st.one_of(st.integers(0, 80), st.integers(65_000, 66_000), st.integers(0, 2**32 - 1)))


def runs(rows: set[int]) -> list[tuple[int, int]]:
    """The oracle: one row after the other."""
    found: list[tuple[int, int]] = []
    for row in sorted(rows):
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


@given(members, st.randoms())
def test_array_and_back_is_the_same_set_in_order(rows, random):
    shuffled = sorted(rows)
    random.shuffle(shuffled)
    made = row_sets.from_array(np.array(shuffled, np.int64))
    assert made == BitMap(rows)
    back = row_sets.to_array(made)
    assert back.dtype == np.int64
    assert back.tolist() == sorted(rows)


def test_long_runs_with_repeats_are_the_same_set():
    given_twice = np.concatenate([np.arange(100, 5000), np.arange(50, 3000), np.arange(2000, 2100)])
    assert row_sets.from_array(given_twice) == BitMap(range(50, 5000))


@given(members)
def test_ranges_are_the_runs_of_the_set(rows):
    assert row_sets.ranges(BitMap(rows)) == runs(rows)


@given(st.integers(0, 70_000), st.integers(0, 70_000))
def test_span_is_the_half_open_range(start, end):
    assert row_sets.span(start, end) == BitMap(range(start, end))


@given(members, st.integers(1, 7))
def test_cuts_hold_every_member_once_and_at_most_so_many(rows, most):
    cuts = row_sets.cut(BitMap(rows), most)
    inside = [sorted(row for row in rows if start <= row < end) for start, end in cuts]
    assert [row for found in inside for row in found] == sorted(rows)
    assert [len(found) for found in inside[:-1]] == [most] * (len(cuts) - 1)
    assert all(len(found) <= most for found in inside)
    assert all((found[0], found[-1] + 1) == edges for found, edges in zip(inside, cuts, strict=True))


@pytest.mark.parametrize("rows", [[-1], [2**32], [0, 2**40]])
def test_addresses_that_no_bitmap_holds_are_refused(rows):
    with pytest.raises(ValueError, match="not within"):
        row_sets.from_array(np.array(rows, np.int64))


def test_cuts_of_no_rows_are_refused():
    with pytest.raises(ValueError, match="at most 0 rows"):
        row_sets.cut(BitMap([1]), 0)


@given(members)
def test_packed_set_comes_back(rows):
    assert row_sets.unpack(row_sets.pack(BitMap(rows))) == BitMap(rows)


@given(st.lists(st.tuples(st.booleans(), st.integers(60_000, 70_000), st.integers(0, 9000)), max_size=5))
def test_equal_sets_are_equal_bytes_however_they_came_about(steps):
    rows = BitMap()
    for adds, start, length in steps:
        change = BitMap(range(start, start + length, 1 + length % 3))
        rows = rows | change if adds else rows - change
    one_by_one = BitMap()
    for row in rows:
        one_by_one.add(row)
    assert row_sets.pack(rows) == row_sets.pack(one_by_one)
    assert row_sets.pack(rows) == row_sets.pack(row_sets.from_array(row_sets.to_array(rows)))


def test_packing_leaves_the_set_as_it_was():
    rows = BitMap()
    for row in range(1000):  # added one by one, they do not lie as a run
        rows.add(row)
    before = rows.serialize()
    assert len(row_sets.pack(rows)) < len(before)
    assert rows.serialize() == before


PACKED = row_sets.pack(BitMap([1, 2, 3, 70_000]) | BitMap(range(200_000, 270_000)))


@pytest.mark.parametrize("length", range(len(PACKED)))
def test_bytes_cut_short_are_refused(length):
    with pytest.raises(ValueError):
        row_sets.unpack(PACKED[:length])


@pytest.mark.parametrize("at", range(len(PACKED)))
def test_no_flipped_byte_goes_unnoticed(at):
    for flip in (0x01, 0x80, 0xFF):
        damaged = bytearray(PACKED)
        damaged[at] ^= flip
        with pytest.raises(ValueError):
            row_sets.unpack(bytes(damaged))


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data):
    for damaged in (data, PACKED + data[:1] + b"x", BitMap(data).serialize()):
        with pytest.raises(ValueError):
            row_sets.unpack(damaged)
